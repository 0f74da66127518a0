"""Check how the job is started: the batch script, and the scale model spread over ranks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say, trains_elsewhere
from windtunnel.cluster import UNLIMITED, BatchScript, parse_time, read_batch_script
from windtunnel.plan import Layout, Plan
from windtunnel.recipe import OWN_ENGINE, CountedCorpus, HuggingFaceModel, MissingModel, Recipe, UserError

# The batch script: whether Slurm takes it, and whether it asks for the rig and the time of the plan.

ASK_SECONDS = 20.0
_STARTERS = re.compile(r"\b(windtunnel|srun|torchrun|mpirun|python[\d.]*|bash|sh)\b")
_FILLED_IN = re.compile(r"%.*")  # file name patterns such as %j


def _launcher(context: Context, say: Say) -> Evidence:
    assert context.sbatch is not None
    found, script = Findings(), read_batch_script(context.sbatch)
    for what, fix in script.problems:
        found.problem(what, fix)
    for warning in script.warnings:
        found.warn(warning)
    _commands(found, context, script, say)
    _folders(found, script)
    _against_plan(found, context, script)
    say("asking Slurm")
    partition = _partition(found, script)
    asked = (
        f"{script.nodes or 1} nodes, {script.gpus_per_node or 'no'} GPUs a node, time {script.options.get('time', 'by default')}"
    )
    text = f"{context.sbatch}: {len(script.options)} options; {asked}; {partition}"
    return found.evidence(text, {"options": script.options, "nodes": script.nodes, "gpus_per_node": script.gpus_per_node})


def _commands(found: Findings, context: Context, script: BatchScript, say: Say) -> None:
    bash = shutil.which("bash")
    if bash:
        say("bash -n")
        done = _ask([bash, "-n", str(script.path)])
        if done is not None and done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["it cannot be parsed"])[0]
            found.problem(f"bash does not understand the script: {said}", "correct that line; bash -n shows all of it")
    if not any(_STARTERS.search(line) for line in script.commands):
        found.problem(f"{script.path} starts nothing", f"add a line such as: {_train(context)}")
        return
    body = "\n".join(script.commands)
    # Variables are for the shell to fill in, options are no recipes.
    for name in re.findall(r"windtunnel\s+train\s+([^\s\\-][^\s\\]*)", body):
        if "$" not in name and Path(name).name != Path(context.source).name:
            found.warn(f"{script.path} trains {name}, this check is of {context.source}")
    if re.search(r"windtunnel\s+train\b", body) and "--yes" not in body and " -y" not in body:
        found.warn(f"{script.path}: `windtunnel train` may ask for --yes, which a batch job cannot answer; add it if you agree")
    for path in re.findall(r"^\s*(?:source|\.)\s+(\S+)", body, re.M):
        if "$" not in path and "~" not in path and not Path(path).exists():
            found.warn(f"{script.path} reads {path}, which is not on this machine")


def _train(context: Context) -> str:
    """Return the command that trains what is checked, as one would type it."""
    sets = [word for override in context.overrides for word in ("--set", override)]
    return shlex.join(["windtunnel", "train", context.source, *sets, "--yes"])


def _folders(found: Findings, script: BatchScript) -> None:
    start = script.options.get("chdir")
    if start and "%" not in start and not Path(start).is_dir():
        found.warn(f"--chdir={start} is no folder on this machine")
    for name in ("output", "error"):
        value = script.options.get(name)
        if not value:
            continue
        folder = Path(start or ".") / _FILLED_IN.sub("x", value)
        if "%" not in str(Path(value).parent) and not folder.parent.is_dir():
            what = f"--{name}={value}: there is no folder {folder.parent}; the job would end at once and leave no log"
            found.problem(what, f"mkdir -p {folder.parent}")


def _against_plan(found: Findings, context: Context, script: BatchScript) -> None:
    rig = context.rig
    if rig.gpu is None:
        return
    nodes = script.nodes or 1
    if nodes != rig.nodes:
        found.problem(f"the script asks for {nodes} nodes, {rig.name} has {rig.nodes}", f"#SBATCH --nodes={rig.nodes}")
    gpus = script.gpus_per_node
    if gpus is None:
        found.problem("the script asks for no GPU", f"#SBATCH --gpus-per-node={rig.gpus_per_node}")
    elif gpus != rig.gpus_per_node:
        what = f"the script asks for {gpus} GPUs a node, {rig.name} has {rig.gpus_per_node}"
        found.problem(what, f"#SBATCH --gpus-per-node={rig.gpus_per_node}")
    kind = script.gpu_kind
    if kind and not _same_kind(kind, rig.gpu.name):
        found.problem(
            f"the script asks for GPUs of kind {kind}, {rig.name} has {rig.gpu.name}", f"name it {rig.gpu.name.lower()}"
        )
    tasks = script.options.get("ntasks-per-node")
    if tasks and tasks != "1" and gpus and int(tasks) != gpus:
        found.warn(f"--ntasks-per-node={tasks}: one task a node starts all ranks, or one a GPU ({gpus})")
    try:
        plan = context.plan()
    except UserError:
        return
    limit = script.seconds
    if plan.fits and limit is not None and limit < plan.hours * 3600:
        what = f"--time={script.options['time']} is less than the {plan.hours:.2f} h of the plan"
        # A tenth more than planned.
        hours, minutes = divmod(int(plan.hours * 66) + 1, 60)
        found.problem(what, f"#SBATCH --time={hours:02d}:{minutes:02d}:00, or --set budget.hours={limit / 3600:.2g}", shows="end")
    elif plan.fits and limit is None and script.options.get("time", "").upper() not in UNLIMITED:
        found.warn(f"no --time: the partition's default may be shorter than the plan's {plan.hours:.2f} h")


def _same_kind(asked: str, name: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    return plain(name.partition("-")[0]) in plain(asked)


def _partition(found: Findings, script: BatchScript) -> str:
    """Return what Slurm says about the partition, in words."""
    sinfo = shutil.which("sinfo")
    if sinfo is None:
        return "no Slurm here to ask about the partition"
    # One line for each partition and state of nodes: of a partition there may be several.
    done = _ask([sinfo, "--noheader", "--format=%P|%a|%l|%D|%G"])
    if done is None or done.returncode != 0:
        said = "does not answer" if done is None else (done.stderr.strip().splitlines() or ["failed"])[0]
        found.warn(f"sinfo: {said}; partitions were not looked at")
        return "partitions unknown"
    rows = [line.strip().split("|") for line in done.stdout.splitlines() if line.count("|") == 4]
    partitions = {row[0].rstrip("*"): row for row in rows}
    default = next((row[0].rstrip("*") for row in rows if row[0].endswith("*")), None)
    wanted = script.options.get("partition", default or "")
    for name in filter(None, wanted.split(",")):
        if name not in partitions:
            fix = f"#SBATCH --partition={default or next(iter(partitions), '...')}; sinfo lists them: {', '.join(partitions)}"
            found.problem(f"there is no partition {name}", fix)
            continue
        _fits_partition(found, script, partitions[name], [row for row in rows if row[0].rstrip("*") == name])
    _test_only(found, script)
    return f"partition {wanted or 'by default'}"


def _fits_partition(found: Findings, script: BatchScript, row: list[str], rows: list[list[str]]) -> None:
    name, state, limit = row[0].rstrip("*"), row[1], parse_time(row[2])
    if not state.startswith("up"):
        found.problem(f"partition {name} is {state}", "choose another, or ask when it will be up")
    asked = script.seconds
    if limit is not None and asked is not None and asked > limit:
        found.problem(
            f"--time={script.options['time']} is more than partition {name} allows ({row[2]})", f"#SBATCH --time={row[2]}"
        )
    nodes = sum(int(r[3]) for r in rows if r[3].isdigit())
    if script.nodes and nodes and script.nodes > nodes:
        found.problem(f"--nodes={script.nodes}: partition {name} has {nodes}", f"#SBATCH --nodes={nodes}")
    if script.gpus_per_node and not any("gpu" in r[4] for r in rows):
        found.problem(f"partition {name} has no GPUs", "choose one that has: sinfo --format='%P %G'")


def _test_only(found: Findings, script: BatchScript) -> None:
    """Ask sbatch itself whether it would take the script; nothing is submitted."""
    sbatch = shutil.which("sbatch")
    done = _ask([sbatch, "--test-only", str(script.path)]) if sbatch else None
    if done is not None and done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error" in line.lower()), done.stderr.strip()[:200])
        found.problem(f"sbatch --test-only: {said.strip()}", "correct the option that it names")


def _ask(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a program that answers at once and return what it says; None where it cannot be run or takes too long."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_SECONDS, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None


def _wanted(context: Context) -> bool:
    return context.sbatch is not None


# Training: what is ready can be trained.


def training(context: Context, say: Say) -> Evidence:
    """Ask `windtunnel train` whether it takes each stage, with its weights and its data."""
    from .prepare import epoch_tokens
    from .trainable import Options, initial_weights, require_trainable

    found, missing = Findings(), dict[str, MissingModel]()
    for recipe in context.stages:
        try:
            require_trainable(recipe)
            if recipe.training[0].init_from not in (None, "previous", "random"):
                initial_weights(recipe, Options())
            if not context.is_gpt and context.has_data:  # a GPT's are prepared by the check of the data
                say("preparing data")
                epoch_tokens(recipe, context.prepared)  # packs, and refuses what fits nowhere
        except UserError as error:
            if isinstance(error, MissingModel) and trains_elsewhere(context):
                missing[error.message] = error
            else:
                found.problem(error.message, error.fix or shlex.join(["windtunnel", "plan", context.source]))
    names = ", ".join(stage.name for stage in context.loaded.training)
    evidence = found.evidence(f"`windtunnel train` runs {names}", blocks=False)
    if missing:
        fixes = "; ".join(error.fix for error in missing.values() if error.fix)
        lacks = [error.lacks for error in missing.values()]
        return Evidence("; ".join(missing), warnings=evidence.warnings, absent=fixes, lacks=lacks)
    return evidence


# Ranks: as many processes as the layout has axes give the losses of one.

STEPS, WARM_UP = 4, 1
SEQUENCES, SEQUENCE = 4, 64
"""Of a step over all ranks."""
GPT_TOLERANCE, HF_TOLERANCE = 2e-3, 1e-4
"""Relative: sums over ranks are taken in another order, and Muon iterates on what comes of it."""
TIMEOUT = 100.0


def _has_ranks(context: Context) -> bool:
    """Return whether there is a scale model to spread, and steps that a trial can take."""
    return context.recipe.rl is None and (context.has_data or not context.is_gpt)


def ranks(context: Context, say: Say) -> Evidence:
    """Take a few steps on random tokens by one process, and by two, at the same time; their losses must be the same."""
    from windtunnel.launch import try_steps

    plan = _plan(context)
    most = max(1, max((p.ranks for p in ([plan.layout] if plan else [])), default=2))
    if most == 1:
        return Evidence("the layout has one rank: nothing is spread", {"ranks": 1})
    if plan is not None and plan.layout.engine != OWN_ENGINE:
        text = f"{plan.layout.describe()}: these axes are run by {plan.layout.engine}"
        return Evidence(text, absent="rehearse on the target: only data-parallel ranks can be tried here")
    recipe, vocab = _scaled(context)
    say("one process and two")
    # Side by side: each waits for its processes, and a check has a time limit.
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(
                try_steps,
                recipe,
                _layout(recipe, plan, count),
                steps=STEPS,
                warm_up=WARM_UP,
                vocab=vocab,
                timeout=TIMEOUT,
                forker=context.forker,
            )
            for count in (1, 2)
        ]
        one, two = (job.result() for job in jobs)
    for count, trial in ((1, one), (2, two)):
        if trial.failure:
            raise CheckFailed(
                f"on {count} rank{'s' if count > 1 else ''}: {trial.failure}", "torchrun must be able to open ports on localhost"
            )
    worst = max(abs(b / a - 1) for a, b in zip(one.losses, two.losses, strict=True))
    allowed = GPT_TOLERANCE if context.is_gpt else HF_TOLERANCE
    how = _layout(recipe, plan, 2).describe().split(";")[0]
    text = f"{len(one.losses)} steps on {how}: losses {'are those of' if worst == 0 else f'within {worst:.0e} of'} one process"
    if worst > allowed:
        raise CheckFailed(f"{text}; {allowed:g} is allowed for another order of sums")
    return Evidence(text, {"ranks": 2, "steps": len(one.losses), "largest_relative_difference": worst})


def _plan(context: Context) -> Plan | None:
    try:
        return context.plan()
    except UserError:
        return None  # the check of the plan says why there is none


def _scaled(context: Context) -> tuple[Recipe, int | None]:
    """Return the scale model as a recipe that a trial takes, and its vocabulary."""
    if context.is_gpt:
        return context.scale, context.prepared.tokenizer.vocab
    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    small = model.model_copy(update={"config": str(context.small_config), "sequence": SEQUENCE})
    data = context.recipe.data.model_copy(update={"corpus": CountedCorpus(), "split": None})
    return context.recipe.model_copy(update={"model": small, "data": data}), None


def _layout(recipe: Recipe, plan: Plan | None, ranks: int) -> Layout:
    sequence = recipe.gpt.sequence if recipe.model.kind == "gpt" else SEQUENCE
    shard, recompute = (plan.layout.shard, plan.layout.recompute) if plan else ("optimizer", "none")
    fp8 = recipe.model.kind == "huggingface" and recipe.model.weights == "fp8"
    return Layout(
        ranks=ranks, micro_batch=2, accumulation=SEQUENCES // (2 * ranks), sequence=sequence, precision="bf16" if fp8 else "fp32",
        compile=False, device="cpu", shard=shard, recompute=recompute,
        expert=ranks if plan is not None and plan.layout.expert > 1 else 1,
    )  # fmt: skip


CHECKS = (
    Check(
        "training", "`windtunnel train` runs every stage of the recipe", "plan it: windtunnel plan", training,
        needs=("recipe",), apart=False,
    ),
    Check(
        "launcher",
        "the batch script is one that Slurm takes, and asks for what the plan needs",
        "man sbatch",
        _launcher,
        rung="target",
        needs=("recipe", "rig"),
        applies=_wanted,
        limit=90.0,
    ),
    Check(
        "ranks", "the scale model spread over ranks gives the losses of one process", "leave layout to the plan", ranks,
        shows="first steps", needs=("recipe", "torch", "data", "model"), applies=_has_ranks, limit=150.0, stage="ranks",
        forks=True,
    ),
)  # fmt: skip
