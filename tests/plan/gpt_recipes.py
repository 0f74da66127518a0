"""A GPT's recipe and a laptop, for tests of plans."""

from dataclasses import replace

from windtunnel.recipe import Recipe, load_recipe
from windtunnel.rig import Rig, parse_rig


def charlm(*overrides: str) -> Recipe:
    """Return the recipe charlm with overrides."""
    return load_recipe("charlm", overrides)


def laptop() -> Rig:
    """Return a laptop without a GPU."""
    return replace(parse_rig("cpu@$0"), dollars_per_hour=None, cpu_gflops=100.0, cpu_cores=2, ram_gib=16.0, disk_free_gib=100.0)
