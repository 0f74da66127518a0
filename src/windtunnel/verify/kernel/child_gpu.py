"""Triton on a GPU with eyes: launches are counted and can be knocked out. Imports triton."""

from __future__ import annotations

from typing import Any

from triton.runtime import autotuner, jit

from windtunnel.verify.kernel.child_watch import Launches


def install_on_gpu(launches: Launches) -> None:
    """Puts the eyes in, before the candidate is imported."""
    original, tuned = jit.JITFunction.run, autotuner.Autotuner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=True, **kwargs)
        launches.kernels[self.__name__] = launches.kernels.get(self.__name__, 0) + 1
        if launches.knocked_out:
            return None
        if launches.watch is None:
            return original(self, *args, grid=grid, warmup=False, **kwargs)
        with launches.watch.pause():
            return original(self, *args, grid=grid, warmup=False, **kwargs)

    def tune(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Timing configurations uses PyTorch, which is not the candidate's doing."""
        if launches.watch is None:
            return tuned(self, *args, **kwargs)
        with launches.watch.pause():
            return tuned(self, *args, **kwargs)

    jit.JITFunction.run = run
    autotuner.Autotuner.run = tune
