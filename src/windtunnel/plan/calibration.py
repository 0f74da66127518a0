"""Measurements on the user's own GPUs, kept in a small file a GPU type, that correct plans for that type.

A file holds fitted constants and observations, both by family of models: 'gpt' (the package's own) and 'hf' (Hugging Face's,
which files of earlier versions call 'causal'). The package ships files of constants in the same format; see docs/plan-json.md.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from windtunnel.files import write_atomic
from windtunnel.recipe import Layout, UserError

if TYPE_CHECKING:
    from .constants import Constants

FORMAT = 1
RENAMED = {"causal": "hf"}
# Environment: a folder of corrections, or CALIBRATION_OFF.
CALIBRATION = "WINDTUNNEL_CALIBRATION"
CALIBRATION_OFF = "none"
# Observations kept in a file: the newest of each configuration, the oldest dropped first.
KEPT = 64
LEAST_ERROR = {"memory": 0.02, "time": 0.03}
# Share of a plan's memory that a correction takes away at most: too little memory costs a run, too much only a smaller batch.
MOST_SAVED = 0.15

_ABOUT = "delete it and measure again (windtunnel plan RECIPE --calibrate), or leave it out: --calibration none"
AnyConstants = TypeVar("AnyConstants", bound="Constants")


Measure = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Observation(BaseModel):
    """One configuration as planned without correction and as measured: GiB reserved by one rank, seconds a step."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    family: Annotated[Literal["gpt", "hf"], BeforeValidator(lambda name: RENAMED.get(name, name))]
    recipe: str
    model: str
    layout: str
    gpus: int
    planned_gib: Measure
    measured_gib: Measure
    planned_seconds: Measure
    measured_seconds: Measure
    steps: int
    when: str
    versions: dict[str, str] = {}

    @property
    def configuration(self) -> tuple[str, str, str, int]:
        """What makes another observation one of the same thing."""
        return (self.family, self.model, self.layout, self.gpus)


@dataclass(frozen=True)
class Correction:
    """What observations of a family say: GiB to add to a rank's memory, a factor for time, and the errors that remain."""

    memory_gib: float
    time_factor: float
    memory_error: float
    time_error: float
    count: int


def corrected(constants: AnyConstants, gpu: str, family: str) -> AnyConstants:
    """Constants of a GPU with the user's observations of that GPU applied, where there are any.

    Raises:
        UserError: the user's file is damaged.
    """
    path = user_path(gpu)
    if path is None or not path.is_file():
        return constants
    data = _read(path)
    # Fitted constants come first: observations were made beside plans without a correction, not without these.
    own = data["constants"].get(family, {})
    if own:
        constants = override(constants, own, str(path))
    observations = [o for o in data["observations"] if o.family == family]
    if not observations:
        return constants
    found = correction(observations, constants.memory_error, constants.time_error)
    how = f"{found.memory_gib:+.2f} GiB and x {found.time_factor:.3f}"
    times = f"{found.count} measurement{'s' if found.count > 1 else ''} on {gpu}"
    changes: dict[str, Any] = {
        "extra_gib": found.memory_gib,
        "time_factor": found.time_factor,
        "memory_error": found.memory_error,
        "time_error": found.time_error,
        "source": f"{constants.source}; {how} by {times} ({path.parent.name}/{path.name})",
    }
    return replace(constants, **changes)


def correction(observations: list[Observation], memory_error: float, time_error: float) -> Correction:
    """Median difference in memory and median ratio of time; the stated errors shrink with the number of observations.

    An error never falls below what the observations themselves still miss after the correction.
    """
    from statistics import median  # reading nothing, as most plans do, needs none of it

    # Medians: one measurement beside another program on the GPU must not move the others.
    extra = median(o.measured_gib - o.planned_gib for o in observations)
    factor = median(o.measured_seconds / o.planned_seconds for o in observations)
    memory_left = max(abs(o.planned_gib + extra - o.measured_gib) / o.measured_gib for o in observations)
    time_left = max(abs(o.planned_seconds * factor - o.measured_seconds) / o.measured_seconds for o in observations)
    # The one that is added stands for the error that the plan states by itself, which a single measurement does not undo.
    shrink = 1 / math.sqrt(1 + len(observations))
    return Correction(
        extra,
        factor,
        max(LEAST_ERROR["memory"], memory_left, memory_error * shrink),
        max(LEAST_ERROR["time"], time_left, time_error * shrink),
        len(observations),
    )


def with_correction(components: dict[str, float], extra_gib: float) -> dict[str, float]:
    """GiB by component with the correction as one of them, where there is one; what it takes away is bounded."""
    if extra_gib == 0:
        return components
    return components | {"correction": max(extra_gib, -MOST_SAVED * sum(components.values()))}


def correction_of(components: Mapping[str, float], time_factor: float) -> dict[str, float]:
    """Return a plan's `correction`: what measurements changed in it; empty where they changed nothing."""
    if "correction" not in components and time_factor == 1.0:
        return {}
    return {"memory_gib": components.get("correction", 0.0), "time_factor": time_factor}


