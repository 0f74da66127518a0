"""Before any training process starts: data, plan, confirmation, run folder."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from windtunnel.data import (
    PreparedData,
    PromptFile,
    describe_added,
    describe_packing,
    failed_gates,
    prepare,
    preview,
    require_unread_test,
)
from windtunnel.model import RANDOM_BASE, adapts_random_weights, derive, describe_base, hf_shape
from windtunnel.plan import Plan, count_text, hours_text, make_plan, other_engine, refuse, resolve, without_effect
from windtunnel.recipe import GRPO, Budget, GPTModel, HuggingFaceModel, Recipe, UserError
from windtunnel.rig import Rig, detect_rig
from windtunnel.run import Messenger, RunFolder, newest_run

from .trainable import Options, initial_weights, require_same_base, require_trainable, reward_files

Say = Callable[[str], None]
LINE_SECONDS = 5.0
PREVIEW_TOKENS = 200


def prepare_run(recipe: Recipe, options: Options, say: Say) -> RunFolder:
    """Prepare the data, make the plan and return a locked run folder, new or to be resumed.

    Args:
        recipe: of one stage that trains.
        options: how the command was called.
        say: told what was chosen, and what to know of it.

    Raises:
        UserError: bad data; a test period that the base model has read about; a plan that does not fit, with what would; a
            confirmation that is missing; a run folder of another recipe or in use.
    """
    # In the order of what it costs to find out: seconds first, minutes of preparing data behind them.
    require_trainable(recipe)
    require_vllm_here(recipe.rl)
    existing = _existing(recipe, options)
    if existing is not None:
        recipe = _to_go_on(existing, recipe, say)
    rig = rig_of(options)
    Messenger(recipe.notify, recipe.name, say)  # an address that is missing is said before anything is spent
    _require_dollars_to_count(recipe.budget, rig.dollars_per_hour)
    if not _automatic(recipe):
        # Before minutes of preparing data: with an estimate of its vocabulary and size in place of what it has.
        early = make_plan(recipe, rig)
        _require_runnable(recipe, early)
    data = prepare(recipe, progress=data_lines(say))
    require_unread_test(recipe, data)
    for note in data.notes:
        say(f"data: {note}")
    for character, count in data.skipped.items():
        say(f"data: {count:,} x {character!r} outside the alphabet skipped")
    for failed in failed_gates(recipe, data):
        say(f"warn: {failed}")
    for line in look_before_training(recipe, data, called=options.called, colour=options.colour):
        say(line)
    recipe, plan = _plan(recipe, rig, data, options, say)
    derived = _derived(recipe, data)
    facts = {"checksum": data.checksum, "train_tokens": epoch_tokens(recipe, data), "skipped": data.skipped}
    if existing is not None:
        run = _go_on(existing, recipe, rig, plan, facts, say, yes=options.yes)
        run.keep_job(options.job)
        return run
    initial = initial_weights(recipe, options)
    run = RunFolder.create(options.root, recipe, rig=asdict(rig), plan=plan.to_json(), derived=derived, command=sys.argv)
    if initial is not None:
        run.update(init=initial)
        say(f"weights: those of {initial['run']}, step {initial['step']:,}")
    if isinstance(recipe.model, HuggingFaceModel):
        base = describe_base(recipe)
        run.update(base=base)
        if base is None and initial is None:
            _tell_random(recipe, say)
    run.update(data=facts, **({} if options.before is None else {"before": dict(options.before)}), **_expected(options))
    run.update(rewards={name: [checksum] for name, checksum in reward_files(run.recipe).items()})
    run.keep_job(options.job)
    data.tokenizer.save(run.tokenizer_path)
    say(f"run {run.path}")
    for name, entry in derived.items():
        say(f"  {name:<14} {entry['value']:<12,.6g} {entry['rule']}")
    return run


def require_vllm_here(stage: GRPO | None) -> None:
    """Refuse engines of vLLM where this machine is to run them and has none; a cluster's nodes are asked when they are joined."""
    if stage is not None and stage.engine == "vllm" and stage.placement == "local":
        from windtunnel.rl import require_vllm

        require_vllm()


