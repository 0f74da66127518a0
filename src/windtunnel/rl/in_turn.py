"""Answers by the learner's own process, in turn with learning."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch

from windtunnel.generate import BatchedGenerator, Generator, HFDecoder, WholeText, hf_decoder
from windtunnel.recipe import GRPO
from windtunnel.train import COMPUTE, HFEngine, Ranks, plain_model, training_undisturbed, write_plain

from .sampler import most_slots, most_tokens

SHARE = 0.75
"""Of the memory that this process can have: what learning takes and what stays between rounds may fill so much of it together."""


class InTurnSampler:
    """The learner's own process: transformers' own model with a copy of the weights. See `Sampler`.

    On a GPU with plenty of memory the copy stays from round to round, with the cache and the recordings of its steps, which take
    longer to make than short answers take to write; else it is there for as long as a round takes. Where memory runs out, half
    as many answers are written at once, in the rounds to come too.
    """

    def __init__(self, inner: HFEngine, stage: GRPO, ranks: Ranks, text: WholeText) -> None:
        self._inner, self._stage, self._ranks, self._text = inner, stage, ranks, text
        self._slots, self._halvings = most_slots(stage, ranks), 0
        self._kept: HFDecoder | None = None
        self._version: int | None = None
        self._rounds = self._learning = 0

    @contextlib.contextmanager
    def generator(self) -> Iterator[Generator]:
        """See `Sampler`."""
        device = self._ranks.device
        # What learning took: since it last ended others may have given memory back, so the most that was seen counts.
        self._learning, before = max(self._learning, _reserved(device)), _allocated(device)
        with training_undisturbed(device) as memory:
            decoder, version = self._decoder(), self._inner.job.optimizer.steps
            with contextlib.closing(BatchedGenerator(decoder, self._text, slots=self._slots, version=version)) as generator:
                yield generator
            self._slots, self._halvings = generator.together, generator.stats.halvings
            # What learning takes is known once it has gone through a round.
            self._rounds += 1
            if self._kept is None and self._rounds > 1 and _fits(device, self._learning + _allocated(device) - before):
                self._kept = decoder
            elif self._kept is not None and not _fits(device, self._learning):
                self._kept = None
            # Else the allocator's blocks stay with this process, for the copy that stays.
            memory.free = self._kept is None

    def _decoder(self) -> HFDecoder:
        """Return a decoder of the weights as they are now; all ranks call it together."""
        job, dtype = self._inner.job, COMPUTE[self._inner.layout.precision]
        if self._kept is None:
            decoder = hf_decoder(plain_model(job, dtype), most_tokens(self._stage))
        else:
            decoder = self._kept
            # Held-out answers between two rounds are by weights that have been written already.
            if self._version != job.optimizer.steps:
                write_plain(job, decoder.model, dtype)
        self._version = job.optimizer.steps
        return decoder

    def require_well(self) -> None:
        """Do nothing: what fails here raises by itself."""

    def forget(self) -> None:
        """See `Sampler`."""
        self._version = None

    def metrics(self) -> Mapping[str, float]:
        """See `Sampler`."""
        return {"generation_halvings": float(self._halvings)}

    def close(self) -> None:
        """Give up the copy."""
        self._kept = None


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _fits(device: torch.device, size: int) -> bool:
    """Return whether so many bytes leave enough of what this process has on a GPU and could still get; on a CPU nothing does."""
    if device.type != "cuda":
        return False
    return size <= SHARE * (torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
