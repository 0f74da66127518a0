"""Autotuning where nothing can or need be timed. Runs only in sandboxed children: imports triton."""

from __future__ import annotations

import random
from collections import Counter
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
    """Takes one of a tuner's configurations that were taken least often, at random: of few calls as many as can be tried are.

    meta: what sets configurations apart are their arguments for the kernel alone; the interpreter knows no warps and stages.
    """

    def __init__(self, dice: random.Random, *, meta: bool = False) -> None:
        self.dice, self.meta = dice, meta
        self.times: dict[tuple[int, object], int] = {}
        self.held: list[Any] = []  # so that no number of an object is used again

    def __call__(self, tuner: Any, configs: list[Any]) -> Any:
        keys = [self._key(tuner, config) for config in configs]
        for key, config in zip(keys, configs, strict=True):
            if key not in self.times:
                self.times[key] = 0
                self.held += [tuner, config]
        least = min(self.times[key] for key in keys)
        at = self.dice.choice([at for at, key in enumerate(keys) if self.times[key] == least])
        self.times[keys[at]] += 1
        return configs[at]

    def untried(self) -> int:
        """How many of those that there was a choice of were never taken: of the tuner that has most, as one call tries all."""
        return max(Counter(tuner for (tuner, _), times in self.times.items() if not times).values(), default=0)

    def _key(self, tuner: Any, config: Any) -> tuple[int, object]:
        """Several kernels may have one list of configurations."""
        return id(tuner), repr(sorted(config.kwargs.items())) if self.meta else id(config)


def always_first(tuner: Any, configs: list[Any]) -> Any:
    """One choice for all calls, as tuning makes it."""
    return configs[0]


def pick_configurations(choose: Callable[[Any, list[Any]], Any]) -> None:
    """On a GPU the fastest configuration runs, whatever it computes: any must be right, so `choose` takes one, `Evenly` where
    nothing is timed, and another where that one does not fit. Nothing is reset to zero: Triton does so while it tunes alone,
    and each later call finds what the call before left. A second call replaces the first."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        left = list(self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs)
        while True:
            config = left.pop(left.index(choose(self, left)))
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
    """Those of a candidate's kernels, in its classes or not, heuristics around them or not."""
    held = list(vars(module).values())
    own = [value for value in held if isinstance(value, type) and value.__module__ == module.__name__]
    for value in [*held, *(inner for one in own for inner in vars(one).values())]:
        kernel = value.__func__ if isinstance(value, staticmethod) else value
        while isinstance(kernel, autotuner.Heuristics | autotuner.Autotuner):
            if isinstance(kernel, autotuner.Autotuner):
                yield kernel
            kernel = kernel.fn


def forget_tuning(module: ModuleType) -> None:
    """Configurations that were chosen while others used the GPU are chosen again."""
    for tuner in tuners(module):
        tuner.cache.clear()
