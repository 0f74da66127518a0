"""The layout search: which precision, micro-batch and accumulation a recipe runs with on a rig."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from windtunnel.model import GPTShape
from windtunnel.recipe import Layout, Pretrain, Recipe, UserError
from windtunnel.rig import Rig

from .constants import Constants
from .memory import Memory, memory
from .passes import Passes, plain
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

    A recursive GPT may compute supervision steps or blocks again.

    Raises:
        UserError: names the key and the value that works.
    """
    runs: dict[str, str | int] = {
        "shard": "optimizer",
        "recompute": "none" if recipe.trm is None else recipe.layout.recompute or "none",
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
    stage: Pretrain,
    shape: GPTShape,
    batch_tokens: int,
    rig: Rig,
    constants: Constants,
    passes: Passes | None = None,
    recompute: str | None = None,
) -> tuple[Candidate, list[str]]:
    """The fastest layout that fits, else the one that needs least memory; and notes on what was adjusted.

    Args:
        passes: of a recursive GPT. recompute: what of it is computed again; None: the search decides.

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
    passes = passes or plain(shape)
    # What a CPU was measured at depends on what else it did. The choice must not: another layout has other last bits.
    nominal = rig if rig.gpu else replace(rig, cpu_gflops=None)
    found = []
    for again, recorded in product(_recomputes(passes, recompute), _recorded(stage, passes, device)):
        for micro in _micro_batches(stage.micro_batch, share, ranks, shape.sequence):
            layout = Layout(
                ranks, micro, share // micro, shape.sequence, precision, compiled, device,
                recompute=again, recorded=recorded, fused=device == "cuda",
            )  # fmt: skip
            time = step_time(shape, layout, nominal, constants, passes)
            candidate = Candidate(layout, memory(shape, layout, constants, passes), time, limit)
            found.append(candidate)
            if not candidate.fits:
                break  # larger micro-batches need more
    fitting = [c for c in found if c.fits]
    if fitting:
        fastest = min(c.time.seconds for c in fitting)
        chosen = next(c for c in fitting if c.time.seconds <= SAME_SPEED * fastest)
    else:
        chosen = min(found, key=lambda c: c.peak_gib)
    if nominal is not rig:
        chosen = replace(chosen, time=step_time(shape, chosen.layout, rig, constants, passes))
    if not fitting:
        return chosen, notes
    return chosen, notes + _turned_down(chosen, found) + (_launched(chosen, stage) if passes.recursive else [])


def _recorded(stage: Pretrain, passes: Passes, device: str) -> tuple[bool, ...]:
    """Whether passes may be recorded as CUDA graphs, first what is preferred: it takes no more time, and a little memory."""
    if not passes.recursive or device != "cuda" or stage.graphs is False:
        return (False,)
    return (True,) if stage.graphs is True else (True, False)


def _launched(chosen: Candidate, stage: Pretrain) -> list[str]:
    """That the host launches every kernel where a recording was not asked to be left out, but its memory was too much."""
    layout = chosen.layout
    if layout.recorded or layout.device != "cuda" or stage.graphs != "auto":
        return []
    return ["passes are not recorded as CUDA graphs: what validation and the update need beside a recording is too much here"]


def _recomputes(passes: Passes, given: str | None) -> tuple[str, ...]:
    """What may be computed again, the cheapest first."""
    if given is not None:
        return (given,)
    return ("none", "step", "block") if passes.recursive else ("none",)


def _turned_down(chosen: Candidate, found: list[Candidate]) -> list[str]:
    """Why no larger micro-batch without recomputation: what it would need."""
    if not any(c.layout.recompute != "none" for c in found):
        return []
    kept = [c for c in found if c.layout.recompute == "none"]
    fits = {c.layout.micro_batch for c in kept if c.fits}
    larger = [c for c in kept if c.layout.micro_batch not in fits]
    too_big = min(larger, key=lambda c: (c.layout.micro_batch, c.peak_gib), default=None)
    if too_big is None:
        return []
    room = f"{too_big.peak_gib:.1f} of {too_big.limit_gib:.1f} GiB"
    needs = f"micro-batch {too_big.layout.micro_batch} with nothing recomputed would need {room}"
    how = "a smaller micro-batch does" if chosen.layout.recompute == "none" else f"recompute={chosen.layout.recompute} does"
    return [f"{needs} a rank: {how}, {chosen.peak_gib:.1f} GiB at micro-batch {chosen.layout.micro_batch}"]


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
