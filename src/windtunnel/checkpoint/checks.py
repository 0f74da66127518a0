"""Check the run to be resumed: of this recipe, not in use, with a good checkpoint, with budget left."""

from __future__ import annotations

from pathlib import Path

from windtunnel.check import Check, Context, Evidence, Findings, Say
from windtunnel.recipe import Recipe, UserError
from windtunnel.run import RunFolder, is_live, load_spent

from .store import CheckpointStore


def _resume(context: Context, say: Say) -> Evidence:
    assert context.resume is not None
    recipe = _recipe_of(context, context.resume)
    run = RunFolder.open(context.resume, recipe)  # refuses a folder of another recipe
    found = Findings()
    if is_live(context.resume):
        found.problem(f"{context.resume} is being trained by another process", "wait for it, or stop it with SIGTERM")
    say("reading checkpoints")
    store = CheckpointStore(run.checkpoints_dir)
    newest = store.newest_good(with_optimizer=True)
    for problem in store.problems:
        found.warn(f"{problem}; the one before is used")
    if newest is None and store.all():
        found.problem(f"no checkpoint in {run.checkpoints_dir} is good: training would begin again", "start a new run")
    elif newest is None:
        found.warn(f"{context.resume} has no checkpoint yet: training begins at step 0")
    state = newest.state.get("budget") if newest else None
    _budget(found, recipe, run, newest.step if newest else 0, state)
    _data(found, context, run)
    text = f"{context.resume}: goes on at step {newest.step if newest else 0:,} of {run.manifest.get('recipe')}"
    return found.evidence(text, {"step": newest.step if newest else 0, "status": run.manifest.get("status")})


def _recipe_of(context: Context, run: Path) -> Recipe:
    """Return the recipe of the stage that the run is of, else of the last."""
    stage = RunFolder.open(run).recipe.stage if len(context.stages) > 1 else None
    return next((recipe for recipe in context.stages if recipe.stage == stage), context.recipe)


def _budget(found: Findings, recipe: Recipe, run: RunFolder, step: int, state: dict[str, object] | None) -> None:
    budget, spent = recipe.budget, load_spent(run.spent_path, state)
    # Hours and dollars are kept in a file beside, as a killed session counts too; steps and tokens are the checkpoint's.
    used = {"dollars": spent.dollars, "hours": spent.seconds / 3600, "steps": float(step)}
    batch = ((run.manifest.get("plan") or {}).get("layout") or {}).get("batch_tokens")
    if batch:
        used["tokens"] = float(step * batch)
    for name, value in used.items():
        limit = getattr(budget, name)
        if limit is not None and value >= limit:
            found.problem(f"budget.{name} is spent: {value:,.6g} of {limit:,.6g}", f"--set budget.{name}={2 * limit:g}")


def _data(found: Findings, context: Context, run: RunFolder) -> None:
    """Look for text files that are gone or changed since: training would refuse to go on."""
    try:
        present = context.corpus_files()
    except UserError as error:
        found.problem(error.message, error.fix)
        return
    # Times stand in for checksums here: reading a corpus again takes minutes, and training compares these before its first
    # step.
    began = run.manifest.get("created") or 0.0
    newer = [file.path for file in present if Path(file.path).stat().st_mtime > began]
    if newer:
        found.warn(f"{newer[0]} changed after the run began: training refuses to go on with other data")


def _wanted(context: Context) -> bool:
    return context.resume is not None


CHECKS = (
    Check(
        "resumable",
        "the run to be resumed is of this recipe and can go on",
        "`windtunnel runs` lists runs",
        _resume,
        needs=("recipe",),
        applies=_wanted,
    ),
)
