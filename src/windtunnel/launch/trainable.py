"""What a stage is trained with: whether `windtunnel train` can run it, whether its weights are here, and which it begins with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.checkpoint import choose_checkpoint
from windtunnel.convert import decoded_heads
from windtunnel.model import (
    base_weights,
    hf_shape,
    hub_id,
    refuse_adapter,
    require_base,
    require_weights,
    verify_model,
    weights_folder,
)
from windtunnel.plan import require_divided, why_untrainable
from windtunnel.recipe import GRPO, CountedCorpus, HuggingFaceModel, MissingModel, Recipe, UserError
from windtunnel.run import RunFolder

from .ready import ReadyRanks


@dataclass(frozen=True)
class Options:
    """How `windtunnel train` was called.

    Attributes:
        run: the run's folder to go on with, or None.
        resume: go on with `run`, or with the recipe's newest run under `root`.
        yes: what the plan asks to be confirmed is confirmed.
        root: folder of the runs.
        price: dollars an hour for the whole rig; None: the catalog's.
        gpus: how many of the machine's GPUs; None: all.
        nodes: of a cluster of such machines, and the GPUs of each; None: this machine alone.
        job: the whole recipe where the run is of one of its stages; None: it is the run's own.
        before: of a stage: the run of the stage before it, and the hours and dollars that all before it took (JSON).
        called: what the command called the recipe: its name or file. None: its name.
        colour: whether what is said goes to a terminal that has colours.
        ready: processes that wait for ranks to be.
    """

    run: Path | None = None
    resume: bool = False
    yes: bool = False
    root: Path = Path("runs")
    price: float | None = None
    gpus: int | None = None
    nodes: tuple[int, int] | None = None
    job: Recipe | None = None
    before: Mapping[str, Any] | None = None
    called: str | None = None
    colour: bool = False
    ready: ReadyRanks | None = None


def require_trainable(recipe: Recipe) -> None:
    """Refuse a stage that `windtunnel train` cannot run; the check `training` asks here too.

    Args:
        recipe: of one training stage.

    Raises:
        UserError: this version trains no stage of that kind, or there is no data to train on.
    """
    if recipe.rl is not None:
        require_policy(recipe.rl)
        _require_divided(recipe.rl, recipe)
    # Counted corpora are a plan's stand-in for data: they are told last, when everything else could be trained.
    refused = why_untrainable(recipe)
    if refused is not None and not isinstance(recipe.data.corpus, CountedCorpus):
        raise UserError(*refused)
    if isinstance(recipe.model, HuggingFaceModel):
        _require_weights(recipe, recipe.model)
    if refused is not None:
        raise UserError(*refused)


def require_policy(stage: GRPO) -> None:
    """Refuse a stage in which nothing judges answers, and what is only planned of engines. Raises UserError."""
    apart = {"learners": None, "engines": None, "engine_tensor": None, "engine_weights": "bf16", "overlap": 0}
    beside: tuple[str, ...] = ("learners", "engines", "overlap") if stage.engine != "in-turn" else ()
    if stage.engine == "vllm":
        beside = (*beside, "engine_tensor")
    for key, default in apart.items():
        if getattr(stage, key) != default and key not in beside:
            also = f", or --set stages.{stage.name}.engine=transformers" if key in ("learners", "engines", "overlap") else ""
            raise UserError(
                f"stages.{stage.name}.{key} is for engines of their own, which can be planned: with engine: {stage.engine} "
                "`windtunnel train` has none that it is for",
                f"--set stages.{stage.name}.{key}={'null' if default is None else str(default).lower()}{also}",
            )
    if stage.in_flight and stage.engine != "transformers":
        raise UserError(
            f"stages.{stage.name}.in_flight: engine: {stage.engine} takes new weights when its answers are done",
            f"--set stages.{stage.name}.in_flight=false, or --set stages.{stage.name}.engine=transformers",
        )
    if stage.overlap and stage.curriculum is not None:
        raise UserError(
            f"stages.{stage.name}.overlap and curriculum: rounds would be asked before it is known which level they are of",
            f"--set stages.{stage.name}.overlap=0, or --set stages.{stage.name}.curriculum=null",
        )
    if not stage.sources:
        raise UserError(
            f"stages.{stage.name}: nothing judges answers, so there is nothing to learn from",
            f"for example --set stages.{stage.name}.rewards='[{{kind: math}}]', or stages.{stage.name}.reward=file.py:function",
        )


def _require_divided(stage: GRPO, recipe: Recipe) -> None:
    """Refuse engines whose GPUs cannot share the model. Raises UserError."""
    ranks, model = stage.engine_tensor, recipe.model
    if ranks is None or not isinstance(model, HuggingFaceModel):
        return
    require_divided(hf_shape(model.config), ranks, f"stages.{stage.name}.engine_tensor")


def _require_weights(recipe: Recipe, model: HuggingFaceModel) -> None:
    """Refuse a Hugging Face model whose weights are not here, damaged, or not those of its config.json; random ones are."""
    stage = recipe.training[0]
    given, key = stage.init_from, f"stages.{stage.name}.init_from"
    if given is None:
        require_weights(model.config)
    elif given not in ("random", "previous"):
        begins = weights_folder(given)
        if begins is None:
            refuse_adapter(Path(given).expanduser(), key)
        else:
            verify_model(begins)
    folder = None if given == "previous" else base_weights(recipe)
    if folder is not None:
        from windtunnel.model import require_fit  # imports transformers

        require_fit(hf_shape(model.config).raw, folder, decoded_heads(folder))


def initial_weights(recipe: Recipe, options: Options) -> dict[str, Any] | None:
    """Return the run and step whose weights a new run begins with (JSON); None: random ones, or the model's own.

    Args:
        recipe: of one stage that trains.
        options: where runs are, and the run of the stage before this one.

    Raises:
        MissingModel: the weights of a model on the hub are wanted, which are not here.
        UserError: there is no such run, stage or folder, or no good checkpoint in it.
    """
    stage = recipe.training[0]
    given, key = stage.init_from, f"stages.{stage.name}.init_from"
    if given == "random" or (given is None and options.before is None):
        return None
    if given in (None, "previous"):
        if options.before is None:
            raise UserError(f"{key}=previous: no stage before this one has been run", "run the stages in order, or name a run")
        run = options.root / str(options.before["run"])
    else:
        # A folder before a run's name: whoever writes a path means it.
        run = Path(given).expanduser() if Path(given).expanduser().exists() else options.root / given
    if not run.exists():
        _require_fetched(str(given), key, recipe, options)
        return None  # the engine reads it
    if (run / "manifest.json").exists():
        chosen = choose_checkpoint(run, "best", "to begin with")
        require_same_base(chosen.run, recipe)
        _require_same_adapter(chosen.run, recipe, key)
        return {"run": str(run.resolve()), "step": chosen.checkpoint.step}
    if isinstance(recipe.model, HuggingFaceModel) and weights_folder(str(run)) is not None:
        return None  # the engine reads it
    raise UserError(f"{key}: {run} is no run, and its weights are not those of a Hugging Face model", "name a run's folder")


def _require_fetched(name: str, key: str, recipe: Recipe, options: Options) -> None:
    """Refuse weights to begin with that are neither a run nor a folder, unless they are a model's that was fetched by the name.

    Raises:
        MissingModel: a model of that name may be on the hub.
        UserError: the name is none of a model.
    """
    if isinstance(recipe.model, HuggingFaceModel) and weights_folder(name) is not None:
        return
    place = Path(name).expanduser().parent
    # A path into the folder of runs was meant as a run, however much it looks like OWNER/NAME.
    a_run = place.name == options.root.name or (place != Path() and place.is_dir())
    if isinstance(recipe.model, HuggingFaceModel) and hub_id(name) is not None and not a_run:
        raise MissingModel(f"{key}: the weights of {name} are not on this machine", f"windtunnel fetch {name}", name)
    fix = "name a run, or a folder of weights"
    if isinstance(recipe.model, HuggingFaceModel):
        fix += "; a model of the hub is fetched first, and then named: windtunnel fetch OWNER/NAME"
    raise UserError(f"{key}: there is no run or folder {name}", fix)


def require_same_base(run: RunFolder, recipe: Recipe) -> None:
    """Refuse to go on with a run's adapter over another model than it was trained on. Raises UserError."""
    # Adapters alone are saved: over another model they would be noise.
    recorded, model = run.manifest.get("base"), recipe.model
    if recorded is not None and isinstance(model, HuggingFaceModel) and model.adapter is not None:
        require_base(base_weights(recipe), recorded, str(run.path))


