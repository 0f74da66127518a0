"""What is planned of the package's own GPTs: how often tokens go through the blocks, which layouts may be, what is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from windtunnel.model import GPTShape
from windtunnel.recipe import Layout, Pretrain, Recipe, UserError
from windtunnel.rig import Rig

from . import engine_gpt
from .constants import GPTConstants
from .engine_gpt import Passes
from .gpt_steptime import step_seconds
from .memory import Memory
from .search import Candidate, Found, Promising
from .steptime import StepTime

# The host takes up to 3 ms for a pass through a block, longer than the GPU does where a plain model is as narrow as this: at
# depths 4, 6 and 8 recorded passes made 1.42, 1.19 and 1.01 times the tokens (benchmarks/results/throughput-small-h200.json).
NARROW = 512


@dataclass(frozen=True)
class GPTTraining:
    """Optimizer steps on a GPT, as the layout search sees them (see search.Trainable).

    Attributes:
        batch_tokens: that the rules ask for; whole sequences on every rank may be a few more.
        recompute: what of a recursive GPT is computed again; None: the search decides.
        shard: over the ranks: 'optimizer' states, or 'full': weights and gradients too.
    """

    shape: GPTShape
    passes: Passes
    stage: Pretrain
    batch_tokens: int
    recompute: str | None
    c: GPTConstants
    shard: str = "optimizer"

    # The layouts come in order of preference, and the largest micro-batch that fits is as good as any.
    preferred_first = True
    step_tokens = None

    def layouts(self, rig: Rig, ranks: int, promising: Promising) -> Iterator[Layout]:
        """Yield what may be, the preferred first: nothing computed again, passes recorded, small micro-batches.

        Raises:
            UserError: the recipe's micro_batch does not divide a rank's share of the batch, or fp8 is not to be had.
        """
        share, _ = self.share(ranks)
        precision = choose_precision(self.stage, rig)
        compiled = rig.gpu is not None and rig.gpu.capability >= (7, 0) if self.stage.compile == "auto" else self.stage.compile
        device = "cuda" if rig.gpu else "cpu"
        recomputes = ("none", "step", "block") if self.passes.repeat else ("none",)
        if self.recompute is not None:
            recomputes = (self.recompute,)
        for again, recorded in product(recomputes, self._recorded(device, precision)):
            for micro in self._micro_batches(share, ranks):
                yield Layout(
                    ranks, micro, share // micro, self.shape.sequence, precision, compiled, device,
                    shard=self.shard, recompute=again, recorded=recorded, fused=device == "cuda",
                )  # fmt: skip

    def least_gib(self, layout: Layout) -> float:
        """Return 0: kinds of layout are too few to leave any out."""
        return 0.0

    def memory(self, layout: Layout) -> Memory:
        """Return a rank's memory over a step."""
        return engine_gpt.memory(self.shape, layout, self.c, self.passes)

    def time(self, layout: Layout, rig: Rig) -> StepTime:
        """Return a step's seconds."""
        return step_seconds(self.shape, layout, rig, self.c, self.passes)

    def host_gib(self, layout: Layout, rig: Rig) -> float:
        """Return the GiB of CPU memory that states take on a node: none are kept there."""
        return 0.0

    def limit_gib(self, rig: Rig) -> float:
        """Return the GiB that one rank may use."""
        return rig.gpu.memory_gib * self.c.usable_share if rig.gpu else rig.ram_gib * self.c.cpu_usable_share

    def share(self, ranks: int) -> tuple[int, list[str]]:
        """Return the sequences of a step for each rank, the same whole number on all of them, and what was adjusted."""
        sequences = max(1, self.batch_tokens // self.shape.sequence)
        share, given, notes = -(-sequences // ranks), self.stage.micro_batch, []
        if share * ranks != sequences:
            notes.append(f"batch raised from {sequences} to {share * ranks} sequences, so that {ranks} ranks get equal shares")
        if given is not None and given > share:
            notes.append(f"micro-batch {given} cut to the {share} sequences that each of {ranks} ranks does a step")
        return share, notes

    def notes(self, found: Found) -> list[str]:
        """Say what was adjusted, and what was turned down."""
        best = found.best
        notes = self.share(best.layout.ranks)[1]
        if not best.fits:
            return notes
        if best.layout.shard == "full":
            notes.append("weights and gradients are gathered and reduced part by part, which nobody has measured for a GPT yet")
        return notes + _turned_down(best, found.tried) + self._launched(best.layout)

    def _recorded(self, device: str, precision: str) -> tuple[bool, ...]:
        """Whether passes may be recorded as CUDA graphs, first what is preferred: it takes no more time, and a little memory."""
        if device != "cuda" or self.stage.graphs is False:
            return (False,)
        if self.stage.graphs is True:
            return (True,)
        narrow = self.shape.dim <= NARROW and self.shard != "full" and precision != "fp8"
        return (True, False) if self.passes.repeat or narrow else (False,)

    def _micro_batches(self, share: int, ranks: int) -> list[int]:
        small = [n for n in range(1, math.isqrt(share) + 1) if share % n == 0]
        divisors = sorted({*small, *(share // n for n in small)})
        if self.stage.micro_batch is None:
            return divisors
        given = min(self.stage.micro_batch, share)
        if given not in divisors:
            near = [n for n in divisors if n <= given][-1]
            batch = f"the {share} sequences of {self.shape.sequence} a rank does each step ({ranks} ranks)"
            raise UserError(
                f"stages.pretrain.micro_batch: {given} does not divide {batch}", f"--set stages.pretrain.micro_batch={near}"
            )
        return [given]

    def _launched(self, layout: Layout) -> list[str]:
        """Tell that the host launches every kernel where a recording was not asked to be left out, but took too much memory."""
        if not self.passes.repeat and self.shape.dim > NARROW:
            return ["of recorded passes of plain models those of narrower ones alone were measured"] if layout.recorded else []
        if layout.recorded or layout.device != "cuda" or self.stage.graphs != "auto":
            return []
        return ["passes are not recorded as CUDA graphs: what validation and the update need beside a recording is too much here"]


def choose_precision(stage: Pretrain, rig: Rig) -> str:
    """Return the recipe's precision on this rig.

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


def ways_to_shard(recipe: Recipe, rig: Rig) -> tuple[str, ...]:
    """Return what ranks may share, the preferred first: optimizer states, and where those leave too little room all they hold.

    Weights and gradients are whole on every rank where passes are recorded or blocks are applied again and again. One rank
    shares nothing, whatever it is called.
    """
    if rig.gpus <= 1 or recipe.trm is not None:
        return ("optimizer",)
    if recipe.layout.shard is not None:
        return (recipe.layout.shard,)
    return ("optimizer",) if recipe.pretrain.graphs is True else ("optimizer", "full")


def check_own_layout(recipe: Recipe, rig: Rig) -> None:
    """Refuse what the recipe's `layout` asks for beyond what trains a GPT: data-parallel ranks that share what they hold.

    A recursive GPT may compute supervision steps or blocks again, and shares optimizer states alone.

    Raises:
        UserError: names the key and the value that works.
    """
    full = recipe.layout.shard == "full" and recipe.trm is None
    runs: dict[str, str | int] = {
        "shard": "full" if full else "optimizer",
        "recompute": recipe.layout.recompute or "none" if recipe.recomputes else "none",
        "offload": "none",
        "tensor": 1,
        "expert": 1,
        "pipeline": 1,
    }
    for key, value in runs.items():
        asked = getattr(recipe.layout, key)
        # On one rank nothing is sharded whatever it is called.
        if asked not in (None, value) and not (key == "shard" and rig.gpus <= 1):
            kind = "recursive models" if recipe.trm is not None else "models of kind gpt"
            share = "optimizer states" if recipe.trm is not None else "optimizer states, or weights and gradients too"
            raise UserError(
                f"layout.{key}: {asked}: {kind} are trained on data-parallel ranks that share {share}",
                f"--set layout.{key}={value}",
            )
    if full and rig.gpus > 1 and recipe.pretrain.graphs is True:
        raise UserError(
            "stages.pretrain.graphs: true with layout.shard: full: passes that gather weights from other ranks are not recorded",
            "--set stages.pretrain.graphs=auto, or --set layout.shard=optimizer",
        )


def passes_of(recipe: Recipe, shape: GPTShape) -> Passes:
    """Count the passes of a recipe's model with this shape."""
    recursion = shape.recursion
    if recipe.trm is None or recursion is None:
        return engine_gpt.plain(shape)
    given = recipe.trm.resolved
    graded = shape.layers * recursion.gradient_passes
    latent, whole_stack = recursion.scheme != "looped", recursion.scheme != "layerwise"
    blind = recursion.passes - recursion.gradient_passes
    return Passes(
        applications=shape.applications,
        graded=graded * recursion.supervision,
        heads=recursion.supervision,
        step=graded,
        joined=joined_steps(recursion.supervision, given.detach_from),
        unit=shape.layers if whole_stack else 1,
        # The answer that the head reads, unless it is the state itself; and a block's next input, which no block takes.
        ends={"layerwise": 2, "two_latent": 1, "looped": 0}[recursion.scheme],
        seams=0 if whole_stack else shape.layers * blind // recursion.cycle_passes,
        combined=shape.applications if latent else 0,
        carried=2 if latent else 1,
        updates=recursion.supervision if given.updates == "each" else 1,
        averaged=given.ema is not None,
    )


def joined_steps(supervision: int, detach_from: int) -> int:
    """Return the most supervision steps between two detach boundaries: states are detached after each from `detach_from` on."""
    return min(supervision, detach_from + 1)


def weights_gib(shape: GPTShape) -> float:
    """Return the GiB of fp32 weights, 4 B a parameter."""
    return 4.0 * shape.parameters / 2**30


def checkpoint_gib(shape: GPTShape, averaged: bool = False) -> float:
    """Return the GiB of weights and optimizer states: momentum of the matrices, two moments of the rest, all fp32.

    averaged: averages of the weights are kept beside them.
    """
    other = shape.parameters - shape.matrix_parameters
    weights = 2 if averaged else 1
    return weights * weights_gib(shape) + (4.0 * shape.matrix_parameters + 8.0 * other) / 2**30


def _turned_down(chosen: Candidate, found: Sequence[Candidate]) -> list[str]:
    """Tell why no larger micro-batch without recomputation was taken: what it would need."""
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