def _tell_random(recipe: Recipe, say: Say) -> None:
    """Say that a Hugging Face model begins with random weights, and why."""
    stage, model = recipe.training[0], recipe.model
    assert isinstance(model, HuggingFaceModel)
    asked = f"as stages.{stage.name}.init_from asks"
    none = f"since {model.config} has none; a model's own: windtunnel fetch OWNER/NAME"
    say(f"weights: random ones, {asked if stage.init_from == 'random' else none}")
    if adapts_random_weights(recipe):
        say(f"warn: {RANDOM_BASE}")


def _require_dollars_to_count(budget: Budget, dollars_per_hour: float | None) -> None:
    """Refuse a limit in dollars that nothing on this machine comes to."""
    if budget.dollars is None:
        return
    if dollars_per_hour is None:
        raise UserError(
            f"budget.dollars is {budget.dollars:g}, and this machine has no known price",
            "give dollars an hour for the whole machine: --price 2.50, or WINDTUNNEL_PRICE=2.50",
        )
    others = (budget.hours, budget.steps, budget.tokens, budget.epochs)
    if dollars_per_hour == 0 and all(limit is None for limit in others):
        raise UserError(
            f"budget.dollars is {budget.dollars:g}, and this machine costs $0 an hour: training would never end",
            "name another limit, for example --set budget.hours=1, or what it costs: --price 2.50",
        )


def plan_again(folder: Path, options: Options, nodes: tuple[int, int] | None, say: Say) -> int:
    """Plan a run on what is left of a cluster, so that it goes on there; return its ranks.

    Args:
        folder: of the run, which nothing trains now.
        options: that it was begun or resumed with.
        nodes: with GPUs, and the GPUs of each; None: there are none with GPUs.
        say: told what changes.

    Raises:
        UserError: see `prepare_run`.
    """
    here = replace(options, run=folder, resume=True, nodes=nodes, yes=True)
    with prepare_run(RunFolder.open(folder).recipe, here, say) as run:
        return int(run.manifest["plan"]["layout"]["ranks"])


def look_before_training(recipe: Recipe, data: PreparedData, *, called: str | None = None, colour: bool = False) -> list[str]:
    """Return what to look at before money is spent: how conversations are packed, one with what is learned of it, or a prompt.

    Args:
        recipe: of one stage.
        data: its own.
        called: what the command called the recipe; None: its name.
        colour: mark by colours what is learned.

    Raises:
        UserError: a conversation is too long and that is refused, or none is short enough.
    """
    if isinstance(data.train, PromptFile):
        first = data.train.prompt(0)
        asked = data.tokenizer.decode(first.ids.tolist())
        told = f"the first, of {len(first.ids)} tokens: {asked!r}, answer {first.answer!r}"
        return [f"data: {data.train.samples:,} prompts; {told}"]
    packed = [f"data: {line}" for line in describe_packing(data, recipe.model.sequence)]
    lines, added = packed, getattr(recipe.data.tokenizer, "add", [])
    if added and isinstance(recipe.model, HuggingFaceModel):
        rows = hf_shape(recipe.model.config).vocab
        lines = [*(f"data: {line}" for line in describe_added(data.tokenizer, added, rows)), *packed]
    if packed:
        mark = "green" if colour else "between ⟦ and ⟧"
        shown = preview(data, 1, colour=colour, width=min(100, shutil.get_terminal_size().columns), most_tokens=PREVIEW_TOKENS)
        more = f"windtunnel preview {shlex.quote(called or recipe.name)}"
        lines += [f"preview: what is learned is {mark}; more with: {more}", shown.rstrip()]
    return lines


def _expected(options: Options) -> dict[str, Any]:
    """Return what was expected when the first stage of a job began, to be kept by the stage after it too."""
    if options.before is None:
        return {}
    return {"expect": RunFolder.open(options.root / str(options.before["run"])).manifest.get("expect")}


def _automatic(recipe: Recipe) -> bool:
    """Return whether the plan chooses the model's depth."""
    return isinstance(recipe.model, GPTModel) and recipe.model.depth == "auto"


