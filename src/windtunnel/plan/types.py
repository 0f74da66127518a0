"""A plan: what a recipe will do on a rig, or why it cannot. Plain data with stable JSON keys."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from windtunnel.recipe import Layout

# Components that lie outside PyTorch's allocator: what it reserves is the peak without them.
OUTSIDE_ALLOCATOR = ("context", "nccl", "process")


@dataclass(frozen=True)
class Alternative:
    """A plan near this one that works: what to change on the command line, and what that gives."""

    change: str
    why: str

    @property
    def elsewhere(self) -> bool:
        """Whether it needs another rig."""
        return "--rig " in self.change

    @property
    def rig(self) -> str | None:
        """The other rig, where nothing but that has to change."""
        words = shlex.split(self.change)
        return words[1] if len(words) == 2 and words[0] == "--rig" else None


@dataclass(frozen=True)
class Moment:
    """Memory of one rank at one point of a step: GiB by component, `seconds` after the step's beginning."""

    name: str
    seconds: float
    components: dict[str, float]

    @property
    def gib(self) -> float:
        """Sum of the components."""
        return sum(self.components.values())


@dataclass(frozen=True)
class Option:
    """One layout that fits: memory of a rank, seconds of a step, and what the same run would take and cost with it."""

    layout: Layout
    peak_gib: float
    step_seconds: float
    hours: float
    dollars: float | None


@dataclass(frozen=True)
class Size:
    """One number of GPUs on which the stage fits.

    Attributes:
        rig: as `--on` takes it. gpus: of it.
        shared: how learners and engines share them. layout: the learners'.
        peak_gib, limit_gib, error: of a learner's GPU, and the stated relative error of the former.
        step_seconds: of a round.
        least: whether no smaller number fits. recommended: whether this is the one to take.
    """

    rig: str
    gpus: int
    shared: str
    layout: Layout
    peak_gib: float
    limit_gib: float
    error: float
    step_seconds: float
    least: bool = False
    recommended: bool = False

    @property
    def roomy(self) -> bool:
        """Whether it fits by the stated error too."""
        return self.peak_gib * (1 + self.error) <= self.limit_gib

    @property
    def gpu_seconds(self) -> float:
        """What a round takes of all GPUs together, and so what it costs."""
        return self.gpus * self.step_seconds

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; keys are stable."""
        return asdict(self) | {"layout": self.layout.as_dict(), "gpu_seconds": self.gpu_seconds}


@dataclass(frozen=True)
class Role:
    """One kind of process of a reinforcement-learning round, on GPUs of its own or in turn with the others.

    components, peak_gib and limit_gib are of one GPU; `seconds` is its part of a round by term; `facts`
    are further numbers with their units in the key (sequences_at_once, tokens_per_second, ...).
    """

    gpus: int
    layout: Layout
    components: dict[str, float]
    peak_gib: float
    limit_gib: float
    seconds: dict[str, float]
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """recipe x rig. GiB are 2^30 bytes a rank; hours, dollars and tokens_per_second are of the whole run and rig.

    `fits` False means refused, for the `reasons`. `needs_yes` asks for confirmation. `error` is the
    stated relative uncertainty of memory and time. `sources` says where each number came from.

    `method` is 'pretrain', 'full', 'lora', 'qlora', 'fp8-lora', 'fp8-experts-lora' or 'grpo'; `depth` is None for models
    that are not ours. `components` is the timeline's moment `peak_moment`; `limit_gib` is the limit of
    the rank that needs most. step_seconds = sum(step_terms) - hidden_seconds, and for GRPO a step is a round.
    `options` are the best layouts that fit, fastest and so cheapest first (of models that are not ours).
    `sizes` are the numbers of GPUs of the rig's kind that fit, of GRPO; None: not looked for.
    `startup` is seconds by part, once a run. `roles` is empty but for GRPO: 'learner', 'engine'.
    `correction` is what the user's own measurements changed: memory_gib, time_factor; empty where they did not.
    """

    recipe: str
    rig: str
    machine: str
    fits: bool
    needs_yes: bool
    model: str
    method: str
    depth: int | None
    params: int
    parameters: dict[str, int]
    vocab: int
    layout: Layout
    peak_gib: float
    limit_gib: float
    components: dict[str, float]
    timeline: tuple[Moment, ...]
    peak_moment: str
    step_seconds: float
    step_terms: dict[str, float]
    hidden_seconds: float
    bound: str
    tokens_per_second: float
    mfu: float
    steps: int
    tokens: float
    derived_tokens: float
    startup: dict[str, float]
    hours: float
    dollars: float | None
    dollars_per_hour: float | None
    epochs: float | None
    corpus_tokens: float | None
    ended_by: str
    ends: str
    checkpoint_gib: float
    disk_gib: float
    disk_free_gib: float | None
    hyper: dict[str, float]
    roles: dict[str, Role]
    options: tuple[Option, ...]
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    sizes: tuple[Size, ...] | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    error: dict[str, float]
    sources: dict[str, str]
    correction: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return 'does not fit' of a plan that is refused, for whatever reason, else what `memory_verdict` says."""
        return self.memory_verdict if self.fits else "does not fit"

    @property
    def memory_verdict(self) -> str:
        """Return 'fits', 'tight' where the memory's stated error reaches beyond the limit, or 'does not fit'."""
        if self.peak_gib > self.limit_gib:
            return "does not fit"
        return "tight" if self.peak_gib * (1 + self.error["memory"]) > self.limit_gib else "fits"

    @property
    def reserved_gib(self) -> float:
        """What PyTorch's allocator reserves at the peak: the peak without context, communicators and the process itself."""
        return self.peak_gib - sum(self.components.get(name, 0.0) for name in OUTSIDE_ALLOCATOR)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; keys are stable. What cannot be run takes no hours and costs no dollars."""
        roles = {name: asdict(role) | {"layout": role.layout.as_dict()} for name, role in self.roles.items()}
        options = [asdict(option) | {"layout": option.layout.as_dict()} for option in self.options]
        sizes = None if self.sizes is None else [size.to_json() for size in self.sizes]
        layouts: dict[str, Any] = {"layout": self.layout.as_dict(), "roles": roles, "options": options, "sizes": sizes}
        untaken = {"hours": None, "dollars": None}
        if not self.fits:
            layouts |= untaken | {"options": [option | untaken for option in options]}
        return asdict(self) | layouts | {"reserved_gib": self.reserved_gib, "verdict": self.verdict}
