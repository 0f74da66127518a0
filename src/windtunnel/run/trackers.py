"""Experiment trackers that others keep: Weights & Biases, MLflow and trackio, each behind the same four calls.

Where they are and with which credentials is the packages' own business: their variables and files are used, none is asked for.
"""

from __future__ import annotations

import contextlib
import math
import netrc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any, Protocol

from windtunnel.recipe import UserError

from .metrics import Event

Values = Mapping[str, float]
Say = Callable[[str], None]
MOST_METRICS = 900
"""Of one request to MLflow, which takes 1,000."""


@dataclass(frozen=True)
class Tracked:
    """What a tracker is told of a run. Attributes: project: to put it under. config: the resolved recipe, flat."""

    folder: Path
    project: str
    config: Mapping[str, Any]


class Tracker(Protocol):
    """A run at a tracker: opened when it is made, gone on with where it is there already."""

    def log(self, step: int, values: Values, when: float) -> None:
        """Take the finite values of a step, made at `when` (seconds since the epoch)."""

    def flush(self) -> None:
        """Send what was taken."""

    def tell(self, event: Event) -> None:
        """Take a warning."""

    def end(self, status: str) -> None:
        """Note that the run is done, stopped or failed, and send all that is left."""


class WeightsAndBiases:
    """A run of Weights & Biases; kept in the run's folder where this machine has no key."""

    def __init__(self, run: Tracked, say: Say) -> None:
        import wandb

        # Without a key wandb would ask for one, at a terminal that is not there.
        offline = os.environ.get("WANDB_MODE") is None and not _wandb_key()
        self._wandb = wandb
        self._run: Any = wandb.init(
            project=run.project, id=run.folder.name, name=run.folder.name, config=dict(run.config), dir=str(run.folder),
            resume="allow", mode="offline" if offline else None, settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        # Steps of its own must rise: one that a run takes again after going back would be dropped.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if offline:
            say(f"wandb: no key on this machine; kept in {run.folder}/wandb, which `wandb sync` sends")

    def log(self, step: int, values: Values, when: float) -> None:
        """Take the values of a step."""
        self._run.log({**values, "step": step, "_timestamp": when})

    def flush(self) -> None:
        """Do nothing: it sends by itself."""

    def tell(self, event: Event) -> None:
        """Take a warning."""
        level = self._wandb.AlertLevel.ERROR if event.level == "bad" else self._wandb.AlertLevel.WARN
        self._run.alert(title=event.kind, text=event.message, level=level)

    def end(self, status: str) -> None:
        """Note how the run ended."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)


class MLflow:
    """A run of MLflow; in a database beside the runs where $MLFLOW_TRACKING_URI names no place."""

    def __init__(self, run: Tracked, say: Say) -> None:
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or _mlflow_place(run.folder.parent)
        self._client = MlflowClient(tracking_uri=place)
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        # By a tag: MLflow's own ids are its to give, and two runs may have one name.
        before = self._client.search_runs([experiment], f"tags.`windtunnel.run` = '{run.folder.name}'", max_results=1)
        if before:
            self._id = before[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            tags = {"windtunnel.run": run.folder.name}
            self._id = self._client.create_run(experiment, run_name=run.folder.name, tags=tags).info.run_id
            for name, value in run.config.items():
                # MLflow takes no longer values and no other signs in names.
                self._client.log_param(self._id, _name(name), str(value)[:500])
        self._waiting: list[Any] = []
        say(f"mlflow: {run.project}/{run.folder.name} in {_without_password(place)}")

    def log(self, step: int, values: Values, when: float) -> None:
        """Take the values of a step."""
        from mlflow.entities import Metric

        self._waiting += [Metric(_name(name), value, int(1000 * when), step) for name, value in values.items()]
        if len(self._waiting) >= MOST_METRICS:
            self.flush()

    def flush(self) -> None:
        """Send what was taken."""
        while self._waiting:
            self._client.log_batch(self._id, metrics=self._waiting[:MOST_METRICS])
            del self._waiting[:MOST_METRICS]

    def tell(self, event: Event) -> None:
        """Take a warning, as a tag: MLflow has no others."""
        self._client.set_tag(self._id, _name(f"{event.level}.{event.kind}"), f"step {event.step}: {event.message}"[:5000])

    def end(self, status: str) -> None:
        """Note how the run ended."""
        self.flush()
        word = {"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED")
        self._client.set_terminated(self._id, status=word)


class Trackio:
    """A run of trackio, in its folder on this machine or the Space that $TRACKIO_SPACE_ID names."""

    def __init__(self, run: Tracked, say: Say) -> None:
        import trackio

        space = os.environ.get("TRACKIO_SPACE_ID") or None
        self._run: Any = trackio.init(
            project=run.project, name=run.folder.name, config={k: str(v) for k, v in run.config.items()}, resume="allow",
            space_id=space, embed=False, auto_log_gpu=False,
        )  # fmt: skip
        self._trackio = trackio
        say(f"trackio: {run.project}/{run.folder.name}; trackio show --project {run.project}")

    def log(self, step: int, values: Values, when: float) -> None:
        """Take the values of a step."""
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Do nothing: it sends by itself."""

    def tell(self, event: Event) -> None:
        """Take a warning."""
        level = self._trackio.AlertLevel.ERROR if event.level == "bad" else self._trackio.AlertLevel.WARN
        self._run.alert(title=event.kind, text=event.message, level=level)

    def end(self, status: str) -> None:
        """Send all that is left."""
        self._run.finish()


TRACKERS: dict[str, tuple[str, Callable[[Tracked, Say], Tracker]]] = {
    "wandb": ("wandb", WeightsAndBiases),
    "mlflow": ("mlflow", MLflow),
    "trackio": ("trackio", Trackio),
}
"""Name in a recipe -> the module that must be there, and what opens a run."""


def require_trackers(names: list[str]) -> None:
    """Raise UserError where a tracker's package is not installed."""
    for name in names:
        if util.find_spec(TRACKERS[name][0]) is None:
            raise UserError(f"notify.track: {name} is not installed", f"pip install 'windtunnel[{name}]', or take it out")


def finite_values(values: Values) -> dict[str, float]:
    """Return what trackers draw: they have no place for what is not a number."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = (os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").partition("://")[2].partition("/")[0]
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return False


def _mlflow_place(root: Path) -> str:
    """Return a database where MLflow can have one, which needs more than its client; else a folder of files."""
    if util.find_spec("sqlalchemy") is not None and util.find_spec("alembic") is not None:
        return f"sqlite:///{root.resolve()}/mlflow.db"
    return f"file://{root.resolve()}/mlruns"


def _name(text: str) -> str:
    """Return a name as MLflow takes it."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in text)


def _without_password(place: str) -> str:
    scheme, _, rest = place.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
