"""A plan: what a recipe will do on a rig, or why it cannot. Plain data with stable JSON keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .layout import Layout


@dataclass(frozen=True)
class Alternative:
    """A plan near this one that works: what to change on the command line, and what that gives."""

    change: str
    why: str


@dataclass(frozen=True)
class Plan:
    """recipe x rig. GiB are 2^30 bytes a rank; hours, dollars and tokens_per_second are of the whole run and rig.

    `fits` False means refused, for the `reasons`. `needs_yes` asks for confirmation. `error` is the
    stated relative uncertainty of memory and time. `sources` says where each number came from.
    """

    recipe: str
    rig: str
    machine: str
    fits: bool
    needs_yes: bool
    depth: int
    params: int
    parameters: dict[str, int]
    vocab: int
    layout: Layout
    peak_gib: float
    limit_gib: float
    components: dict[str, float]
    step_seconds: float
    step_terms: dict[str, float]
    bound: str
    tokens_per_second: float
    mfu: float
    steps: int
    tokens: float
    derived_tokens: float
    hours: float
    dollars: float | None
    dollars_per_hour: float | None
    epochs: float | None
    corpus_tokens: float | None
    ended_by: str
    checkpoint_gib: float
    disk_gib: float
    disk_free_gib: float | None
    hyper: dict[str, float]
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    error: dict[str, float]
    sources: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; keys are stable."""
        return asdict(self) | {"layout": self.layout.as_dict()}
