"""A plan's memory beside a trace's: what differs, by how much, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .types import Plan

# Relative difference of the peaks from which on it is explained; and share of the peak from which on a part of it is.
EXPLAINED = 0.05
LEAST_NAMED = 0.01


@dataclass(frozen=True)
class _Group:
    name: str
    planned: tuple[str, ...]
    traced: tuple[str, ...]


# The plan's components and the trace's kinds that hold the same.
GROUPS = (
    _Group("weights", ("weights", "master_weights"), ("weights",)),
    _Group(
        "optimizer states",
        ("optimizer_states", "muon_momentum", "adamw_moments", "averaged_weights"),
        ("optimizer_states",),
    ),
    _Group("gathered weights", ("gathered_weights",), ("gathered_weights",)),
    _Group("gradients and collectives", ("gradients", "communication"), ("gradients", "communication")),
    _Group(
        "activations and temporaries",
        ("activations", "states", "loss", "compute_weights", "optimizer_workspace", "recording"),
        ("activations", "loss", "compute_weights", "temporaries", "other"),
    ),
)
# What no trace sees: it lies outside the model or the step, or is the allocator's.
UNTRACED = ("beside_recording", "workspaces", "context", "nccl", "process", "fragmentation", "correction")


@dataclass(frozen=True)
class Part:
    """GiB of one rank at the two peaks, of the same kind of memory."""

    name: str
    planned_gib: float
    traced_gib: float


@dataclass(frozen=True)
class Opinion:
    """A trace beside a plan.

    Attributes:
        planned_gib, traced_gib: at the peaks, of what both count; `untraced_gib` is what only the plan counts.
        difference: (planned - traced) / traced.
        agrees: within 5 %.
        planned_moment, traced_moment: of the step, at which the peaks are.
        parts: kinds of memory at the two peaks.
        why: sentences about the difference; empty where they agree.
        trace: all phases, as `windtunnel.train.run_trace` gives them.
    """

    planned_gib: float
    traced_gib: float
    untraced_gib: float
    difference: float
    agrees: bool
    planned_moment: str
    traced_moment: str
    parts: tuple[Part, ...]
    why: tuple[str, ...]
    trace: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; keys are stable."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (what, planned, traced, off by) of every part, and the sum."""
        sums = [Part("both count", self.planned_gib, self.traced_gib)]
        rows = [
            (
                part.name,
                f"{part.planned_gib:.2f} GiB",
                f"{part.traced_gib:.2f} GiB",
                f"{part.planned_gib - part.traced_gib:+.2f} GiB",
            )
            for part in (*self.parts, *sums)
        ]
        rows.append(("only the plan counts", f"{self.untraced_gib:.2f} GiB", "", ""))
        return [*rows, ("peak at", self.planned_moment, self.traced_moment, "")]

    def remarks(self) -> list[tuple[str, str]]:
        """Tell what the trace says, and why it differs."""
        counts, blocks = self.trace["traced_blocks"], self.trace["blocks"]
        how = f"all {blocks} blocks" if counts == [blocks] else f"{counts[0]} and {counts[-1]} of {blocks} blocks"
        verdict = "agrees" if self.agrees else "differs"
        said = f"{verdict}: the plan says {self.difference:+.1%} ({how} traced in {self.trace['seconds']:.0f} s)"
        return [("trace", said), *(("why", sentence) for sentence in self.why)]


def second_opinion(plan: Plan, trace: dict[str, Any]) -> Opinion:
    """Compare at the peaks.

    trace: as `windtunnel.train.run_trace` gives it.
    """
    top = next(phase for phase in trace["phases"] if phase["name"] == trace["peak_phase"])["gib"]
    parts = tuple(Part(g.name, _sum(plan.components, g.planned), _sum(top, g.traced)) for g in GROUPS)
    parts = tuple(part for part in parts if part.planned_gib or part.traced_gib)
    planned, traced = sum(part.planned_gib for part in parts), sum(part.traced_gib for part in parts)
    difference = planned / traced - 1
    agrees = abs(difference) <= EXPLAINED
    return Opinion(
        planned_gib=planned,
        traced_gib=traced,
        untraced_gib=_sum(plan.components, UNTRACED),
        difference=difference,
        agrees=agrees,
        planned_moment=plan.peak_moment,
        traced_moment=trace["peak_phase"],
        parts=parts,
        why=() if agrees else tuple(_reasons(plan, parts, traced, trace["peak_phase"], top)),
        trace=trace,
    )


def _reasons(plan: Plan, parts: tuple[Part, ...], traced: float, phase: str, top: Mapping[str, float]) -> Iterable[str]:
    """Write a sentence for each kind of memory that makes up the difference, largest first."""
    for part in sorted(parts, key=lambda part: -abs(part.planned_gib - part.traced_gib)):
        more = part.planned_gib - part.traced_gib
        if abs(more) < LEAST_NAMED * traced:
            continue
        who = "the plan counts" if more > 0 else "the trace finds"
        yield f"{part.name}: {who} {abs(more):.2f} GiB more; {_reason(plan, part, more, phase, top)}"


def _reason(plan: Plan, part: Part, more: float, phase: str, top: Mapping[str, float]) -> str:
    at_work = top.get("temporaries", 0.0)
    if part.name == "activations and temporaries":
        if plan.layout.compile and ", block" in phase and at_work > 0.5 * abs(more):
            return (
                f"the trace has {at_work:.2f} GiB of temporaries of the block at work, one operation after the other; "
                "fused by a compiler they are fewer, or live longer"
            )
        if more < 0 and phase == "optimizer":
            return f"of it {at_work:.2f} GiB are temporaries of the update, which a compiler fuses and a trace does not"
        kinds = ", ".join(f"{kind} {top[kind]:.2f}" for kind in ("activations", "loss", "temporaries") if top.get(kind))
        own = ", ".join(
            f"{kind.replace('_', ' ')} {plan.components[kind]:.2f}" for kind in GROUPS[-1].planned if plan.components.get(kind)
        )
        return f"the plan has {own}, the trace {kinds}"
    if part.name in ("gathered weights", "gradients and collectives") and plan.peak_moment != phase:
        return f"the peaks are at other moments: {plan.peak_moment} in the plan, {phase} in the trace"
    if part.name in ("weights", "optimizer states"):
        return "they count parameters differently: please report this recipe"
    return "the plan's formula for them is off here; a measurement (--calibrate on a GPU) would tell"


def _sum(sizes: Mapping[str, float], names: Iterable[str]) -> float:
    return sum(sizes.get(name, 0.0) for name in names)
