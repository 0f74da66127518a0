"""The stages of a recipe, one after the other by one command; and what its gates would say of the scale model."""

from __future__ import annotations

from pathlib import Path

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.recipe import Recipe, TrainingStage, UserError, scale_stages, stage_recipe

from .context import Context, Rehearsal, Stage, is_gpt
from .following import train_to_end


def stages(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Train a few steps of each stage; the gates between them ask for nothing. Then judge the recipe's own on what was logged."""
    recipe, small = rehearsal.loaded, rehearsal.excerpted(scale_stages(rehearsal.loaded))
    runs = train_stages(rehearsal, small, say)
    shown, facts = [], {}
    for stage in recipe.training:
        if stage.gates is None:
            continue
        judged = _judge(runs[stage.name], stage, recipe, rehearsal)
        facts[stage.name] = judged
        shown.append(f"{stage.name}: " + ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in judged.items()))
    gates = f"; the recipe's gates on these toys, shown and not obeyed: {'; '.join(shown)}" if shown else ""
    text = f"{' then '.join(runs)}, {small.budget.steps} steps each, by one command{gates}"
    return Evidence(text, {"stages": list(runs), "gates": facts})


def train_stages(rehearsal: Rehearsal, small: Recipe, say: Say) -> dict[str, Path]:
    """Train all stages of a scale model by one command; returns the run of each, in order. Raises CheckFailed."""
    runs = _runs_by_stage(train_to_end(rehearsal, small, "stages", say, of="all stages"))
    names = [stage.name for stage in small.training]
    if list(runs) != names:
        raise CheckFailed(f"stages {', '.join(names)} should have been run, {', '.join(runs) or 'none'} were")
    return runs


def _runs_by_stage(root: Path) -> dict[str, Path]:
    """Return the runs' folders by stage, in the order in which they began. Raises CheckFailed where one did not end."""
    from windtunnel.run import RunFolder

    found = []
    for path in root.glob("*/manifest.json"):
        manifest = RunFolder.open(path.parent).manifest
        # A stage whose gates were judged has ended, whatever they said.
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
