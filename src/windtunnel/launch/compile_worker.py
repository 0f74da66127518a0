"""Compile one part of a recipe's kernels: python -m windtunnel.launch.compile_worker PART. Started by `compilers`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
import threading
import traceback
from dataclasses import replace
from pathlib import Path

from windtunnel.plan import make_plan
from windtunnel.recipe import Layout, Recipe
from windtunnel.rig import detect_rig
from windtunnel.run import COMPILING_SECONDS, log_only

from .compilers import BACKWARD, FORWARD, mark
from .ready_rank import start_cuda

GIB = 2**30
BYTES_PER_PARAMETER = 20
"""Weights, gradients and states, with what a step adds."""
MOST_MEMORY = 0.25
"""Of a GPU's: ranks begin to use it meanwhile."""
SPECIAL = 16
"""Triton compiles apart for numbers that this divides."""


def main() -> int:
    """Compile what standard input names, for so long as it may take; that it failed is told to the run's log alone.

    Either is marked: whoever trains then compiles what is missing, and no later start waits for the same in vain.
    """
    part, given = sys.argv[1], json.load(sys.stdin)
    done = mark(part, given["key"])
    # Compilers are other people's code: one that hangs must not be waited for at every start to come.
    late = threading.Timer(COMPILING_SECONDS, _give_up, [part, done])
    late.daemon = True
    late.start()
    start_cuda(0)
    try:
        _compile(part, Recipe.model_validate(given["recipe"]))
    except Exception:  # of whatever kind: the ranks compile for themselves then, and end where that fails too
        log_only(None, f"compiling ahead, {part}: {traceback.format_exc()}")
    _leave(done)
    return 0


def _give_up(part: str, done: Path) -> None:
    log_only(None, f"compiling ahead, {part}: not done within {COMPILING_SECONDS:g} s")
    _leave(done)
    os._exit(1)


def _leave(done: Path) -> None:
    with contextlib.suppress(OSError):
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()


def _compile(part: str, recipe: Recipe) -> None:
    rig = detect_rig(measure_cpu=False)
    plan = make_plan(recipe, rig)
    assert plan.fits, plan.reasons
    if part in (FORWARD, BACKWARD):
        from windtunnel.model import compile_attention, deterministic, recipe_shape
        from windtunnel.train import COMPUTE

        deterministic(recipe.pretrain.deterministic)
        compile_attention(recipe_shape(recipe, plan.vocab), COMPUTE[plan.layout.precision], backward=part == BACKWARD)
        return
    layout = small_layout(plan.layout)
    # Compiling takes a step, and a step takes memory: only a small share of what the ranks are about to fill.
    logits = layout.micro_tokens * plan.vocab * 8
    assert rig.gpu is not None
    if plan.params * BYTES_PER_PARAMETER + logits > MOST_MEMORY * rig.gpu.memory_gib * GIB:
        return
    from windtunnel.train import compile_step

    with tempfile.TemporaryDirectory(prefix="windtunnel-compile-") as folder:
        compile_step(recipe, layout, plan.vocab, Path(folder))


def small_layout(layout: Layout) -> Layout:
    """Return a layout of one rank and few tokens for which the same kernels are compiled."""
    # Kernels differ by whether 16 divides a size; the fewest sequences for which it divides the same sizes will do.
    few = math.gcd(layout.micro_batch, SPECIAL // math.gcd(layout.sequence, SPECIAL))
    if few == 1 < layout.micro_batch:  # kernels of one sequence may be others
        few = 3 if layout.sequence % SPECIAL else 2
    return replace(layout, ranks=1, micro_batch=few, accumulation=1, shard="optimizer", recorded=False)


if __name__ == "__main__":
    sys.exit(main())