def _derived(recipe: Recipe, data: PreparedData) -> dict[str, Any]:
    """Return the values that rules derive from the recipe, with the rules; of a Hugging Face model nothing."""
    if not isinstance(recipe.model, GPTModel):
        return {}
    return {name: {"value": value, "rule": rule} for name, value, rule in derive(recipe, data.tokenizer.vocab).rows()}


def _existing(recipe: Recipe, options: Options) -> Path | None:
    if options.run is not None:
        if options.run.exists():
            return options.run
        raise UserError(f"no run folder {options.run}", "leave --run out to start a new run")
    return newest_run(options.root, recipe.name, called=options.called) if options.resume else None


def _to_go_on(path: Path, recipe: Recipe, say: Say) -> Recipe:
    """Return the recipe with which a run goes on. Raises UserError where it is of another recipe or model."""
    run = RunFolder.open(path, recipe)
    if recipe.expect != run.recipe.expect:
        say(f"note: expect is as it was when {path.name} began; the recipe's is for a new run")
    require_same_base(run, run.recipe)
    return run.recipe


def _go_on(path: Path, recipe: Recipe, rig: Rig, plan: Plan, facts: dict[str, Any], say: Say, *, yes: bool) -> RunFolder:
    run = RunFolder.open(path, recipe, write=True)
    mended = run.manifest.pop("mended", None)
    if mended:
        say(f"warn: {mended}")
    if run.changes:
        say(f"goes on with other values: {'; '.join(run.changes)}")
        told = {"time": time.time(), "changes": run.changes}
        run.manifest["changes"] = [*run.manifest.get("changes", []), told]
    problem = _another(run, plan, facts) or _rewarded_otherwise(run, say, yes=yes)
    if problem is not None:
        run.leave(problem.message)
        run.close()
        raise problem
    run.update(rig=asdict(rig), plan=plan.to_json(), data=facts)
    return run


def _another(run: RunFolder, plan: Plan, facts: dict[str, Any]) -> UserError | None:
    """Return the refusal of a run that cannot go on with this data and plan; None: it can."""
    # Other data under the same recipe would be another run, whose losses belong to nothing.
    before = run.manifest.get("data", {}).get("checksum", facts["checksum"])
    if before != facts["checksum"]:
        return UserError(
            f"run {run.path} was trained on other data: checksum {before}, now {facts['checksum']}",
            "put the old files back, or start a new run",
        )
    own = run.manifest["plan"]["layout"]["batch_tokens"]
    # A round is as many prompts and answers on any number of learners; what a layout fills its last micro-batch with is none.
    if run.recipe.rl is None and own != plan.layout.batch_tokens:
        return UserError(
            f"run {run.path} takes {own:,} tokens a step, this machine's plan {plan.layout.batch_tokens:,}",
            f"--set stages.{run.recipe.training[0].name}.batch_tokens={own}, or another number of --gpus",
        )
    return None


def _rewarded_otherwise(run: RunFolder, say: Say, *, yes: bool) -> UserError | None:
    """Return the refusal of a run whose reward's file has changed; None: it has not, or that was confirmed, and is said."""
    now, known = reward_files(run.recipe), run.manifest.get("rewards", {})
    other = [name for name, checksum in now.items() if checksum not in known.get(name, [checksum])]
    if other and not yes:
        return UserError(
            f"{'; '.join(other)} has changed since {run.path} was rewarded by it",
            "put the old file back, start a new run, or confirm with --yes that scores of before and after will not compare",
        )
    if other:
        what = f"{'; '.join(other)} has changed"
        say(f"warn: {what}: rewards and held-out scores of before and after do not compare")
        run.manifest["changes"] = [*run.manifest.get("changes", []), {"time": time.time(), "changes": [what]}]
    # All of them, so that the old file may be put back.
    run.manifest["rewards"] = known | {name: sorted({*known.get(name, []), checksum}) for name, checksum in now.items()}
    return None


