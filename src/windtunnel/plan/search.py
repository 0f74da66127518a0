"""The layout search: which precision, micro-batch and accumulation a recipe runs with on a rig."""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.model import GPTShape
from windtunnel.recipe import Pretrain, Recipe, UserError
from windtunnel.rig import Rig

from .constants import Constants
from .layout import Layout
from .memory import Memory, memory
from .steptime import StepTime, step_time

# Layouts this close to the fastest count as equal: the one that needs least memory wins.
SAME_SPEED = 1.01


@dataclass(frozen=True)
class Candidate:
    """One layout with its memory and step time."""

    layout: Layout
    memory: Memory
    time: StepTime
    limit_gib: float

    @property
    def components(self) -> dict[str, float]:
        """GiB by component at the peak."""
        return self.memory.peak.components

    @property
    def peak_gib(self) -> float:
        """Sum of the components."""
        return self.memory.peak.gib

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit."""
        return self.peak_gib <= self.limit_gib


def memory_limit(rig: Rig, constants: Constants) -> float:
    """GiB one rank may use."""
    return rig.gpu.memory_gib * constants.usable_share if rig.gpu else rig.ram_gib * constants.cpu_usable_share


def choose_precision(stage: Pretrain, rig: Rig) -> str:
    """The recipe's precision on this rig.

    Raises:
        UserError: fp8 on hardware without it.
    """
    capability = rig.gpu.capability if rig.gpu else (0, 0)
    if stage.precision == "auto":
        return "bf16" if capability >= (8, 0) else "fp32"
    if stage.precision == "fp8" and (capability < (9, 0) or rig.gpu is None or rig.gpu.fp8_tflops is None):
        what = rig.gpu.name if rig.gpu else "a CPU"
        message = f"stages.pretrain.precision: fp8 needs a GPU of capability 9.0 or later (Hopper); rig {rig.name} has {what}"
        raise UserError(message, "--set stages.pretrain.precision=auto")
    return stage.precision


def check_own_layout(recipe: Recipe, rig: Rig) -> None:
    """Refuse what the recipe's `layout` asks for beyond what trains a GPT: data-parallel ranks with sharded optimizer states.

    Raises:
        UserError: names the key and the value that works.
    """
    runs: dict[str, str | int] = {
        "shard": "optimizer",
        "recompute": "none",
        "offload": "none",
        "tensor": 1,
        "expert": 1,
        "pipeline": 1,
    }
    for key, value in runs.items():
        asked = getattr(recipe.layout, key)
        # On one rank nothing is sharded whatever it is called.
        if asked not in (None, value) and not (key == "shard" and rig.gpus <= 1):
            raise UserError(
                f"layout.{key}: {asked}: models of kind gpt are trained on data-parallel ranks with sharded optimizer states",
                f"--set layout.{key}={value}",
            )


def search_layout(
    stage: Pretrain, shape: GPTShape, batch_tokens: int, rig: Rig, constants: Constants
) -> tuple[Candidate, list[str]]:
    """The fastest layout that fits, else the one that needs least memory; and notes on what was adjusted.

    Raises:
        UserError: the recipe's micro_batch does not divide a rank's share of the batch, or fp8 is not to be had.
    """
    ranks = rig.gpus or 1
    share, notes = _share(batch_tokens, shape.sequence, ranks)
    if stage.micro_batch is not None and stage.micro_batch > share:
        notes.append(f"micro-batch {stage.micro_batch} cut to the {share} sequences that each of {ranks} ranks does a step")
    precision = choose_precision(stage, rig)
    compiled = rig.gpu is not None and rig.gpu.capability >= (7, 0) if stage.compile == "auto" else stage.compile
    device = "cuda" if rig.gpu else "cpu"
    limit = memory_limit(rig, constants)
    found = []
    for micro in _micro_batches(stage.micro_batch, share, ranks, shape.sequence):
        layout = Layout(ranks, micro, share // micro, shape.sequence, precision, compiled, device)
        candidate = Candidate(layout, memory(shape, layout, constants), step_time(shape, layout, rig, constants), limit)
        found.append(candidate)
        if not candidate.fits:
            break  # larger micro-batches need more
    fitting = [c for c in found if c.fits]
    if not fitting:
        return found[0], notes
    fastest = min(c.time.seconds for c in fitting)
    return next(c for c in fitting if c.time.seconds <= SAME_SPEED * fastest), notes


def _share(batch_tokens: int, sequence: int, ranks: int) -> tuple[int, list[str]]:
    """Sequences a step for each rank: the batch in whole sequences, the same number on every rank."""
    sequences = max(1, batch_tokens // sequence)
    share = -(-sequences // ranks)
    if share * ranks == sequences:
        return share, []
    return share, [f"batch raised from {sequences} to {share * ranks} sequences, so that {ranks} ranks get equal shares"]


def _micro_batches(given: int | None, share: int, ranks: int, sequence: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(share) + 1) if share % n == 0]
    divisors = sorted({*small, *(share // n for n in small)})
    if given is None:
        return divisors
    given = min(given, share)
    if given not in divisors:
        near = [n for n in divisors if n <= given][-1]
        message = (
            f"stages.pretrain.micro_batch: {given} does not divide the {share} sequences of {sequence} a rank does each step"
        )
        raise UserError(f"{message} ({ranks} ranks)", f"--set stages.pretrain.micro_batch={near}")
    return [given]
