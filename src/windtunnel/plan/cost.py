"""How long a run is: the budget's limits in steps, hours and dollars, whichever comes first."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.recipe import Budget, Recipe
from windtunnel.rig import Rig

from .constants import Constants
from .search import Candidate

# Repeating data up to 4 times costs almost nothing, the value is gone by about 16 (Muennighoff et al. 2023).
EPOCHS_WARN = 4.0
EPOCHS_ASK = 16.0


@dataclass(frozen=True)
class Pace:
    """Wall time of a run: what happens once, and seconds a step with its share of validation."""

    startup_seconds: float
    step_seconds: float

    def hours(self, steps: int) -> float:
        """Hours of a run of so many steps."""
        return (self.startup_seconds + steps * self.step_seconds) / 3600

    def steps(self, hours: float) -> int:
        """Whole steps within so many hours; 0 where not one fits."""
        return max(0, int((hours * 3600 - self.startup_seconds) / self.step_seconds * (1 + 1e-9)))


@dataclass(frozen=True)
class Length:
    """A run's length and the limit that ends it."""

    steps: int
    tokens: float
    hours: float
    dollars: float | None
    epochs: float | None
    ended_by: str


def pace(recipe: Recipe, candidate: Candidate, constants: Constants, corpus_tokens: float | None) -> Pace:
    """The run's pace: validation is spread over the steps between two of them."""
    layout, step = candidate.layout, candidate.time.seconds
    stage = recipe.pretrain
    tokens = float(stage.validation_tokens)
    if corpus_tokens is not None:
        held_out = recipe.data.validation
        tokens = min(tokens, corpus_tokens * held_out / (1 - held_out))
    validation = constants.validation_share * candidate.time.validation * step * tokens / layout.batch_tokens
    every = stage.validate_every
    between = every.steps if every.steps else max(1.0, (every.seconds or 0.0) / step)
    startup = constants.cpu_startup_seconds if layout.device == "cpu" else constants.startup_seconds
    return Pace(startup, step + validation / between)


def budget_hours(budget: Budget, rig: Rig) -> tuple[float | None, str]:
    """(hours that money and time allow, which of them); None where neither limits."""
    return min(time_limits(budget, rig), default=(None, ""))


def time_limits(budget: Budget, rig: Rig) -> list[tuple[float, str]]:
    """Return (hours, key of the budget) of each limit in time or money. Dollars are none where an hour costs nothing."""
    limits = [(budget.hours, "budget.hours")] if budget.hours is not None else []
    if budget.dollars is not None and rig.dollars_per_hour:
        limits.append((budget.dollars / rig.dollars_per_hour, "budget.dollars"))
    return limits


def budget_notes(budget: Budget, rig: Rig, batch_tokens: int, corpus_tokens: float | None) -> list[str]:
    """Say which limits of the budget do not limit the run on this rig, or cannot be kept to."""
    notes = []
    if budget.dollars is not None and rig.dollars_per_hour == 0:
        notes.append(f"budget.dollars does not limit the run: {rig.name} costs nothing ({rig.price_note})")
    elif budget.dollars is not None and rig.dollars_per_hour is None:
        notes.append(f"budget.dollars cannot limit the run: {rig.price_note or 'no price known'}")
    tokens, name = budget_tokens(budget, batch_tokens, corpus_tokens)
    if tokens is not None and tokens < batch_tokens:
        notes.append(f"{name} is {tokens:,.0f} tokens, less than the {batch_tokens:,} of one step: one step is done")
    return notes


def budget_tokens(budget: Budget, batch_tokens: int, corpus_tokens: float | None) -> tuple[float | None, str]:
    """(tokens that the budget's tokens, steps or epochs allow, which of them); None where none limits."""
    limits = [(float(budget.tokens), "budget.tokens")] if budget.tokens is not None else []
    if budget.steps is not None:
        limits.append((float(budget.steps) * batch_tokens, "budget.steps"))
    if budget.epochs is not None and corpus_tokens:
        limits.append((budget.epochs * corpus_tokens, "budget.epochs"))
    return min(limits) if limits else (None, "")


def run_length(
    recipe: Recipe,
    rig: Rig,
    batch_tokens: int,
    derived_tokens: float,
    speed: Pace,
    corpus: float | None,
    derived_by: str = "stages.pretrain.tokens_per_parameter",
) -> Length:
    """Steps until the first limit of the budget, else the derived tokens, which `derived_by` names."""
    limits = []
    hours, why = budget_hours(recipe.budget, rig)
    if hours is not None:
        limits.append((speed.steps(hours), why))
    tokens, why = budget_tokens(recipe.budget, batch_tokens, corpus)
    if tokens is not None:
        limits.append((round_steps(tokens, batch_tokens), why))
    if not limits:
        limits.append((round_steps(derived_tokens, batch_tokens), derived_by))
    steps, ended_by = min(limits)
    total = speed.hours(steps)
    dollars = None if rig.dollars_per_hour is None else total * rig.dollars_per_hour
    trained = float(steps * batch_tokens)
    return Length(steps, trained, total, dollars, trained / corpus if corpus else None, ended_by)


def round_steps(tokens: float, batch_tokens: int) -> int:
    """Whole steps within a number of tokens, at least one."""
    return max(1, int(tokens / batch_tokens * (1 + 1e-9)))
