"""Plans: recipe x rig -> layout, memory, time, money and disk, or a refusal with what would work. No torch."""

from .constants import Constants, load_constants
from .layout import Layout
from .plan import make_plan, refuse, resolve
from .text import lines
from .types import Alternative, Plan

__all__ = ["Alternative", "Constants", "Layout", "Plan", "lines", "load_constants", "make_plan", "refuse", "resolve"]
