"""What a step's and a validation's results are logged as; names stand in `windtunnel.run.METRICS`."""

from __future__ import annotations

from itertools import pairwise

from windtunnel.evaluate import Validation
from windtunnel.run import of_step

from .step import StepResult, Supervised


def step_readings(result: StepResult) -> dict[str, float]:
    """Loss and gradient norm; of a recursive model also those of each supervision step, and what they say together."""
    values = {"loss": result.loss, "gradient_norm": result.gradient_norm}
    return values if result.supervised is None else values | _supervised(result.supervised)


def _supervised(found: Supervised) -> dict[str, float]:
    values = {of_step("loss", i): loss for i, loss in enumerate(found.losses)}
    values |= {of_step("gradient_norm", i): norm for i, norm in enumerate(found.gradient_norms)}
    values["objective"] = found.objective
    if len(found.losses) > 1:
        values |= {"refinement": refinement(found.losses), "supervision_order": float(in_order(found.losses))}
    if found.halting is not None:
        values["halting_loss"], values["halting_accuracy"] = found.halting
    if found.solved:
        values["solved"] = found.solved[-1]
        values |= {of_step("solved", i): share for i, share in enumerate(found.solved)}
    return values


def validation_readings(result: Validation) -> dict[str, float]:
    """Loss and bits per byte; of a recursive model also after each supervision step."""
    values = {"validation_loss": result.loss, "validation_bits_per_byte": result.bits_per_byte}
    for i, step in enumerate(result.steps):
        values[of_step("validation_loss", i)] = step.loss
        values[of_step("bits_per_byte", i)] = step.bits_per_byte
    return values


def refinement(losses: tuple[float, ...]) -> float:
    """Percent by which the last of the losses is below the first."""
    return 100.0 * (losses[0] - losses[-1]) / losses[0] if losses[0] else 0.0


def in_order(losses: tuple[float, ...]) -> bool:
    """Whether each loss is below the one before."""
    return all(later < earlier for earlier, later in pairwise(losses))
