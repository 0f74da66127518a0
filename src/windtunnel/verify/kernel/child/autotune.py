"""Autotuning where nothing can or need be timed. Runs only in sandboxed children: imports triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from triton.runtime import autotuner


def pick_configurations(choose: Callable[[list[Any]], Any]) -> None:
    """On a GPU the fastest configuration runs, whatever it computes: any must be right, so `choose` takes one, at random where
    nothing is timed. A second call replaces the first."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
        config = choose(list(configs))
        named = {**self.nargs, **kwargs, **config.all_kwargs()}
        if config.pre_hook is not None:
            config.pre_hook(named)
        self.pre_hook(named, reset_only=True)
        result = self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.best_config, self.nargs = config, None
        return result

    autotuner.Autotuner.run = run


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
