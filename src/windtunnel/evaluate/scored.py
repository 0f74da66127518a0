"""Held-out loss of a Hugging Face model, sequence by sequence and without packing, so that two models can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windtunnel.data import PreparedData, ValidationBatches
from windtunnel.generate import Decoder
from windtunnel.recipe import UserError

from .loss import Validation


@dataclass(frozen=True)
class Scored:
    """A model on held-out sequences: nats, targets, and nats and bytes of the targets that stand for text, (sequences,) each."""

    nats: np.ndarray[Any, Any]
    targets: np.ndarray[Any, Any]
    text_nats: np.ndarray[Any, Any]
    bytes: np.ndarray[Any, Any]

    @property
    def validation(self) -> Validation:
        """The sums."""
        nats, targets, text, size = (float(part.sum()) for part in (self.nats, self.targets, self.text_nats, self.bytes))
        return Validation(nats / targets, text / math.log(2) / size if size else math.nan, int(targets), int(size))


@torch.inference_mode()
def score(model: Decoder, data: PreparedData, sequence: int, limit: int) -> Scored:
    """Score held-out sequences one by one, `limit` targets at most: conversations, or windows of text, as training does."""
    length = torch.as_tensor(np.asarray(data.tokenizer.token_bytes()).astype(np.int64))
    rows = []
    for ids, targets in _sequences(data, sequence, limit):
        asked = targets >= 0
        if not asked.any():
            continue
        nats, wanted = _nats(model, ids, targets)[asked], targets[asked]
        size = length[wanted]
        rows.append((float(nats.sum()), len(wanted), float(nats[size > 0].sum()), int(size.sum())))
    if not rows:
        raise UserError("the validation split has no targets to score", "raise data.validation or give more text")
    return Scored(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)))


def _nats(model: Decoder, ids: Tensor, targets: Tensor) -> Tensor:
    """Return (t,) nats of targets, fp64 on the CPU; 0 where there is none."""
    found, at = [], 0
    # In pieces: the logits of a long sequence over a large vocabulary take gigabytes.
    for logits in model.score(ids.tolist()):
        part = targets[at : at + len(logits)].to(logits.device)
        found.append(torch.nn.functional.cross_entropy(logits, part, ignore_index=-1, reduction="none").double().cpu())
        at += len(logits)
    return torch.cat(found)


def _sequences(data: PreparedData, sequence: int, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids and targets (t,) of each conversation, or window of text, alone."""
    batches = ValidationBatches(data.validation, sequence=sequence, micro_batch=1, limit=limit)
    for batch in batches:
        ids, targets = batch.input_ids[0], batch.targets[0]
        if batch.position_ids is None:
            yield ids, targets
            continue
        # Packed for training; each conversation alone has the same loss, and can be paired with another model's.
        starts = [*(batch.position_ids[0] == 0).nonzero()[:, 0].tolist(), len(ids)]
        for begin, end in pairwise(starts):
            yield ids[begin:end], targets[begin:end]