def reward_files(recipe: Recipe) -> dict[str, str]:
    """Return the checksums of the files whose functions reward, by 'key: file'; a missing one is refused later."""
    # A reward that changed in the middle makes scores before and after different things.
    found, rl = {}, recipe.rl
    for number, source in enumerate(rl.sources if rl is not None else ()):
        file = Path((source.function or "").rpartition(":")[0]).expanduser()
        if rl is not None and file.is_file():
            key = f"stages.{rl.name}." + ("reward" if rl.reward else f"rewards.{number}.function")
            found[f"{key}: {file}"] = hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    return found


def _require_same_adapter(run: RunFolder, recipe: Recipe, key: str) -> None:
    """Refuse to begin with a run that trained other matrices: an adapter of another kind, or none. Raises UserError."""
    before, model = run.recipe.model, recipe.model
    if not isinstance(before, HuggingFaceModel) or not isinstance(model, HuggingFaceModel) or before.adapter == model.adapter:
        return
    was, now = (
        "all weights" if adapter is None else f"an adapter of rank {adapter.rank}, alpha {adapter.alpha:g} on {adapter.targets}"
        for adapter in (before.adapter, model.adapter)
    )
    sets = "null" if before.adapter is None else f"'{{rank: {before.adapter.rank}, alpha: {before.adapter.alpha:g}, targets: "
    sets += "" if before.adapter is None else f"{before.adapter.targets}}}'"
    raise UserError(
        f"{key}: {run.path} trained {was}, and model.adapter asks for {now}",
        f"--set model.adapter={sets}; or windtunnel export {run.path} --to FOLDER, and --set {key}=FOLDER",
    )
