"""The batch script of a job: options that Slurm takes, the environment that reaches the job, and one line that starts it."""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from windtunnel.recipe import UserError

from .batch_script import parse_time, value_problem
from .job import OUTPUT, TEMPORARY, JobSpec
from .sbatch_options import FLAGS, VALUES

LEAST_NOTICE = 30
_OWN = {
    "signal": "--notice SECONDS", "chdir": "the folder in which you launch", "output": "the job's folder has output.log",
    "error": "the job's folder has output.log", "open-mode": "output.log is appended to", "requeue": "it is always set",
    "no-requeue": "the job goes on by itself", "export": "variables are chosen: see the script", "array": "one job is one run",
    "ntasks-per-node": "one task a node starts all", "ntasks": "one task a node starts all", "gpus": "--on RIG",
    "gpus-per-node": "--on RIG, and --slurm gpus-per-node=KIND:COUNT for the cluster's name of the GPU",
    "wait": "windtunnel launch --status", "test-only": "--dry-run", "job-name": "the recipe's name",
}  # fmt: skip
"""Options that the script sets itself, and what to use in their place."""
# What reaches the job of the environment in which it is asked for. Credentials do not: scripts are kept, and shown.
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX",
    "CUDA_HOME", "XDG_CACHE_HOME", "no_proxy", "NO_PROXY",
)  # fmt: skip
_KEPT_PREFIXES = ("NCCL_", "GLOO_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH_", "PYTORCH_", "VLLM_", "UCX_", "FI_",
                  "WINDTUNNEL_", "OMP_", "APPTAINER_")  # fmt: skip
# By name: better a variable too few than a key in a file that is kept.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|_KEY(_|$)|APIKEY|WEBHOOK", re.I)
# Of this process alone: the job would take itself for another run's.
_LEFT = ("WINDTUNNEL_JOB", "WINDTUNNEL_STARTED", "WINDTUNNEL_SUPERVISOR", "HF_HUB_DISABLE_XET")


