"""Triton on a GPU with eyes: launches are counted and can be knocked out. Imports triton."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from triton import knobs
from triton.backends.nvidia import driver
from triton.runtime import autotuner, jit

from windtunnel.verify.kernel.child.autotune import Evenly, pick_configurations
from windtunnel.verify.kernel.child.constants import look_at_constants
from windtunnel.verify.kernel.child.launch import install_quick_launcher
from windtunnel.verify.kernel.child.load import Wrong, say_no_more_than_the_stand_in
from windtunnel.verify.kernel.child.scratch import own_scratch
from windtunnel.verify.kernel.child.watch import Launches


def install_on_gpu(launches: Launches, aside: Callable[[], AbstractContextManager[None]], *, quick: random.Random | None) -> None:
    """Puts the eyes in, before the candidate is imported.

    aside: entered while a kernel is compiled, which needs no GPU. quick: nothing is timed; then launches may be slower, and of
    configurations to choose from, all of which must be right, each call takes one of those tried least often.
    """
    if quick is None:
        _tune_unseen(launches)
    else:
        install_quick_launcher(driver)
        pick_configurations(Evenly(quick))
    own_scratch()
    say_no_more_than_the_stand_in()
    assert not knobs.runtime.interpret, "TRITON_INTERPRET is set, so that no kernel would reach the GPU"
    _watch_launches(launches)
    _compile_aside(aside)


def _watch_launches(launches: Launches) -> None:
    """Launches are counted, and all that Triton itself does with PyTorch is not the candidate's doing."""
    original, stream_of = jit.JITFunction.run, torch._C._cuda_getCurrentRawStream

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=True, **kwargs)
        if stream_of(0):  # it would run beside what the clock keeps the GPU waiting with
            raise Wrong("side-stream", f"kernel {self.__name__} is launched on another stream. Use the current one.")
        grid = launches.launched(self.__name__, grid, args, kwargs)
        if launches.watch is None:
            original(self, *args, grid=grid, warmup=False, **kwargs)
        else:
            look_at_constants(launches, self, args, kwargs)
            with launches.watch.pause():
                original(self, *args, grid=grid, warmup=False, **kwargs)
        return None  # not the compiled kernel: on the interpreter there is none, by which a candidate would know where it is

    jit.JITFunction.run = run


def _tune_unseen(launches: Launches) -> None:
    """Timing configurations uses PyTorch, and so does resetting what they wrote, which is not the candidate's doing."""
    tuned = autotuner.Autotuner.run

    def tune(self: Any, *args: Any, **kwargs: Any) -> Any:
        if launches.watch is None:
            return tuned(self, *args, **kwargs)
        with launches.watch.pause():
            return tuned(self, *args, **kwargs)

    autotuner.Autotuner.run = tune


def _compile_aside(aside: Callable[[], AbstractContextManager[None]]) -> None:
    """What is compiled is compiled outside of a turn on the GPU."""
    compiling, building = jit.JITFunction._do_compile, driver.compile_module_from_src

    def compile_aside(self: Any, *args: Any, **kwargs: Any) -> Any:
        with aside():
            return compiling(self, *args, **kwargs)

    def build_aside(*args: Any, **kwargs: Any) -> Any:
        """Triton up to 3.6 has a C compiler make a launcher for each signature."""
        with aside():
            return building(*args, **kwargs)

    driver.compile_module_from_src = build_aside
    jit.JITFunction._do_compile = compile_aside
