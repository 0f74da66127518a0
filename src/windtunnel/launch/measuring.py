"""Measurements into plans: ten full-size steps beside their plan, and what a finished run measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.plan import Plan, make_plan, observe, refuse, resolve, user_path
from windtunnel.recipe import GateFailed, GPTModel, Recipe, UserError
from windtunnel.rig import Rig
from windtunnel.run import MetricsReader, RunFolder

from .trial import Trial, try_steps

STEPS = 10
WARM_UP = 10
"""First steps of a run that are not counted: they compile and allocate."""
LEAST_STEPS = 20
MOST_STEPS = 500
HERE = "here"
BELIEVABLE = 1.5
"""A run slower or faster than its plan by more than this was held up by something else, or too small to load the GPU."""


@dataclass(frozen=True)
class Calibration:
    """A plan, what was measured of it, the plan as it is now, and the file (None: corrections are switched off)."""

    plan: Plan
    trial: Trial
    after: Plan
    file: Path | None

    @property
    def steps(self) -> int:
        """Return how many steps were timed."""
        return self.trial.steps

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (what, planned, measured, off by) of memory and time."""
        gib, seconds = self.trial.reserved_gib or 0.0, self.trial.step_seconds or 0.0
        return [
            ("memory a rank", f"{self.plan.reserved_gib:.2f} GiB", f"{gib:.2f} GiB", _off(self.plan.reserved_gib, gib)),
            ("step", _milliseconds(self.plan.step_seconds), _milliseconds(seconds), _off(self.plan.step_seconds, seconds)),
        ]

    def remarks(self) -> list[tuple[str, str]]:
        """Return what became of the measurement."""
        if self.file is None:
            return [("note", "not kept: corrections are switched off")]
        now = f"{self.after.reserved_gib:.2f} GiB reserved and {_milliseconds(self.after.step_seconds)} a step"
        stated = f"±{self.after.error['memory']:.0%} and ±{self.after.error['time']:.0%}"
        return [("now", f"plans here say {now} ({stated})"), ("file", str(self.file))]

    def to_json(self) -> dict[str, Any]:
        """Return the measurement beside the plan as JSON values; its keys are stable."""
        return {
            "recipe": self.plan.recipe,
            "planned": {"reserved_gib": self.plan.reserved_gib, "step_seconds": self.plan.step_seconds},
            "measured": self.trial.to_json(),
            "corrected": {"reserved_gib": self.after.reserved_gib, "step_seconds": self.after.step_seconds},
            "error": self.after.error,
            "file": None if self.file is None else str(self.file),
        }


def calibrate(recipe: Recipe, rigs: Sequence[Rig], *, say: Callable[[str], None]) -> Calibration:
    """Run full-size steps of the plan for this machine's GPUs, compare, and keep the measurement for later plans.

    Raises:
        UserError: no GPU here, another rig than here, or a plan that does not fit.
        GateFailed: the steps did not run: out of memory, or a process that crashed or hung.
    """
    rig = _measurable(rigs)
    assert rig.gpu is not None
    if recipe.rl is not None:
        raise UserError(
            "what is measured are training steps, and this recipe does reinforcement learning",
            "windtunnel plan finetune --calibrate",
        )
    if isinstance(recipe.model, GPTModel):
        recipe = resolve(recipe, rig)
    plan = make_plan(recipe, rig)
    if not plan.fits:
        raise refuse(plan)
    trial = try_steps(recipe, plan.layout, steps=STEPS, vocab=plan.vocab, say=say)
    if trial.failure or trial.reserved_gib is None or trial.step_seconds is None:
        raise _failed(plan, trial)
    # Kept by GPU: plans for the same kind of GPU anywhere are corrected by it.
    file = observe(
        plan.to_json(),
        rig.gpu.name,
        memory_gib=trial.reserved_gib,
        step_seconds=trial.step_seconds,
        steps=trial.steps,
        versions=trial.versions,
    )
    # Planned again, so that the user sees what the measurement changed.
    return Calibration(plan, trial, make_plan(recipe, rig), file)


def _failed(plan: Plan, trial: Trial) -> GateFailed:
    message = f"the steps of {plan.recipe} did not run on {plan.rig}: {trial.failure or 'nothing was measured'}"
    if trial.out_of_memory:
        message = f"{message}; the plan said {plan.peak_gib:.1f} GiB"
        return GateFailed(message, "--set a smaller micro_batch, then calibrate with that")
    return GateFailed(message, "put right what the message names, then try again")


def _measurable(rigs: Sequence[Rig]) -> Rig:
    rig = rigs[0]
    if len(rigs) > 1 or rig.name != HERE:
        named = ", ".join(r.name for r in rigs)
        raise UserError(f"--calibrate measures this machine, not {named}", "leave --on out, or run it on that rig")
    if rig.gpu is None:
        raise UserError("--calibrate needs a GPU, and this machine has none", "run it on the rig that you plan for")
    return rig


def observe_run(run: Path) -> Path | None:
    """Add what a run on GPUs measured to the corrections.

    None where it was too short, on a CPU, too far from its plan to tell about the GPU, or they are switched off.

    Raises:
        UserError: the run's metrics or the file of corrections cannot be read or written.
    """
    manifest = RunFolder.open(run).manifest
    plan, rig = manifest["plan"], manifest["rig"]
    gpu = (rig.get("gpu") or {}).get("name")
    if gpu is None or plan.get("reserved_gib") is None or user_path(gpu) is None:
        return None
    with MetricsReader(run / "metrics.sqlite") as metrics:
        # The latest steps: a run that was resumed on another machine has measured this one in the end.
        seconds = [point.value for point in metrics.series("step_seconds")][WARM_UP:][-MOST_STEPS:]
        memory = [point.value for point in metrics.series("memory_gib")][WARM_UP:][-MOST_STEPS:]
    if len(seconds) < LEAST_STEPS or not memory:
        return None
    step = statistics.median(seconds)
    # Of the plan without corrections: else each run would be held against those of the runs before it.
    planned = plan["step_seconds"] / (plan.get("correction") or {}).get("time_factor", 1.0)
    if not 1 / BELIEVABLE <= step / planned <= BELIEVABLE:
        return None
    return observe(plan, gpu, memory_gib=max(memory), step_seconds=step, steps=len(seconds))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def _off(planned: float, measured: float) -> str:
    return f"{planned / measured - 1:+.1%}"
