"""Up the ladder: ten steps of the full-size model on one GPU, then on all of this machine's, beside what was planned.

And one full-size run of a few steps that is saved, loaded, exported and evaluated.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.check import Check, CheckFailed, Evidence, Say
from windtunnel.launch import Trial, try_steps
from windtunnel.plan import Plan, make_plan
from windtunnel.recipe import (
    ArithmeticCorpus,
    Budget,
    ConversationCorpus,
    Every,
    Notify,
    Recipe,
    SudokuCorpus,
    ThesisCorpus,
    TrainingStage,
)
from windtunnel.rig import Rig

from .context import Context, Rehearsal, trains_here
from .following import train_to_end

# The median of ten settles within a few percent, and the GPU is paid for.
STEPS = 10
# Plans are meant to be nearer; beyond this the model may not fit, or break the budget.
GATE = 0.10
"""Most that memory and step time may exceed the plan, relative; as much below it is worth a warning."""
TIMEOUT_SECONDS = 900.0
_WORDS = {"memory": "memory", "step": "step time"}
_CALIBRATE = "`windtunnel plan --calibrate` puts what was measured into the plans"


def one_gpu(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Take ten full-size steps on one GPU."""
    return _steps(rehearsal, _alone(rehearsal.here), say)


def node(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Take ten full-size steps on all GPUs of this machine."""
    return _steps(rehearsal, rehearsal.here, say)


def _steps(rehearsal: Rehearsal, rig: Rig, say: Say) -> Evidence:
    recipe = rehearsal.resolved  # a depth left to the planner is the target's, not what one GPU would get
    say("planning")
    plan = make_plan(_in_turn(recipe) if rig.gpus == 1 else recipe, rig)
    if not plan.fits:
        return Evidence(
            f"the full-size model does not fit {rig.gpus} x {_gpu(rig)}: {plan.reasons[0]}", absent=_elsewhere(rehearsal)
        )
    if plan.layout.engine != "windtunnel":
        return Evidence(f"a layout of {plan.layout.engine} is planned, not tried", absent=_elsewhere(rehearsal))
    trial = try_steps(recipe, plan.layout, steps=STEPS, vocab=plan.vocab, timeout=TIMEOUT_SECONDS, say=say)
    if trial.failure is not None:
        # Any other failure has its cause in the log, and less memory would not help.
        fix = _smaller(recipe, plan) if trial.out_of_memory else None
        raise CheckFailed(f"{rig.gpus} x {_gpu(rig)}, {plan.layout.describe()}: {trial.failure}", fix)
    # Of a policy only the update is tried here: generating and judging have stages of their own.
    return _judge_learner(plan, trial) if recipe.rl is not None else _judge(plan, trial, rig)


def _in_turn(recipe: Recipe) -> Recipe:
    """Return the recipe with engines on the learners' GPUs: one GPU has room for none beside."""
    stage = recipe.rl
    if stage is None:
        return recipe
    apart = {"overlap": 0, "in_flight": False, "learners": None, "engines": None, "engine_tensor": None}
    return recipe.with_stages(rl=stage.model_copy(update={"engine": "in-turn", **apart}))


def _smaller(recipe: Recipe, plan: Plan) -> str:
    """Return what needs less memory, by the name of the stage that is tried."""
    assert plan.layout is not None
    half = plan.layout.micro_batch // 2
    if not half:
        return "windtunnel plan names layouts that need less: shorter sequences (model.sequence), an adapter, more GPUs"
    return f"--set stages.{recipe.training[0].name}.micro_batch={half}, half of the plan's"


# Two saves and a validation.
FULL_STEPS = 4
FULL_DOCUMENTS, FULL_PUZZLES, FULL_PROBLEMS, FULL_TOKENS = 100_000, 2_000, 16, 65_536


def full_size(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Train the full-size model for a few steps; save, load, export and evaluate it. Its files are removed afterwards."""
    from windtunnel.checkpoint import CheckpointStore
    from windtunnel.evaluate import evaluate_run
    from windtunnel.generate import export_model

    root, exported = rehearsal.folder / "full", rehearsal.folder / "full-export"
    try:
        train_to_end(rehearsal, full_recipe(rehearsal), root.name, say, of="the full-size model")
        run = next(root.glob("*/manifest.json")).parent
        store = CheckpointStore(run / "checkpoints")
        newest = store.newest_good(with_optimizer=True)
        if newest is None:
            raise CheckFailed(f"no checkpoint of the full-size model is good: {'; '.join(store.problems) or 'none is there'}")
        say(f"exporting step {newest.step}")
        made = export_model(run, exported)
        say("loading the exported folder alone")
        parameters = _load_alone(exported, rehearsal)
        report = evaluate_run(
            run, device=rehearsal.device, problems=FULL_PROBLEMS, progress=lambda share, what: say(f"{what} ({share:.0%})")
        )
    finally:
        # Each is as large as the model, and a rehearsal is kept.
        for folder in (root, exported):
            shutil.rmtree(folder, ignore_errors=True)
    assert report.validation is not None
    loss = report.validation.loss
    right = "" if report.answers is None else f", right answers {report.answers}"
    text = (
        f"{parameters:,} parameters trained {FULL_STEPS} steps; a checkpoint of {newest.bytes / 2**30:,.2f} GiB saved and read "
        f"again, {made.bytes / 2**30:,.2f} GiB exported and loaded alone; evaluated: loss {loss:.3f}{right}"
    )
    facts = {"parameters": parameters, "checkpoint_bytes": newest.bytes, "export_bytes": made.bytes}
    return Evidence(text, facts | {"loss": loss, "evaluation_seconds": report.seconds})


def full_recipe(rehearsal: Rehearsal) -> Recipe:
    """Return the recipe at full size for a few steps, on less of its data where that is generated."""
    recipe = rehearsal.resolved
    name, stage = next((name, stage) for name, stage in recipe.stages.items() if isinstance(stage, TrainingStage))
    # The stage before is not run here.
    first = None if stage.init_from == "previous" else stage.init_from
    changed: dict[str, Any] = {
        "gates": None, "set": {}, "budget": Budget(), "share": None, "init_from": first, "overridden": {},
        "validate_every": Every(steps=FULL_STEPS), "validation_tokens": FULL_TOKENS,
    }  # fmt: skip
    answers = getattr(stage, "answers", None)
    if answers is not None:
        changed["answers"] = answers.model_copy(update={"every": None})
    small = recipe.evaluation.model_copy(
        update={
            "name": "evaluate",
            "gates": None,
            "bits_per_byte_tokens": FULL_TOKENS,
            "samples": min(2, recipe.evaluation.samples),
        }
    )
    return recipe.model_copy(
        update={
            "stage": None,
            "data": recipe.data.model_copy(update={"corpus": _less(recipe.data.corpus)}),
            "stages": {name: stage.model_copy(update=changed), "evaluate": small},
            "budget": Budget(steps=FULL_STEPS),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": Every(steps=FULL_STEPS // 2)}),
            "notify": Notify(),
        }
    )


def _less(corpus: Any) -> Any:
    if isinstance(corpus, ArithmeticCorpus):
        return corpus.model_copy(update={"documents": min(corpus.documents, FULL_DOCUMENTS)})
    if isinstance(corpus, SudokuCorpus):
        return corpus.model_copy(update={"puzzles": min(corpus.puzzles, FULL_PUZZLES)})
    if isinstance(corpus, ConversationCorpus) and not corpus.files:
        return corpus.model_copy(update={"arithmetic": _less(corpus.arithmetic)})
    if isinstance(corpus, ThesisCorpus) and corpus.generated is not None:
        fewer = corpus.generated.model_copy(update={"records": min(corpus.generated.records, FULL_DOCUMENTS)})
        return corpus.model_copy(update={"generated": fewer})
    return corpus


def _load_alone(folder: Path, rehearsal: Rehearsal) -> int:
    """Load an exported folder with nothing else at hand, and return how many parameters it has."""
    if rehearsal.is_gpt:
        from windtunnel.model import load_weights

        return sum(parameter.numel() for parameter in load_weights(folder, device=rehearsal.device).parameters())
    from transformers import AutoModelForCausalLM

    from windtunnel.model import without_bar

    with without_bar():
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return int(loaded.num_parameters())


def _judge(plan: Plan, trial: Trial, rig: Rig) -> Evidence:
    """Hold what was measured against the plan; more than planned fails, less is a warning."""
    measured = {"memory": trial.reserved_gib or 0.0, "step": trial.step_seconds or 0.0}
    planned = {"memory": plan.reserved_gib, "step": plan.step_seconds}
    off = {name: value / planned[name] - 1 for name, value in measured.items()}
    memory = f"{measured['memory']:.1f} GiB reserved ({off['memory']:+.1%} of the plan)"
    step = f"{1000 * measured['step']:,.0f} ms a step ({off['step']:+.1%}), {trial.tokens_per_second or 0:,.0f} tokens/s"
    # Both numbers with their distance, also where they pass: trust in a plan grows by seeing it hold.
    text = f"{trial.steps} steps on {rig.gpus} x {_gpu(rig)}: {memory}, {step}"
    facts = {"measured": measured, "planned": planned, "off": off, "losses": list(trial.losses), "layout": trial.layout}
    worse = [_WORDS[name] for name in off if off[name] > GATE]
    better = [_WORDS[name] for name in off if off[name] < -GATE]
    if worse:
        raise CheckFailed(
            f"{text}: {' and '.join(worse)} above the plan by more than {GATE:.0%}",
            f"{_CALIBRATE}; look at hours and dollars again",
        )
    remark = f"{' and '.join(better)} below the plan by more than {GATE:.0%}: {_CALIBRATE}"
    return Evidence(text, facts, [remark] if better else [])


def _judge_learner(plan: Plan, trial: Trial) -> Evidence:
    """Hold the memory of a learner's update against the plan; its time is told, since a round is more than that."""
    memory, planned = trial.reserved_gib or 0.0, plan.reserved_gib
    off = memory / planned - 1
    text = (
        f"{trial.steps} updates by {plan.layout.ranks} learner(s) on answers as long as they may be: {memory:.1f} GiB reserved "
        f"({off:+.1%} of the plan), {1000 * (trial.step_seconds or 0.0):,.0f} ms each; nothing generated or judged"
    )
    facts = {"measured": {"memory": memory, "step": trial.step_seconds}, "planned": {"memory": planned}, "off": {"memory": off},
             "losses": list(trial.losses), "layout": trial.layout}  # fmt: skip
    if off > GATE:
        raise CheckFailed(f"{text}: memory above the plan by more than {GATE:.0%}", f"{_CALIBRATE}; look at the layout again")
    return Evidence(text, facts, [f"memory below the plan by more than {GATE:.0%}: {_CALIBRATE}"] if off < -GATE else [])


def _alone(rig: Rig) -> Rig:
    # A share of the node's price: the plan is only compared in time and memory, but it shows dollars too.
    dollars = None if rig.dollars_per_hour is None else rig.dollars_per_hour / max(1, rig.gpus)
    return replace(rig, gpus_per_node=1, dollars_per_hour=dollars)


def _gpu(rig: Rig) -> str:
    return rig.gpu.name if rig.gpu else "CPU"


def _elsewhere(rehearsal: Rehearsal) -> str:
    return f"the first minutes on {rehearsal.rig.name} will show it: rehearse there before training"


def _has_gpu(context: Context) -> bool:
    return context.here.gpu is not None


def _climbs_whole(context: Context) -> bool:
    return _has_gpu(context) and trains_here(context) and context.recipe.rl is None


def _has_gpus(context: Context) -> bool:
    return context.here.gpus > 1


_Climb = partial(Check, apart=False)
CHECKS = (
    _Climb(
        "one gpu",
        f"{STEPS} full-size steps on one GPU take the planned memory and time",
        "look at nvidia-smi for other work on this GPU, then at `windtunnel plan`",
        one_gpu,
        rung="gpu",
        shows="first steps",
        needs=("recipe", "rig", "gpu", "plan"),
        applies=_has_gpu,
    ),
    _Climb(
        "full size",
        "the full-size model is saved, loaded, exported and evaluated once",
        "read full.log in the rehearsal's folder; look at the free disk and at free memory of the host",
        full_size,
        rung="gpu",
        shows="first checkpoint",
        needs=("recipe", "rig", "gpu", "plan", "resume"),
        applies=_climbs_whole,
    ),
    _Climb(
        "node",
        f"{STEPS} full-size steps on all GPUs of this machine take the planned memory and time",
        "look at NVLink (nvidia-smi topo -m) and NCCL's variables",
        node,
        rung="node",
        shows="first steps",
        needs=("one gpu",),
        applies=_has_gpus,
    ),
)
