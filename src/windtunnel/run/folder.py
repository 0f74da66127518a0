"""The run folder: all that is needed to explain, resume and reproduce a run.

recipe.yaml      the resolved recipe
job.yaml         of a run of a stage, the recipe with all stages
manifest.json    format, versions, rig, plan, derived values, command, status; manifest.backup.json is a copy
metrics.sqlite   metrics and events
tensorboard/     the same curves for TensorBoard
checkpoints/     see `windtunnel.run.store`
tokenizer.json   written by the data room
spent.json       seconds and dollars spent so far
report.html      written at the end
lock             held by the process that trains, and names it
stop             put there by `windtunnel stop`
output.log       what all its processes printed; output.log.1 and so on are older
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from windtunnel.files import write_atomic, write_json
from windtunnel.recipe import Recipe, UserError, dump_recipe, load_recipe

from .identity import MAY_CHANGE, anchored, changes, differences, resumed
from .processes import RunLock
from .signals import STOP_FILE

FORMAT = 1
JOB = "job.yaml"
JOB_VARIABLE = "WINDTUNNEL_JOB"
"""Names the folder of the scheduler's job that makes a run; the run's manifest keeps it."""
BACKUP = "manifest.backup.json"
Status = Literal["running", "done", "stopped", "failed"]
_PACKAGES = ("windtunnel", "torch", "numpy", "safetensors", "tokenizers", "transformers")
# Recorded, it is worth seconds; but a run must not hang because of its version's name.
GIT_SECONDS = 20.0
"""What git gets; a repository on a network disk may be slow."""


class DamagedManifest(UserError):
    """A run's manifest cannot be made sense of."""


class RunFolder:
    """One run's folder. Make one with `create` or `open`.

    Attributes:
        path: the folder.
        recipe: the resolved recipe; after `open` with a recipe, that recipe with the run's identity keys.
        manifest: content of manifest.json.
        changes: what `open` with a recipe changed in the run's own, as 'key: old -> new'.
    """

    def __init__(self, path: Path, recipe: Recipe, manifest: dict[str, Any]) -> None:
        self.path, self.recipe, self.manifest = path, recipe, manifest
        self._lock: RunLock | None = None
        self.changes: list[str] = []
        self._before: tuple[dict[str, bytes], set[str]] | None = None  # recipes and checkpoints when it was opened

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
        if os.environ.get(JOB_VARIABLE):
            manifest["job"] = os.environ[JOB_VARIABLE]
        if recipe.expect.ranges():
            manifest["expect"] = {"written": time.time(), "ranges": recipe.expect.ranges(), "why": recipe.expect.why}
        run = cls(path, recipe, manifest)
        try:
            run.lock()
            run.checkpoints_dir.mkdir()
            write_atomic(path / "recipe.yaml", dump_recipe(anchored(recipe)))
            run._save()
        except OSError as error:
            raise UserError(f"run folder {path} cannot be written: {error.strerror or error}") from None
        return run

    @classmethod
    def open(cls, path: Path | str, recipe: Recipe | None = None, *, write: bool = False) -> RunFolder:
        """Open an existing run folder.

        Args:
            path: the folder.
            recipe: must be the same training; its budget, checkpoints and bands take effect.
            write: lock it, to go on with the run. Readers leave this False.

        Raises:
            UserError: missing, no run folder, damaged, a run of another recipe, or in use.
        """
        path = Path(path)
        own, manifest = read_own_recipe(path), read_manifest(path)
        own = _as_planned(own, manifest)
        if recipe is not None:
            _refuse_another(path, own, recipe)
        run = cls(path, resumed(own, recipe) if recipe is not None else own, manifest)
        run.changes = changes(own, run.recipe)
        if write:
            run.lock()
            try:
                # Left there, it would end this session at once.
                (path / STOP_FILE).unlink(missing_ok=True)  # of an earlier session
                if run.changes:
                    recipes = {name: (path / name).read_bytes() for name in ("recipe.yaml", JOB) if (path / name).exists()}
                    run._before = recipes, run._checkpoint_names()
                write_atomic(path / "recipe.yaml", dump_recipe(anchored(run.recipe)))
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

    @property
    def interrupted(self) -> bool:
        """Whether the session before this one was killed or crashed, so that nothing says how the run ended."""
        return self.manifest.get("resumed_from", {"status": "failed"}).get("status") == "failed"

    @property
    def job_path(self) -> Path:
        """The recipe to go on with: of the whole job where this is a run of one of its stages."""
        job = self.path / JOB
        return job if job.exists() else self.path / "recipe.yaml"

    def keep_job(self, job: Recipe | None) -> None:
        """Keep the whole recipe beside that of the stage. Raises OSError."""
        if job is not None:
            write_atomic(self.path / JOB, dump_recipe(anchored(job)))

    def update(self, **values: Any) -> None:
        """Change keys of the manifest (JSON values) on disk too. Raises OSError."""
        self.manifest.update(values)
        self._save()

    def finish(self, status: Status, reason: str) -> None:
        """Record how the run ended and why. Raises OSError."""
        self.update(status=status, reason=reason, ended=time.time())

    def take_back(self) -> bool:
        """Bring back the recipe from before `open` changed it, if no checkpoint was made since; whether that was done.

        What ended a session may be the very value that was changed: kept, it would end every later one too. Raises OSError.
        """
        if self._before is None or self._checkpoint_names() - self._before[1]:
            return False
        for name, content in self._before[0].items():
            write_atomic(self.path / name, content)
        self._before = None
        self.manifest = read_manifest(self.path)
        told = self.manifest.get("changes", [])
        if told and told[-1].get("changes") == self.changes:
            self.update(changes=told[:-1])
        return True

    def leave(self, why: str) -> None:
        """Undo `open(write=True)`: nothing was trained, so a run that had ended has still ended as it did. Raises OSError."""
        self.take_back()
        stood = self.manifest.pop("resumed_from", None)
        self.update(**(stood or {"status": "stopped", "reason": why}))

    def lock(self) -> None:
        """Take the folder for this process, until `close` or its death. Raises UserError when another has it."""
        if self._lock is None:
            self._lock = RunLock(self.path)

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _checkpoint_names(self) -> set[str]:
        return {path.name for path in self.checkpoints_dir.glob("step-*") if ".tmp-" not in path.name}

    def _save(self) -> None:
        # The copy first: whichever of the two a kill damages, the other is whole.
        write_json(self.path / BACKUP, self.manifest)
        write_json(self.path / "manifest.json", self.manifest)


