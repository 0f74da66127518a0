"""The stages of a recipe, one after the other by one command; and what its gates would say of the scale model."""

from __future__ import annotations

from pathlib import Path

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.recipe import Recipe, TrainingStage, UserError, dump_recipe, scale_stages, stage_recipe

from .context import Context, Rehearsal, Stage, is_gpt
from .following import Follower, train_command
from .processes import Child


def stages(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Train a few steps of each stage; the gates between them ask for nothing. Then judge the recipe's own on what was logged."""
    recipe, small = rehearsal.loaded, rehearsal.excerpted(scale_stages(rehearsal.loaded))
    path, root = rehearsal.folder / "stages.yaml", rehearsal.folder / "stages"
    path.write_text(dump_recipe(small), encoding="utf-8")
    with Child(train_command(path, root=root), rehearsal.folder / "stages.log", rehearsal.environment) as child:
        code = child.wait(Follower(rehearsal, child, say).look)
        words = child.last_words()
    if code != 0:
        raise CheckFailed(f"`windtunnel train` of all stages ended with exit code {code}: {words}")
    runs = runs_by_stage(root)
    names = [stage.name for stage in recipe.training]
    if list(runs) != names:
        raise CheckFailed(f"stages {', '.join(names)} should have been run, {', '.join(runs) or 'none'} were")
    shown, facts = [], {}
    for stage in recipe.training:
        if stage.gates is None:
            continue
        judged = _judge(runs[stage.name], stage, recipe, rehearsal)
        facts[stage.name] = judged
        shown.append(f"{stage.name}: " + ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in judged.items()))
    gates = f"; the recipe's gates on these toys, shown and not obeyed: {'; '.join(shown)}" if shown else ""
    text = f"{' then '.join(names)}, {small.budget.steps} steps each, by one command{gates}"
    return Evidence(text, {"stages": names, "gates": facts})


def runs_by_stage(root: Path) -> dict[str, Path]:
    """Return the runs' folders by stage, in the order in which they began. Raises CheckFailed where one did not end."""
    from windtunnel.run import RunFolder

    found = []
    for path in root.glob("*/manifest.json"):
        manifest = RunFolder.open(path.parent).manifest
        if "gates" not in manifest and manifest.get("status") != "done":
            raise CheckFailed(f"run {path.parent.name} did not end: {manifest.get('status')}")
        found.append((float(manifest["created"]), str(manifest.get("stage")), path.parent))
    return {stage: folder for _, stage, folder in sorted(found)}


def _judge(run: Path, stage: TrainingStage, recipe: Recipe, rehearsal: Rehearsal) -> dict[str, str]:
    """Return of each gate what the run shows, and whether it would hold. Raises CheckFailed where one cannot be judged."""
    from windtunnel.run import MetricsReader, RunFolder
    from windtunnel.train import gate_series, judge_gates

    assert stage.gates is not None
    folder = RunFolder.open(run)
    own = stage_recipe(recipe, stage.name)
    # The limits are the recipe's, the number of supervision steps is the toy's.
    own = own.with_supervision(folder.recipe.supervision)
    with MetricsReader(folder.metrics_path) as metrics:
        series = gate_series(metrics, own)
    results = judge_gates(stage.gates, own, series, gpus=rehearsal.here.gpu is not None)
    missing = [result.name for result in results if result.value is None]
    if missing:
        raise CheckFailed(f"stage {stage.name}: gates {', '.join(missing)} cannot be judged", blocks=False)
    return {result.name: f"{result.measured} ({'held' if result.held else 'not held'})" for result in results}


def _has_stages(context: Context) -> bool:
    try:
        return is_gpt(context) and context.loaded.staged
    except UserError:
        return False


CHECKS = (
    Stage(
        "stages",
        "one command trains all stages, and the gates between them are judged",
        "read stages.log in the rehearsal's folder",
        stages,
        shows="end",
        needs=("resume",),
        applies=_has_stages,
    ),
)
