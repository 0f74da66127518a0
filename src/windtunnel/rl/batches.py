"""A round's answers, packed into micro-batches for the learner: prompt and answer a document, and only the answer is learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windtunnel.data import best_fit, sequence_starts, target_rows
from windtunnel.recipe import GRPO
from windtunnel.train import ObjectiveBatch

from .loss import LossSettings, PolicyLoss, Tokens
from .rollouts import Sample

NO_TARGET = -1
BY_ANSWER = ("grpo", "gspo", "sapo")
"""Losses that are a mean over answers, whatever their lengths."""
ROUND = 64
"""Where nothing is compiled for one length, sequences are as long as the longest pack, up to a multiple of this."""


@dataclass(frozen=True)
class Packed:
    """Samples in rows of T tokens.

    Attributes:
        ids, targets, positions: (rows, T) int64; targets are the answers' tokens, NO_TARGET elsewhere.
        owner: (rows, T) int64, the sample that a target belongs to; -1: none. place: (rows, T) int64, its place in the answer.
        sampler: (rows, T) fp32, the log-probability that a target was drawn with.
    """

    ids: Any
    targets: Any
    positions: Any
    owner: Any
    place: Any
    sampler: Any


def pack(samples: Sequence[Sample], sequence: int, rows: int, *, fixed: bool) -> Packed:
    """Pack samples by best fit; a sample without an answer is left out.

    Args:
        samples: to pack.
        sequence: most tokens of a row.
        rows: of a micro-batch.
        fixed: rows have `sequence` tokens, however few are needed, and their number is a multiple of `rows`.
    """
    # Given up or failed answers have no tokens: nothing of them is scored.
    used = [i for i, sample in enumerate(samples) if len(sample.tokens)]
    lengths = np.array([len(samples[i].prompt.ids) + len(samples[i].tokens) for i in used], dtype=np.int64)
    order, starts = best_fit(lengths, sequence)
    filled = np.add.reduceat(lengths[order], starts[:-1]) if len(used) else np.zeros(1, dtype=np.int64)
    # Compiled blocks know one length; without compilation padding would only be computed for nothing.
    width = sequence if fixed else min(sequence, -(-int(filled.max(initial=1)) // ROUND) * ROUND)
    count = max(1, len(starts) - 1)
    count = -(-count // rows) * rows if fixed else count
    ids, owner, targets = np.zeros((count, width), np.int64), np.full((count, width), -1), np.full((count, width), NO_TARGET)
    place = np.zeros((count, width), np.int64)
    positions, sampler = np.tile(np.arange(width), (count, 1)), np.zeros((count, width), np.float32)
    for row in range(len(starts) - 1):
        at = 0
        for k in order[starts[row] : starts[row + 1]]:
            sample = samples[used[k]]
            begin, end = at + len(sample.prompt.ids), at + int(lengths[k])
            ids[row, at:begin], ids[row, begin:end] = sample.prompt.ids, sample.tokens
            learned = slice(begin - 1, end - 1)  # each position predicts the token behind it
            targets[row, learned], owner[row, learned] = sample.tokens, used[k]
            sampler[row, learned], place[row, learned] = sample.log_probabilities, np.arange(end - begin)
            positions[row, at:end] = np.arange(end - at)
            at = end
        # Padding is a document of its own, so that nothing in it attends to a sample, nor a sample to it.
        positions[row, at:] = np.arange(width - at)
    return Packed(ids, targets, positions, owner, place, sampler)


def micro_batches(
    samples: Sequence[Sample], stage: GRPO, *, sequence: int, rows: int, fixed: bool, device: torch.device, least: int = 1
) -> list[ObjectiveBatch]:
    """Return an update's micro-batches of `rows` packed sequences, with their loss; unless `fixed`, the last may be short.

    Answers whose advantage is NaN (cut, or nothing is known) have weight 0: they are scored and not learned from. Where plan and
    code have rewards of their own, an answer's first tokens have its plan's advantage, and `stage.plan_weight` times the weight.

    Args:
        samples: of one update.
        stage: says how answers are weighed.
        sequence: see `pack`.
        rows: see `pack`.
        fixed: see `pack`.
        device: of the batches.
        least: micro-batches there must be, as ranks that share weights have as many as each other; empty ones make up for it.
    """
    packed = pack(samples, sequence, rows, fixed=fixed)
    code = _per_sample([sample.advantage for sample in samples], samples, stage)
    plan = _per_sample([sample.plan_advantage for sample in samples], samples, stage)
    plans = np.array([*(sample.plan_tokens for sample in samples), 0])
    # One number more than there are samples, as in `_per_sample`: what belongs to no answer has no plan.
    settings, batches = LossSettings.of(stage), []
    for start in range(0, max(len(packed.ids), least * rows), rows):
        # A made-up micro-batch repeats the first one's tokens: of the same shape, without a target.
        part = slice(start, start + rows) if start < len(packed.ids) else slice(0, rows)
        empty = start >= len(packed.ids)
        owner = np.full_like(packed.owner[part], -1) if empty else packed.owner[part]
        there = owner >= 0
        flat = owner.reshape(-1)
        begins, extent = sequence_starts(packed.positions[part])
        targets = np.where(there, packed.targets[part], NO_TARGET)
        # Plan and code of one answer are learned from with advantages of their own.
        planned = packed.place[part].reshape(-1) < plans[flat]
        weights = np.where(flat >= 0, np.where(planned, stage.plan_weight * plan[0][flat], code[0][flat]), 0.0)
        tokens = Tokens(
            _tensor(weights, device),
            _tensor(np.where(flat >= 0, np.where(planned, plan[1][flat], code[1][flat]), 0.0), device),
            _tensor(np.where(flat >= 0, packed.sampler[part].reshape(-1), 0.0), device),
        )
        share = _share(stage, flat, weights)
        positions = torch.from_numpy(packed.positions[part])
        batches.append(
            ObjectiveBatch(
                torch.from_numpy(packed.ids[part]).to(device), torch.from_numpy(targets).to(device), positions.to(device),
                (positions == 0).cumsum(1).to(device), None, torch.from_numpy(begins).to(device), torch.from_numpy(extent),
                torch.from_numpy(target_rows(targets.astype(np.int32).view(np.uint32))).to(device),
                objective=PolicyLoss(tokens, settings, share, torch.from_numpy(flat.copy()).to(device)),
            )
        )  # fmt: skip
    return batches


def _per_sample(found: Sequence[float], samples: Sequence[Sample], stage: GRPO) -> tuple[Any, Any]:
    """Return each sample's weight of a token, and its advantage; found: advantages, NaN where nothing is learned."""
    # One more entry than there are samples: -1, the owner of what is no target, finds the last.
    masked = np.array([math.isnan(advantage) for advantage in found] + [True])
    lengths = np.array([max(1, len(sample.tokens)) for sample in samples] + [1])
    weights = np.where(masked, 0.0, 1.0 / lengths if stage.loss in BY_ANSWER else 1.0)
    advantages = np.array([0.0 if math.isnan(advantage) else advantage for advantage in found] + [0.0])
    return weights, advantages


def _share(stage: GRPO, owner: Any, weights: Any) -> float:
    """Return what a micro-batch adds to the loss's denominator: tokens, answers, or answers times their most tokens.

    Args:
        stage: says which.
        owner: the sample of each target.
        weights: of each target.
    """
    if stage.loss in ("dapo", "cispo"):
        return float((weights > 0).sum())
    answers = len(np.unique(owner[owner >= 0]))
    return float(answers) if stage.loss in BY_ANSWER else float(answers * stage.answer_tokens)


def _tensor(values: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)