def versions() -> dict[str, str | None]:
    """Versions of what a run depends on, found without importing it."""
    from importlib import metadata

    found: dict[str, str | None] = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    # Of a checkout; a released version is told by its number.
    if commit := _commit(Path(__file__).parents[3]):
        found["commit"] = commit
    with contextlib.suppress(OSError, IndexError):
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        found["nvidia_driver"] = next((word for word in line.split() if word[0].isdigit() and "." in word), line)
    return found


def _commit(checkout: Path) -> str | None:
    """Return the commit that this package runs from, '-dirty' behind it where files were changed; None where it is installed."""
    there = (checkout / ".git").exists()
    return git(checkout, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") if there else None


def git(folder: Path, *words: str) -> str | None:
    """Return what git prints; None where there is no git, or no repository."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip("\n")


def new_folder(root: Path, name: str) -> Path:
    """Make `root/<name>-<UTC time>[-n]/`, a folder that nobody else has.

    Raises:
        UserError: it cannot be made.
    """
    stem = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        # mkdir decides, not a look before it: two that start in the same second both find the name free.
        for number in range(1, 1000):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise UserError(f"a folder in {root} cannot be made: {error.strerror or error}", "give another --root") from None
    raise UserError(f"{root} already has 999 folders {stem}")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a run's manifest, or its copy where it is damaged."""
    try:
        return _manifest_of(path, path / "manifest.json")
    except DamagedManifest as error:
        try:
            manifest = _manifest_of(path, path / BACKUP)
        except UserError:
            fix = f"bring manifest.json back from a copy; checkpoints and recipe.yaml in {path} can be read without it"
            raise DamagedManifest(f"{error.message}, and so is its copy {BACKUP}", fix) from None
        return manifest | {"mended": f"{error.message}; its copy {BACKUP} is used"}


def _manifest_of(path: Path, file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (path / BACKUP).exists() and file.name != BACKUP:
            raise DamagedManifest(f"{file} is missing") from None
        raise UserError(f"{path} is not a run folder: it has no manifest.json", "`windtunnel runs` lists runs") from None
    except (OSError, ValueError) as error:
        raise DamagedManifest(f"{file} is damaged: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int) or "status" not in manifest:
        raise DamagedManifest(f"{file} is damaged: not a run's manifest")
    # Older ones are read; what they lack has a default wherever it is asked for.
    if manifest["format"] > FORMAT:
        raise UserError(f"{path}: run format {manifest['format']}, this version reads {FORMAT}", "upgrade windtunnel")
    return manifest


def read_own_recipe(path: Path) -> Recipe:
    """Read the recipe that a run trains. Raises UserError."""
    if not path.exists():
        raise UserError(f"run folder {path} does not exist", "`windtunnel runs` lists runs")
    if not path.is_dir() or not (path / "recipe.yaml").is_file():
        raise UserError(f"{path} is not a run folder: it has no recipe.yaml", "`windtunnel runs` lists runs")
    try:
        return load_recipe(path / "recipe.yaml")
    except UserError as error:
        copy = f"training wrote it: bring recipe.yaml back from a copy of {path}"
        gone = "corpus.kind: expected" in error.message
        fix = f"install the package that offers this kind of corpus; if none does, {copy}" if gone else copy
        raise UserError(error.message, fix) from None


def _as_planned(own: Recipe, manifest: dict[str, Any]) -> Recipe:
    """Return a run's recipe with the batch that its plan derived: it goes on with that, whatever another machine would derive."""
    pretrain = own.pretrain
    # A batch that is derived follows from the rig: on another one the same recipe would be another training.
    planned = ((manifest.get("plan") or {}).get("layout") or {}).get("batch_tokens")
    if not pretrain.name or pretrain.batch_tokens is not None or not isinstance(planned, int):
        return own
    return own.with_stages(pretrain=pretrain.model_copy(update={"batch_tokens": planned}))


def _refuse_another(path: Path, own: Recipe, asked: Recipe) -> None:
    found = differences(own, asked)
    if found:
        told = "; ".join(f"{key} is {have!r} there and {want!r} here" for key, have, want in found)
        sets = " ".join(f"--set {key}={json.dumps(have)}" for key, have, _ in found[:3])
        raise UserError(
            f"run folder {path} is of another recipe: {told}",
            f"go on with its own: windtunnel train --resume --run {path}"
            + (f"; or with {sets}" if len(found) <= 3 else "")
            + f"; or start a new run. What may change: {MAY_CHANGE}",
        )
