"""Check what a run leaves behind: its folder, manifest and curves, and the version of the code and recipe that made it."""

from __future__ import annotations

import shutil
from pathlib import Path

from windtunnel.check import Check, CheckFailed, Context, Evidence, Say
from windtunnel.run import Metrics, MetricsReader, RunFolder

from .folder import git
from .identity import anchored

SHOWN = 3


def records(context: Context, say: Say) -> Evidence:
    """Make a run's folder, log a step and an event, end it, and read all of it again."""
    root = context.folder / "records"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    say("writing a run's folder")
    with RunFolder.create(root, context.recipe, rig={"name": context.rig.name}, command=["windtunnel", "check"]) as run:
        metrics = Metrics(run.metrics_path, run.path / "tensorboard")
        metrics.log(1, {"loss": 1.5})
        metrics.event("check", 1, "a line of the log")
        metrics.close()
        run.finish("done", "checked")
    read = RunFolder.open(run.path)
    with MetricsReader(read.metrics_path) as curves:
        points, events = curves.series("loss"), curves.events("check")
    if [point.value for point in points] != [1.5] or len(events) != 1 or read.manifest["status"] != "done":
        raise CheckFailed(f"what was written is not what is read: {points}, {events}, {read.manifest['status']}")
    # Nobody reads them back here: that would import TensorBoard, which takes seconds.
    board = sum(file.stat().st_size for file in (run.path / "tensorboard").rglob("*") if file.is_file())
    if not board:
        raise CheckFailed("no curve was written for TensorBoard", "look at the package tensorboard")
    if read.recipe.model_dump() != anchored(run.recipe).model_dump():
        raise CheckFailed("the recipe that a run keeps is read as another one")
    shutil.rmtree(root, ignore_errors=True)
    made = ", ".join(
        f"{name} {version}" for name, version in read.manifest["versions"].items() if name in ("windtunnel", "torch")
    )
    return Evidence(f"manifest ({made}), recipe, curves, events and TensorBoard's files are written and read back")


def code(context: Context, say: Say) -> Evidence:
    """Say at which commit the recipe and what lies beside it are, and what is not committed."""
    path = Path(context.source)
    if not path.is_file():
        return Evidence(f"{context.source} ships with the package; a run keeps its resolved recipe and all versions")
    folder = path.resolve().parent
    commit = git(folder, "rev-parse", "--short", "HEAD")
    if commit is None:
        text = f"{path} is not under version control; a run keeps its own copy of the recipe, not of your code"
        return Evidence(text, {"commit": None})
    # Two letters of status and a blank stand before the name (git status --porcelain).
    changed = [line[3:] for line in (git(folder, "status", "--porcelain", "--", ".") or "").splitlines()]
    facts = {"commit": commit, "changed": changed}
    if not changed:
        return Evidence(f"commit {commit}, nothing changed since", facts)
    named = ", ".join(changed[:SHOWN]) + (" ..." if len(changed) > SHOWN else "")
    warning = (
        f"{len(changed)} files in {folder} are not committed ({named}): commit them, so that the run can be told from others"
    )
    return Evidence(f"commit {commit} and {len(changed)} changes", facts, (warning,))


CHECKS = (
    Check(
        "records", "a run's manifest, recipe, curves and events are written, and read as they were written",
        "runs need a file system that keeps files: see the check disk", records, shows="first steps", needs=("recipe", "rig"),
    ),
    Check(
        "code", "the recipe, and the code beside it, are committed", "git commit", code, shows="end", needs=("recipe",),
    ),
)  # fmt: skip