def rig_of(options: Options) -> Rig:
    """Return this machine, or as much of it as `windtunnel train` was told to use.

    Raises:
        UserError: it has fewer GPUs.
    """
    rig = detect_rig(options.root)
    if options.gpus is not None:
        if options.gpus > rig.gpus:
            fix = f"--gpus {rig.gpus}" if rig.gpus else "leave --gpus out"
            raise UserError(f"--gpus {options.gpus}: this machine has {rig.gpus}", fix)
        # Half of a machine's GPUs are taken to cost half of it: on a cloud whoever rents all of it gives the price.
        share = options.gpus / rig.gpus
        price = rig.dollars_per_hour * share if rig.dollars_per_hour is not None else None
        rig = replace(rig, gpus_per_node=options.gpus, dollars_per_hour=price)
    if options.nodes is not None and options.nodes[0]:
        nodes, gpus = options.nodes
        price = rig.dollars_per_hour * nodes if rig.dollars_per_hour is not None else None
        rig = replace(rig, name=f"{nodes}x({rig.name})", nodes=nodes, gpus_per_node=gpus, dollars_per_hour=price)
    if options.price is not None:
        rig = replace(rig, dollars_per_hour=options.price, price_note="--price")
    return rig


def _plan(recipe: Recipe, rig: Rig, data: PreparedData, options: Options, say: Say) -> tuple[Recipe, Plan]:
    vocab, corpus = data.tokenizer.vocab, epoch_tokens(recipe, data)
    automatic = _automatic(recipe)
    recipe = resolve(recipe, rig, vocab, corpus_tokens=corpus)
    plan = make_plan(recipe, rig, vocab, corpus_tokens=corpus)
    _require_runnable(recipe, plan)
    if automatic:
        size = f"{plan.depth}, {count_text(plan.params)} parameters"
        say(f"model.depth auto: {size}, is what this machine trains within the budget")
    say("; ".join([f"layout: {plan.layout.describe()}", *without_effect(recipe, plan.layout)]))
    say(f"ends: {plan.ends}; planned are {plan.steps:,} steps, {hours_text(plan.hours)}{_dollars(plan.dollars)}")
    for warning in plan.warnings:
        say(f"warn: {warning}")
    if plan.needs_yes and not options.yes:
        raise UserError(
            f"the plan asks for confirmation: {'; '.join(plan.warnings)}",
            "give more data or a smaller budget, or confirm with --yes",
        )
    return recipe, plan


def _require_runnable(recipe: Recipe, plan: Plan) -> None:
    """Refuse a plan that does not fit, or that another engine would have to run. Raises UserError."""
    if not plan.fits:
        raise refuse(plan)
    other = other_engine(recipe, plan.layout)
    if other is not None:
        raise UserError(*other)


def _dollars(amount: float | None) -> str:
    return "" if amount is None else f", ${amount:,.2f}"


def epoch_tokens(recipe: Recipe, data: PreparedData) -> int:
    """Return the tokens that steps count in one epoch: of prompts, those of their answers too."""
    if recipe.rl is None:
        return data.epoch_tokens(recipe.model.sequence)
    if not isinstance(data.train, PromptFile):
        raise UserError(
            f"stages.{recipe.rl.name} asks prompts, and data.corpus.kind is {data.corpus}",
            f"give the stage prompts: stages.{recipe.rl.name}.set: {{data.corpus: {{kind: prompts, files: [...]}}}}",
        )
    return int(data.train.samples * recipe.rl.round_tokens / recipe.rl.prompts)


def data_lines(say: Say, clock: Callable[[], float] = time.monotonic) -> Callable[[float, str], None]:
    """Return what reports the preparing of data: a line when something else begins, then one every few seconds.

    Args:
        say: shows a line.
        clock: gives seconds.
    """
    task, said_at = "", 0.0

    def progress(share: float, what: str) -> None:
        nonlocal task, said_at
        # Counts behind the colon change with every call.
        begun = what.partition(":")[0]
        if begun != task or clock() - said_at >= LINE_SECONDS:
            task, said_at = begun, clock()
            say(f"data: {what}" + (f" ({share:.0%})" if 0 < share < 1 else ""))

    return progress
