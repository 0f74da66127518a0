"""What monitors are computed from: sums over a rank's answers of a round, and sketches of those that were accepted."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windtunnel.recipe import GRPO
from windtunnel.verify import candidate_of

from .judges import first_judge
from .rollouts import Round, Sample

SKETCH = 32
"""Numbers of a sketch: as many of them agree, on average, as two answers have of their runs of tokens in common (MinHash)."""
NEAR = 0.85
GRAM = 4
LEAST_TOKENS = 16
"""Shorter answers are not compared: `\\boxed{4}` is the same wherever it is right."""
MOST_SKETCHES = 1024
"""Of a rank and round; of more, as many are taken evenly."""
LEAST_BYTES, PACKED = 256, 0.2
HALF = 0.5
LEAST_FREE = 8
"""Answers beyond one for each prompt from which on a correlation says something."""
PIECES = re.compile(r"\w+|[^\w\s]")
ROWS = 64


def sum_signs(found: Round, stage: GRPO) -> dict[str, float]:
    """Return one rank's sums of a round, which add up over ranks."""
    everything = found.everything
    texts = [sample.text.encode("utf-8", "replace") for sample in everything]
    # A short text packs badly whatever it says: the packer's own header is a good part of it.
    long = [text for text in texts if len(text) >= LEAST_BYTES]
    shares = [s.reward.share for s in everything if s.reward.accepted and s.reward.share is not None]
    swapped = [s.reward.swapped for s in everything if s.reward.swapped is not None]
    sums = {
        "long": len(long), "repeating": sum(len(zlib.compress(text, 1)) < PACKED * len(text) for text in long),
        "kernels": len(shares), "kernel_share": math.fsum(shares), "kernels_little": sum(share < HALF for share in shares),
        "checked": sum(s.reward.checked is not None for s in everything),
        "disagreed": sum(s.reward.checked is False for s in everything),
        "fragile": sum(s.reward.fragile for s in everything),
        "swaps": len(swapped), "swapped": sum(swapped),
    } | _of_length([*found.groups, *found.dropped]) | _of_form(everything, stage)  # fmt: skip
    return {name: float(value) for name, value in sums.items()}


