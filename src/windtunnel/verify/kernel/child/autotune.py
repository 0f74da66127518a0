"""Autotuning where nothing can or need be timed. Runs only in sandboxed children: imports triton."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime import autotuner
from triton.runtime.errors import OutOfResources, PTXASError


class Misfit(AssertionError):
    """A configuration that a kernel itself, or this GPU, has no room for."""


MISFITS = (Misfit, OutOfResources, CompileTimeAssertionFailure, PTXASError)  # the last three: Triton's tuner passes over them


class Evenly:
    """Takes one of those that were taken least often, at random: of few calls as many as can be tried are."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.times: dict[int, int] = {}
        self.held: list[Any] = []  # so that no number is used again

    def __call__(self, configs: list[Any]) -> Any:
        for config in configs:
            if id(config) not in self.times:
                self.times[id(config)] = 0
                self.held.append(config)
        least = min(self.times[id(config)] for config in configs)
        taken = self.dice.choice([config for config in configs if self.times[id(config)] == least])
        self.times[id(taken)] += 1
        return taken

    def untried(self) -> bool:
        """Whether there was a choice of which some were never taken."""
        return 0 in self.times.values()


def pick_configurations(choose: Callable[[list[Any]], Any]) -> None:
    """On a GPU the fastest configuration runs, whatever it computes: any must be right, so `choose` takes one, `Evenly` where
    nothing is timed, and another where that one does not fit. Nothing is reset to zero: Triton does so while it tunes alone,
    and each later call finds what the call before left. A second call replaces the first."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        left = list(self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs)
        while True:
            config = left.pop(left.index(choose(left)))
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            try:
                result = self.fn.run(*args, **kwargs, **config.all_kwargs())
            except Exception as error:
                if not left or not _misfit(error):
                    raise
            else:
                self.best_config, self.nargs = config, None
                return result

    autotuner.Autotuner.run = run


def _misfit(error: Exception) -> bool:
    """The interpreter wraps what a kernel raises."""
    return isinstance(error, MISFITS) or isinstance(error.__cause__, Misfit)


def tuners(module: ModuleType) -> Iterator[autotuner.Autotuner]:
    """Those of a candidate's kernels, heuristics around them or not."""
    for value in list(vars(module).values()):
        while isinstance(value, autotuner.Heuristics | autotuner.Autotuner):
            if isinstance(value, autotuner.Autotuner):
                yield value
            value = value.fn


def forget_tuning(module: ModuleType) -> None:
    """Configurations that were chosen while others used the GPU are chosen again."""
    for tuner in tuners(module):
        tuner.cache.clear()
