"""The run folder: all that is needed to explain, resume and reproduce a run.

recipe.yaml      the resolved recipe
manifest.json    format, versions, rig, plan, derived values, command, status
metrics.sqlite   metrics and events
tensorboard/     the same curves for TensorBoard
checkpoints/     see `windtunnel.run.store`
tokenizer.json   written by the data room
spent.json       seconds and dollars spent so far
report.html      written at the end
lock             held by the process that trains
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from windtunnel.recipe import Recipe, UserError, dump_recipe, load_recipe

from .files import write_atomic, write_json
from .identity import first_difference, resumed

FORMAT = 1
Status = Literal["running", "done", "stopped", "failed"]
_PACKAGES = ("windtunnel", "torch", "numpy", "safetensors", "tokenizers")


class RunFolder:
    """One run's folder. Make one with `create` or `open`.

    Attributes:
        path: the folder.
        recipe: the resolved recipe; after `open` with a recipe, that recipe with the run's identity keys.
        manifest: content of manifest.json.
    """

    def __init__(self, path: Path, recipe: Recipe, manifest: dict[str, Any]) -> None:
        self.path, self.recipe, self.manifest = path, recipe, manifest
        self._lock: IO[str] | None = None

    @classmethod
    def create(
        cls,
        root: Path | str,
        recipe: Recipe,
        *,
        rig: Mapping[str, Any],
        plan: Mapping[str, Any] | None = None,
        derived: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
    ) -> RunFolder:
        """Make `root/<recipe>[-<stage>]-<UTC time>[-n]/` and lock it. The mappings must be JSON.

        Raises:
            UserError: the folder cannot be made.
        """
        path = new_folder(Path(root), recipe.name if recipe.stage is None else f"{recipe.name}-{recipe.stage}")
        manifest = {
            "format": FORMAT,
            "recipe": recipe.name,
            "stage": recipe.stage,
            "created": time.time(),
            "status": "running",
            "reason": None,
            "command": list(command),
            "versions": versions(),
            "rig": dict(rig),
            "plan": None if plan is None else dict(plan),
            "derived": dict(derived or {}),
        }
        run = cls(path, recipe, manifest)
        try:
            run.lock()
            run.checkpoints_dir.mkdir()
            write_atomic(path / "recipe.yaml", dump_recipe(recipe))
            run._save()
        except OSError as error:
            raise UserError(f"run folder {path} cannot be written: {error.strerror or error}") from None
        return run

    @classmethod
    def open(cls, path: Path | str, recipe: Recipe | None = None, *, write: bool = False) -> RunFolder:
        """Open an existing run folder.

        Args:
            recipe: must be the same training; its budget, checkpoints and bands take effect.
            write: lock it, to go on with the run. Readers leave this False.

        Raises:
            UserError: missing, no run folder, damaged, a run of another recipe, or in use.
        """
        path = Path(path)
        own = _read_recipe(path)
        manifest = _read_manifest(path)
        if recipe is not None:
            _refuse_another(path, own, recipe)
        run = cls(path, resumed(own, recipe) if recipe is not None else own, manifest)
        if write:
            run.lock()
            try:
                write_atomic(path / "recipe.yaml", dump_recipe(run.recipe))
                if run.manifest["status"] != "running":  # what a kill leaves, and the process that opened it just before
                    run.manifest["resumed_from"] = {name: run.manifest.get(name) for name in ("status", "reason")}
                run.update(status="running", reason=None)
            except OSError as error:
                run.close()
                raise UserError(f"run folder {path} cannot be written: {error.strerror or error}") from None
        return run

    @property
    def checkpoints_dir(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        """The metrics database."""
        return self.path / "metrics.sqlite"

    @property
    def tensorboard_dir(self) -> Path:
        """Where TensorBoard's event files are."""
        return self.path / "tensorboard"

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer that made the tokens."""
        return self.path / "tokenizer.json"

    @property
    def spent_path(self) -> Path:
        """What the run has spent, for `load_spent`."""
        return self.path / "spent.json"

    @property
    def report_path(self) -> Path:
        """The readiness report."""
        return self.path / "report.html"

    def update(self, **values: Any) -> None:
        """Change keys of the manifest (JSON values) on disk too. Raises OSError."""
        self.manifest.update(values)
        self._save()

    def finish(self, status: Status, reason: str) -> None:
        """Record how the run ended and why. Raises OSError."""
        self.update(status=status, reason=reason, ended=time.time())

    def leave(self, why: str) -> None:
        """Undo `open(write=True)`: nothing was trained, so a run that had ended has still ended as it did. Raises OSError."""
        stood = self.manifest.pop("resumed_from", None)
        self.update(**(stood or {"status": "stopped", "reason": why}))

    def lock(self) -> None:
        """Take the folder for this process, until `close` or its death. Raises UserError when another has it."""
        if self._lock is not None:
            return
        try:
            file = open(self.path / "lock", "a+", encoding="utf-8")  # noqa: SIM115 - held for the run's life
        except OSError as error:
            raise UserError(f"run folder {self.path} cannot be locked: {error.strerror or error}") from None
        for attempt in range(5):  # `is_live` takes the lock for an instant
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 4:
                    file.seek(0)
                    holder = file.read().strip() or "another process"
                    file.close()
                    raise UserError(
                        f"run folder {self.path} is in use by {holder}", "wait for it, stop it, or start a new run"
                    ) from None
                time.sleep(0.02)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._lock = file

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _save(self) -> None:
        write_json(self.path / "manifest.json", self.manifest)


@dataclass(frozen=True)
class RunSummary:
    """A line of the list of runs. `problem` says what is unreadable about a damaged one.

    Attributes:
        status: running, done, stopped, failed; 'killed' when it says running and no process holds it; 'damaged'.
        step, loss, validation_loss, dollars: the latest logged, if any.
        best_step: step of the checkpoint with the lowest validation loss, as listed (not verified).
        stage: of the recipe, where it has stages; gates: name -> whether it held, once they were judged.
    """

    path: Path
    recipe: str
    created: float | None
    status: str
    reason: str | None = None
    step: int | None = None
    loss: float | None = None
    validation_loss: float | None = None
    dollars: float | None = None
    best_step: int | None = None
    problem: str | None = None
    stage: str | None = None
    gates: dict[str, bool] | None = None


def list_runs(root: Path | str) -> list[RunSummary]:
    """Runs in a folder, newest first. Damaged ones are listed with their problem; other folders are not."""
    root = Path(root)
    if not root.is_dir():
        return []
    members = [p for p in root.iterdir() if (p / "manifest.json").exists() or (p / "recipe.yaml").exists()]
    return sorted((_summary(p) for p in members), key=lambda s: (s.created or 0.0, s.path.name), reverse=True)


def newest_run(root: Path | str, recipe: str | None = None) -> Path:
    """The newest readable run, of a recipe if given. Raises UserError when there is none."""
    for run in list_runs(root):
        if run.status != "damaged" and recipe in (None, run.recipe):
            return run.path
    what = f"run of recipe {recipe}" if recipe else "run"
    raise UserError(f"no {what} in {root}", f"start one with `windtunnel train {recipe or 'charlm'}`")


def is_live(path: Path) -> bool:
    """Whether a process holds the run."""
    try:
        with open(path / "lock", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def versions() -> dict[str, str | None]:
    """Versions of what a run depends on, found without importing it."""
    from importlib import metadata

    found: dict[str, str | None] = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    with contextlib.suppress(OSError, IndexError):
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        found["nvidia_driver"] = next((word for word in line.split() if word[0].isdigit() and "." in word), line)
    return found


def new_folder(root: Path, name: str) -> Path:
    """Make `root/<name>-<UTC time>[-n]/`, a folder that nobody else has.

    Raises:
        UserError: it cannot be made.
    """
    stem = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise UserError(f"a folder in {root} cannot be made: {error.strerror or error}", "give another --root") from None
    raise UserError(f"{root} already has 999 folders {stem}")


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is not a run folder: it has no manifest.json", "`windtunnel runs` lists runs") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int) or "status" not in manifest:
        raise UserError(f"{file} is damaged: not a run's manifest")
    if manifest["format"] > FORMAT:
        raise UserError(f"{path}: run format {manifest['format']}, this version reads {FORMAT}", "upgrade windtunnel")
    return manifest


def _read_recipe(path: Path) -> Recipe:
    if not path.exists():
        raise UserError(f"run folder {path} does not exist", "`windtunnel runs` lists runs")
    if not path.is_dir() or not (path / "recipe.yaml").is_file():
        raise UserError(f"{path} is not a run folder: it has no recipe.yaml", "`windtunnel runs` lists runs")
    return load_recipe(path / "recipe.yaml")


def _refuse_another(path: Path, own: Recipe, asked: Recipe) -> None:
    difference = first_difference(own, asked)
    if difference is not None:
        key, have, want = difference
        raise UserError(
            f"run folder {path} is of another recipe: {key} is {have!r} there and {want!r} here",
            f"resume with --set {key}={json.dumps(have)}, or start a new run",
        )


def _summary(path: Path) -> RunSummary:
    from .metrics import MetricsReader
    from .store import CheckpointStore

    try:
        manifest = _read_manifest(path)
    except UserError as error:
        return RunSummary(path, "?", None, "damaged", problem=error.message)
    status = str(manifest.get("status"))
    if status == "running" and not is_live(path):
        status = "killed"
    latest: dict[str, Any] = {}
    best, problem = None, None
    try:
        scored = [c for c in CheckpointStore(path / "checkpoints").all() if c.validation_loss is not None]
        best = min(scored, key=lambda c: (c.validation_loss, c.step)).step if scored else None
        if (path / "metrics.sqlite").exists():
            with MetricsReader(path / "metrics.sqlite") as reader:
                latest = reader.latest()
    except UserError as error:
        problem = error.message
    value = {name: point.value for name, point in latest.items()}
    created = manifest.get("created")
    return RunSummary(
        path,
        str(manifest.get("recipe", "?")),
        created if isinstance(created, int | float) else None,
        status,
        manifest.get("reason"),
        max((p.step for p in latest.values()), default=None),
        value.get("loss"),
        value.get("validation_loss"),
        value.get("dollars"),
        best,
        problem,
        manifest.get("stage"),
        _gates(manifest.get("gates")),
    )


def _gates(judged: Any) -> dict[str, bool] | None:
    """Name -> whether it held, as far as the manifest tells."""
    if not isinstance(judged, list):
        return None
    return {str(gate["name"]): bool(gate.get("held")) for gate in judged if isinstance(gate, dict) and "name" in gate}