def sketches(found: Round, stage: GRPO) -> list[list[int]]:
    """Return of each accepted answer that is long enough its prompt's number and its sketch."""
    rows = []
    for sample in found.everything:
        if sample.reward.accepted:
            judge = first_judge(stage, sample.prompt)
            pieces = _of_kernel(sample.text) if judge is not None and judge.kind == "kernel" else sample.tokens
            if len(pieces) >= LEAST_TOKENS:
                rows.append([sample.prompt.number, *sketch(pieces)])
    return rows if len(rows) <= MOST_SKETCHES else [rows[i * len(rows) // MOST_SKETCHES] for i in range(MOST_SKETCHES)]


def sketch(pieces: Any) -> list[int]:
    """Return a sketch of a sequence of numbers, (SKETCH,) below 2**32: the least of many hashes of its runs of GRAM numbers."""
    numbers = np.asarray(pieces, dtype=np.uint64)
    runs = np.lib.stride_tricks.sliding_window_view(numbers, GRAM)
    # The same draws on every rank and in every round, or sketches could not be compared.
    draw = np.random.Generator(np.random.Philox(GRAM))
    # Odd factors: multiplying by an even one would lose bits.
    factors, offsets = (draw.integers(1, 2**63, size, dtype=np.uint64) | np.uint64(1) for size in (GRAM, SKETCH))
    mixed = _mixed((runs * factors).sum(1, dtype=np.uint64))
    least = [int((_mixed(mixed ^ offset) >> np.uint64(32)).min()) for offset in offsets]  # one by one: long answers fit
    return least


def repeats(rows: Sequence[Sequence[int]]) -> tuple[float, float] | None:
    """Return the shares of answers that nearly repeat another one to the same prompt, and to another; None: too few."""
    if len(rows) < 2:
        return None
    table = np.asarray(rows, dtype=np.int64)
    prompts, every = table[:, 0], table[:, 1:]
    same = elsewhere = 0
    for begin in range(0, len(table), ROWS):
        part = slice(begin, begin + ROWS)
        near = (every[part, None] == every[None]).mean(2) >= NEAR
        # No answer repeats itself.
        near[np.arange(len(near)), np.arange(begin, begin + len(near))] = False
        mine = prompts[part, None] == prompts[None]
        same += int((near & mine).any(1).sum())
        elsewhere += int((near & ~mine).any(1).sum())
    return same / len(table), elsewhere / len(table)


def monitor_metrics(sums: Mapping[str, float], rows: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the monitors of a round (see `monitors.MONITORS`) from the sums and sketches of all ranks."""
    found: dict[str, float] = {}
    spread = sums.get("length_squares", 0.0) * sums.get("reward_squares", 0.0)
    if sums.get("length_free", 0.0) >= LEAST_FREE and spread > 0:
        found["reward_by_length"] = sums["length_reward"] / math.sqrt(spread)
    if (shares := repeats(rows)) is not None:
        found["accepted_repeats"], found["accepted_elsewhere"] = shares
    for name, part, whole in (
        ("self_repeating", "repeating", "long"),
        ("form_alone", "form_alone", "given"),
        ("kernel_share", "kernel_share", "kernels"),
        ("kernels_little", "kernels_little", "kernels"),
        ("swapped_accepted", "swapped", "swaps"),
    ):
        if sums.get(whole):
            found[name] = sums[part] / sums[whole]
    if sums.get("checked"):
        found |= {"cross_checked": sums["checked"], "cross_check_disagrees": sums["disagreed"]}
        found |= {"cross_check_fragile": sums["fragile"]} if sums["kernels"] else {}
    return found


def _of_length(groups: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Return sums of squares and products of lengths and rewards, each less the mean of its prompt: some prompts are longer."""
    sums = {"length_free": 0.0, "length_squares": 0.0, "reward_squares": 0.0, "length_reward": 0.0}
    for group in groups:
        known = [(len(s.tokens), s.reward.total) for s in group if s.reward.total is not None]
        # A single answer is its own mean: it says nothing of how reward goes with length.
        if len(known) < 2:
            continue
        lengths, rewards = (np.asarray(values, dtype=np.float64) for values in zip(*known, strict=True))
        lengths, rewards = lengths - lengths.mean(), rewards - rewards.mean()
        # The mean of each prompt is taken off, which costs one degree of freedom.
        sums["length_free"] += len(known) - 1
        sums["length_squares"] += float(lengths @ lengths)
        sums["reward_squares"] += float(rewards @ rewards)
        sums["length_reward"] += float(lengths @ rewards)
    return sums


def _of_form(everything: Sequence[Sample], stage: GRPO) -> dict[str, float]:
    """Return what was given, and of it what answers got that got it for their form alone; nothing where form is all or none."""
    if len({source.kind == "format" for source in stage.sources}) < 2:
        return {}
    given = alone = 0.0
    for sample in everything:
        known = zip(stage.sources, sample.reward.parts, strict=False)
        parts = [(source.kind == "format", source.weight * part) for source, part in known if part is not None]
        # Penalties are left out: what counts is what was given.
        form, other = (sum(value for is_form, value in parts if is_form is wanted and value > 0) for wanted in (True, False))
        given += form + other
        alone += form if not other else 0.0
    return {"given": given, "form_alone": alone}


def _of_kernel(text: str) -> list[int]:
    """Return the pieces of an answer's kernel: what is said around it may differ."""
    return [zlib.crc32(piece.encode("utf-8", "replace")) for piece in PIECES.findall(candidate_of(text))]


def _mixed(numbers: Any) -> Any:
    """Return numbers whose bits depend on all bits of the given ones (the end of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