def observe(
    plan: Mapping[str, Any],
    gpu: str,
    *,
    memory_gib: float,
    step_seconds: float,
    steps: int,
    versions: Mapping[str, str] | None = None,
) -> Path | None:
    """Add what was measured under a plan to the user's calibration of that GPU; None where that is switched off.

    plan: Plan.to_json() of what ran, with whatever correction it had. memory_gib: most that PyTorch reserved on a rank.
    step_seconds: median of the steps after warming up.

    Raises:
        UserError: a figure that is no measurement; the file is damaged or cannot be written.
    """
    path = user_path(gpu)
    if path is None:
        return None
    correction = plan.get("correction") or {}
    layout = Layout.of_plan(plan["layout"])
    values = dict(
        family="hf" if plan["depth"] is None else "gpt",
        recipe=plan["recipe"],
        model=plan["model"],
        layout=layout.describe(),
        gpus=layout.ranks,
        # Without the correction that it was planned with: or each measurement would correct the last one's correction.
        planned_gib=plan["reserved_gib"] - correction.get("memory_gib", 0.0),
        measured_gib=memory_gib,
        planned_seconds=plan["step_seconds"] / correction.get("time_factor", 1.0),
        measured_seconds=step_seconds,
        steps=steps,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=dict(versions or {}),
    )
    observation = _observation(values, f"calibration of {gpu} with {plan['recipe']}")
    data = _read(path) if path.is_file() else {"constants": {}, "observations": []}
    # The newest of a configuration stands for it: packages and drivers have changed since the others.
    others = [o for o in data["observations"] if o.configuration != observation.configuration]
    _write(path, gpu, data["constants"], [*others, observation][-KEPT:])
    return path


def user_path(gpu: str) -> Path | None:
    """Return the user's calibration of a GPU; None where $WINDTUNNEL_CALIBRATION, which may name another folder, is 'none'."""
    named = os.environ.get(CALIBRATION, "").strip()
    if named.lower() == CALIBRATION_OFF:
        return None
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "windtunnel" / "calibration"
    folder = Path(named).expanduser() if named else home
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', gpu)}.json"


def shipped_constants(gpu: str, family: str) -> dict[str, Any]:
    """Constants of a family on a GPU that ship with the package; empty where there are none."""
    file = resources.files(__package__) / "calibration" / f"{gpu}.json"
    if not file.is_file():
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8"))["constants"].get(family, {}))


def override(constants: AnyConstants, values: Any, where: str) -> AnyConstants:
    """Constants with some replaced, checked by name and type.

    Raises:
        UserError: a key that is no constant, or a value of another type.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected a mapping of constants, found {type(values).__name__}", _ABOUT)
    kinds = {f.name: type(getattr(constants, f.name)) for f in fields(constants)}
    for key, value in values.items():
        if key not in kinds:
            raise UserError(f"{where}: {key}: not a constant of the planner", f"one of: {', '.join(kinds)}")
        # JSON's true is a number to Python, and NaN and Infinity are none that a plan can be made with.
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if (kinds[key] is str) != isinstance(value, str) or not (number or isinstance(value, str)):
            expected = "text" if kinds[key] is str else "a finite number"
            raise UserError(f"{where}: {key}: expected {expected}, got {value!r}", _ABOUT)
    changes: dict[str, Any] = {"source": where} | values
    return replace(constants, **changes)


def _read(path: Path) -> dict[str, Any]:
    """Read a calibration file: {'constants': by family, 'observations': list of Observation}. Raises UserError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"calibration {path} cannot be read: {error}", _ABOUT) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UserError(f"calibration {path}: expected a mapping with format: {FORMAT}", _ABOUT)
    constants, observations = data.get("constants", {}), data.get("observations", [])
    if not isinstance(constants, dict) or not isinstance(observations, list):
        raise UserError(f"calibration {path}: constants must be a mapping and observations a list", _ABOUT)
    constants = {RENAMED.get(family, family): values for family, values in constants.items()}
    return {
        "constants": constants,
        "observations": [_observation(o, f"calibration {path}: observations[{i}]") for i, o in enumerate(observations)],
    }


def _observation(value: Any, where: str) -> Observation:
    try:
        return Observation.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{where}: {key}: {first['msg']}, got {first['input']!r}", _ABOUT) from None


def _write(path: Path, gpu: str, constants: dict[str, Any], observations: list[Observation]) -> None:
    document = {"format": FORMAT, "gpu": gpu, "constants": constants, "observations": [o.model_dump() for o in observations]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two runs on one machine may end at once: one of the two replaces the other's file whole.
        write_atomic(path, json.dumps(document, indent=2) + "\n", durable=False)
    except OSError as error:
        message = f"calibration {path} cannot be written: {error.strerror or error}"
        raise UserError(message, f"give another folder: {CALIBRATION}=FOLDER") from None
