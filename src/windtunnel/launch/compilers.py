"""Compile a training's kernels while its data are prepared and its ranks start: in processes, each what none of the others does.

FlashAttention-4 and Triton keep what they have compiled on disk, where the ranks find it. What has been compiled for a recipe's
shapes is marked there too, and nothing is started for it again.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType

from windtunnel.recipe import GPTModel, Recipe
from windtunnel.run import name_compilers

from .processes import ALLOCATOR
from .ready import COUNT, end_process, start_rank

FORWARD, BACKWARD, STEP = "forward", "backward", "step"
"""Parts: the kernels of attention in either pass, and all others of a step."""
LEAST_CORES = 8
"""With fewer, what is compiled beside the rest takes from it what it gives."""
_PACKAGES = ("torch", "triton", "flash-attn-4", "nvidia-cutlass-dsl", "windtunnel")
_OF_STAGE = ("precision", "deterministic", "compile", "graphs", "micro_batch")


class Compilers:
    """Processes that compile, and end with this one.

    Args:
        recipe: what will be trained.
        parts: what is to be compiled.
        key: names what is compiled: see `mark`.
    """

    def __init__(self, recipe: Recipe, parts: Sequence[str], key: str = "") -> None:
        given = json.dumps({"recipe": recipe.model_dump(mode="json"), "key": key})
        self._processes = [_start(part, given) for part in parts]
        # Ranks wait for these processes before they compile for themselves.
        name_compilers(process.pid for process in self._processes)

    @classmethod
    def of(cls, recipe: Recipe) -> Compilers:
        """Start what compiles for a recipe what has not been compiled here yet: on a GPU, of a GPT whose depth is known."""
        from windtunnel.rig import are_shared, cpu_cores, detect_rig

        gpu = detect_rig(measure_cpu=False).gpu
        known = isinstance(recipe.model, GPTModel) and recipe.model.depth != "auto"
        if gpu is None or not known or os.environ.get(COUNT) == "0" or cpu_cores() < LEAST_CORES or not are_shared():
            return cls(recipe, ())
        key = key_of(recipe, gpu.name)
        flash = installed("flash-attn-4") is not None and gpu.capability[0] in (9, 10)
        parts = (FORWARD, BACKWARD, STEP) if flash else (STEP,)
        return cls(recipe, [part for part in parts if not mark(part, key).exists()], key)

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes:
            end_process(process)


def key_of(recipe: Recipe, gpu: str) -> str:
    """Return what names the kernels of a recipe: two with the same key need the same, as far as that can be told at once."""
    stage = recipe.training[0]
    parts = [
        # Whatever changes kernels: another version of any of these compiles others.
        gpu, [installed(package) for package in _PACKAGES], recipe.model.model_dump(mode="json"),
        recipe.layout.model_dump(mode="json"), recipe.data.tokenizer.model_dump(mode="json"),
        [str(getattr(stage, name, None)) for name in _OF_STAGE], recipe.trm.model_dump(mode="json") if recipe.trm else None,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def mark(part: str, key: str) -> Path:
    """Return the file that says that a part has been compiled, or cannot be: it goes when what was compiled is deleted."""
    if part == STEP:
        folder = os.environ.get("TRITON_CACHE_DIR") or Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
    else:
        given = os.environ.get("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR")
        folder = given or Path(tempfile.gettempdir()) / getpass.getuser() / "flash_attention_cute_dsl_cache"
    return Path(folder) / f"windtunnel-{part}-{key}"


def installed(package: str) -> str | None:
    """Return the version of an installed package; None where it is not."""
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def _start(part: str, given: str) -> subprocess.Popen[str]:
    # It is no rank of the job that starts it, and would wait for the others.
    alone = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    environment = {**ALLOCATOR, **{name: value for name, value in os.environ.items() if name not in alone}}
    command = [sys.executable, "-m", "windtunnel.launch.compile_worker", part]
    process = start_rank(command, environment, subprocess.PIPE, subprocess.DEVNULL)
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin as port:  # one that has ended compiles nothing
        port.write(given)
    return process
