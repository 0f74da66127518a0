"""Whether this package's own trainer runs what is planned, and what does where it does not."""

from __future__ import annotations

from windtunnel.recipe import MEGATRON, OWN_ENGINE, CountedCorpus, HuggingFaceModel, Layout, Recipe


def why_untrainable(recipe: Recipe) -> tuple[str, str] | None:
    """Return (why, fix) where a recipe can be planned and this package's trainer does not run it; None of others."""
    if isinstance(recipe.model, HuggingFaceModel) and recipe.model.weights in ("int8", "int4"):
        why = (
            f"training is not available for weights in {recipe.model.weights}: those need bitsandbytes, which this trainer does "
        )
        return why + "not use", "--set model.weights=bf16, or fp8 under an adapter"
    asked = _asks_of_another_engine(recipe)
    if asked is not None:
        return asked
    if isinstance(recipe.data.corpus, CountedCorpus):
        kind = "prompts" if recipe.rl else "conversations" if recipe.sft else "text"
        fix = f"name the data: --set data.corpus.kind={kind} --set 'data.corpus.files=[FILE]'"
        return "data.corpus.kind is counted: there is nothing to train on", fix
    return None


def _asks_of_another_engine(recipe: Recipe) -> tuple[str, str] | None:
    """Return (why, fix) where keys ask for what this package's engine does on no rig."""
    if not isinstance(recipe.model, HuggingFaceModel):
        return None  # the plan of a GPT refuses them
    stage = recipe.sft
    if stage is not None and stage.precision == "fp8":
        key = f"stages.{stage.name}.precision"
        return f"{key}: fp8: training computes products in bf16, or on a CPU in fp32", f"--set {key}=auto"
    shared = ("tensor", "pipeline") if recipe.model.weights == "fp8-experts" else ("tensor", "pipeline", "expert")
    asked = {name: size for name in shared if (size := getattr(recipe.layout, name) or 1) > 1}
    keys = [f"layout.{name}={value}" for name, value in asked.items()]
    keys += ["layout.offload=optimizer"] if recipe.layout.offload == "optimizer" else []
    if not keys:
        return None
    fix = " ".join(f"--set {key.partition('=')[0]}=null" for key in keys)
    return f"{', '.join(keys)}: a layout that only {MEGATRON} runs", f"{fix}; or {_other_job(recipe)}"


def _other_job(recipe: Recipe) -> str:
    """Say what makes a job of a plan that is for another engine."""
    if recipe.rl is not None:
        return "nothing here hands it rounds; leave tensor, expert, pipeline and offload of `layout` null"
    if isinstance(recipe.model, HuggingFaceModel) and recipe.model.adapter is not None:
        return "its job is written for full fine-tuning alone (model.adapter: null), not for an adapter"
    return "windtunnel launch RECIPE --on ... --to FOLDER writes its job"


def other_engine(recipe: Recipe, layout: Layout) -> tuple[str, str] | None:
    """Return (why, fix) where a plan is for another engine than this package's own, which is what `windtunnel train` has."""
    if layout.engine == OWN_ENGINE:
        return None
    fix = _other_job(recipe) if layout.precision != "fp8" else "no job of it is written either: leave precision to the plan"
    return f"`windtunnel train` cannot run this plan: it is for {layout.engine}", fix


def not_trained(recipe: Recipe, layout: Layout) -> list[str]:
    """Say that `windtunnel train` cannot run a plan, and what can."""
    other, found = other_engine(recipe, layout), why_untrainable(recipe)
    if other is not None:
        return ["; ".join(other)]
    return [f"`windtunnel train` cannot run this plan: {found[0]}; {found[1]}"] if found else []


def without_effect(recipe: Recipe, layout: Layout) -> list[str]:
    """Say which keys of a stage count on GPUs alone, where it is trained on a CPU."""
    if layout.device != "cpu":
        return []
    said = []
    for stage in recipe.training:
        key, precision = f"stages.{stage.name}", getattr(stage, "precision", "auto")
        if getattr(stage, "graphs", None) is True:
            said.append(f"{key}.graphs: true has no effect on a CPU: passes are recorded on GPUs alone")
        if precision not in ("auto", layout.precision):
            said.append(f"{key}.precision: {precision} has no effect on a CPU, which computes this in {layout.precision}")
    return said
