"""What must be alike on every node of a cluster before anything is placed there: each difference is named with its node."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.actors import ActorLost, NoAnswer, answer_of
from windtunnel.cluster import gpu_faults, gpus
from windtunnel.recipe import HuggingFaceModel, Recipe, UserError, find_model

from .compilers import installed

PACKAGES = ("windtunnel", "ray", "torch", "transformers", "safetensors")
ANSWER_SECONDS = 60.0
SKEW_SECONDS = 30.0
"""Clocks further apart than this put events and checkpoints of nodes in a wrong order."""


def require_alike(nodes: Sequence[tuple[str, str]], folder: Path, recipe: Recipe) -> None:
    """Ask every node what it has, and refuse what would fail later.

    Args:
        nodes: id and name of each.
        folder: of the run.
        recipe: of the stage.

    Raises:
        UserError: a node gives no answer, does not see the run's folder or the model, has another version of a package, no vLLM
            or one that is not known to work, a GPU that is broken, or another time.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    model = find_model(recipe.model.config) if isinstance(recipe.model, HuggingFaceModel) else None
    python = os.environ.get("WINDTUNNEL_VLLM_PYTHON")
    wants_vllm = recipe.rl is not None and recipe.rl.engine == "vllm"
    ask: Any = ray.remote(facts_of)
    asked = [
        ask.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            str(folder.resolve()), None if model is None else str(model), wants_vllm, python
        )
        for node, _ in nodes
    ]
    # This machine drives the job and trains nothing: vLLM is the nodes' affair.
    here = facts_of(str(folder.resolve()), None if model is None else str(model), False, None)
    for reference, (_, name) in zip(asked, nodes, strict=True):
        sent = time.time()
        try:
            found = answer_of(reference, f"node {name}: what it has", ANSWER_SECONDS)
        except (NoAnswer, ActorLost) as error:
            raise UserError(str(error), f"look at that node (ray status), or leave it out: ray stop on {name}") from None
        judge_node(name, here, found, folder, model, sent=sent, received=time.time())


def facts_of(folder: str, model: str | None, wants_vllm: bool, vllm_python: str | None) -> dict[str, Any]:
    """Return what this node has: versions, what it sees of the run and the model, vLLM's version, broken GPUs, its clock."""
    from windtunnel.rl import vllm_version

    return {
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in PACKAGES},
        "folder": Path(folder).is_dir(),
        "model": {} if model is None else _weights(Path(model)),
        "vllm": vllm_version(vllm_python or sys.executable) if wants_vllm else "",
        "gpu_faults": gpu_faults(gpus()) if shutil.which("nvidia-smi") else [],
        "time": time.time(),
    }


def judge_node(
    name: str,
    here: Mapping[str, Any],
    there: Mapping[str, Any],
    folder: Path,
    model: Path | None,
    *,
    sent: float,
    received: float,
) -> None:
    """Refuse a node by its facts; see `require_alike`.

    Args:
        name: of the node.
        here: this machine's facts.
        there: the node's.
        folder: of the run.
        model: folder of the model's weights, where they are known.
        sent: when it was asked, by this machine's clock.
        received: when it had answered.
    """
    if not there["folder"]:
        raise UserError(
            f"node {name} does not see the run's folder {folder}", "put runs on a disk that all nodes mount: --root FOLDER"
        )
    # By name and size, as hashing a model on every node would take longer than the check is worth; a node may have more
    # files.
    unlike = sorted(file for file, size in here["model"].items() if there["model"].get(file) != size)
    if unlike:
        raise UserError(
            f"node {name} does not have the model: {unlike[0]} of {model} is not there, or of another size",
            "put it on a disk that all nodes mount, and give model.config that folder",
        )
    for package, version in here["packages"].items():
        if there["packages"][package] != version:
            raise UserError(
                f"node {name} has {package} {there['packages'][package] or 'not at all'}, this machine {version}",
                "use one environment on a disk that all nodes mount, or install the same versions",
            )
    # Patch releases may differ; actors' pickles do not cross minor ones.
    if there["python"].rpartition(".")[0] != here["python"].rpartition(".")[0]:
        raise UserError(
            f"node {name} has Python {there['python']}, this machine {here['python']}", "use the same Python on all nodes"
        )
    _judge_vllm(name, there["vllm"])
    if there["gpu_faults"]:
        raise UserError(
            f"node {name}: {'; '.join(there['gpu_faults'])}", f"leave the node out (ray stop on {name}), or have the GPU reset"
        )
    # The answer was given at some time between question and receipt: only what lies outside is the clocks' difference.
    early, late = sent - there["time"], there["time"] - received
    if max(early, late) > SKEW_SECONDS:
        raise UserError(
            f"node {name}: its clock is {max(early, late):.0f} s {'behind' if early > late else 'ahead of'} this machine's",
            "set the clocks (chronyc makestep), or leave the node out",
        )


def _judge_vllm(name: str, version: str | None) -> None:
    if version == "":
        return
    from windtunnel.rl import VLLM_VERSIONS, known_vllm

    if version is None:
        raise UserError(
            f"node {name} has no vLLM, and stages.rl.engine is vllm",
            f"pip install 'vllm{VLLM_VERSIONS}' there, or name an interpreter that has it: WINDTUNNEL_VLLM_PYTHON=/path/python",
        )
    if not known_vllm(version):
        raise UserError(
            f"node {name} has vLLM {version}, and this package works with vllm{VLLM_VERSIONS}", "install one of those"
        )


def _weights(folder: Path) -> dict[str, int]:
    """Return the files of a model and their sizes."""
    return {file.name: file.stat().st_size for file in folder.glob("*.*") if file.suffix in (".json", ".safetensors")}