def read_options(texts: Sequence[str]) -> dict[str, str]:
    """Read options as users write them, NAME=VALUE or NAME.

    Raises:
        UserError: no option of sbatch, one that the script sets itself, or a value that it does not take.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        name = name.strip().lower().replace("_", "-")
        if name not in VALUES and name not in FLAGS:
            near = difflib.get_close_matches(name, [*VALUES, *FLAGS], n=1)
            raise UserError(
                f"--slurm {text}: sbatch has no option --{name}", f"did you mean {near[0]}?" if near else "man sbatch"
            )
        if name in _OWN and not (name == "gpus-per-node"):
            raise UserError(f"--slurm {text}: the script sets --{name} itself", _OWN[name])
        problem = value_problem(name, value) if name in VALUES else None
        if problem is not None or (name in VALUES and not equals):
            raise UserError(
                f"--slurm {text}: {(problem or (f'--{name} needs a value',))[0]}",
                f"for example: --slurm {name}={VALUES[name][1]}",
            )
        if name == "exclude":
            value = ",".join(filter(None, [found.get(name), value]))  # nodes that are bad for one reason or another
        elif found.get(name, value) != value:
            raise UserError(f"--slurm {text}: --{name} is given twice, before as {found[name] or 'a flag'}", "give it once")
        found[name] = value
    return found


def require_layout(options: Mapping[str, str], *, rig: str, nodes: int, gpus_per_node: int) -> tuple[int, str]:
    """Return the nodes, and the text for --gpus-per-node, that the rig of the plan asks for.

    Raises:
        UserError: the options ask for other nodes or GPUs than the plan is for.
    """
    asked = options.get("nodes")
    count = int(asked.partition("-")[0]) if asked else nodes
    if gpus_per_node and asked and asked != str(nodes):
        raise UserError(
            f"--slurm nodes={asked}: the plan is for {rig}, {nodes} nodes of {gpus_per_node} GPUs",
            f"--on '{asked}x({rig.partition('(')[2].rstrip(')') or rig})', or leave nodes out",
        )
    if asked and not asked.isdigit():
        raise UserError(f"--slurm nodes={asked}: a run has a fixed number of nodes", f"--slurm nodes={count}")
    gpus = options.get("gpus-per-node", str(gpus_per_node))
    number = gpus.rpartition(":")[2]
    if number != str(gpus_per_node):
        raise UserError(
            f"--slurm gpus-per-node={gpus}: the plan is for {rig}, {gpus_per_node} GPUs a node",
            f"--slurm gpus-per-node={gpus.rpartition(':')[0] + ':' if ':' in gpus else ''}{gpus_per_node}, or another --on RIG",
        )
    return count, gpus if gpus_per_node else ""


def time_limit(options: Mapping[str, str], hours: float, notice: int) -> str:
    """Return the time limit of one attempt: as asked for, or what the plan takes with its error and a margin.

    Raises:
        UserError: it is not longer than the notice.
    """
    if notice < LEAST_NOTICE:
        raise UserError(f"--notice {notice}: too short to save and end", f"--notice {LEAST_NOTICE} or more")
    asked = options.get("time")
    if asked is None:
        # A quarter of an hour for the nodes' checks, and for starting slowly from a shared disk.
        minutes = math.ceil(60 * hours) + math.ceil(notice / 60) + 15
        return f"{minutes // 60:02d}:{minutes % 60:02d}:00"
    seconds = parse_time(asked)
    # Slurm sends its signal up to a minute early, and two thirds of an attempt at least are to be training.
    if seconds is not None and seconds < 3 * notice:
        raise UserError(
            f"--slurm time={asked}: told to save {notice} s before its end, the job has {max(0, seconds - notice):.0f} s",
            f"--slurm time of {math.ceil(3 * notice / 60)} minutes or more, or a shorter --notice",
        )
    return asked


def render_script(
    spec: JobSpec, asked: Mapping[str, str], *, gpus: str, limit: str, job: Path, environment: Mapping[str, str]
) -> str:
    """Return the batch script of a job.

    Args:
        spec: what the job starts.
        asked: options of sbatch; see `read_options`.
        gpus: for --gpus-per-node, '' for none.
        limit: of one attempt.
        job: its folder.
        environment: in which the job is asked for.
    """
    options = {
        "job-name": spec.recipe, "nodes": str(spec.nodes), "ntasks-per-node": "1", **({"gpus-per-node": gpus} if gpus else {}),
        "exclusive": "", "time": limit, "signal": f"B:USR1@{spec.notice}", "requeue": "", "open-mode": "append",
        "output": str(job / OUTPUT), "chdir": spec.workdir, "export": "NIL",
    }  # fmt: skip
    # The user's own win, but for those that the plan decides.
    options |= {name: value for name, value in asked.items() if name not in ("nodes", "gpus-per-node", "time")}
    # The two contradict each other, and the user's word is the later one.
    if "oversubscribe" in options:
        del options["exclusive"]
    lines = [f"#SBATCH --{name}" + (f"={_value(value)}" if value else "") for name, value in options.items()]
    kept = kept_variables(environment)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(kept.items())]
    return "\n".join([
        "#!/bin/bash",
        *lines,
        f"# {spec.recipe} on {spec.rig}, written by `windtunnel launch`. Of the environment only these variables reach it,",
        "# and no credential: programs find their own (a role, a profile, ~/.cache/huggingface/token).",
        "set -eu",
        *exports,
        "export SLURM_EXPORT_ENV=ALL  # to the steps that srun starts on the nodes",
        "# Temporary files and caches lie on each node's own disk.",
        f'export TMPDIR={shlex.quote(spec.temporary)}/{TEMPORARY}"$SLURM_JOB_ID"',
        *(f'export {name}="$TMPDIR"/{folder}' for name, folder in CACHES.items()),
        'mkdir -p "$TMPDIR"',
        "# Checks every node, brings Ray up where the recipe needs it, trains, and comes back until the run has ended.",
        f"exec {shlex.join([sys.executable, '-m', 'windtunnel.cluster', str(job)])}",
        "",
    ])  # fmt: skip


CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "VLLM_CACHE_ROOT": "vllm",
    "CUDA_CACHE_PATH": "cuda",
}


def python_command(container: str | None, binds: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs Python on a node: this interpreter, or that of a container's image."""
    if container is None:
        return (sys.executable,)
    given = [word for place in binds for word in ("--bind", place)]
    return ("apptainer", "exec", "--nv", *given, container, "python3")


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that reach the job."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _KEPT or name.startswith(_KEPT_PREFIXES)) and name not in _LEFT and not _SECRET.search(name)
    }


def in_allocation() -> str | None:
    """Return the number of the allocation in which this process was started, as by salloc; None outside."""
    return os.environ.get("SLURM_JOB_ID") or None


def _value(value: str) -> str:
    return f'"{value}"' if re.search(r"\s", value) else value
