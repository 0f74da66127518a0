"""Reinforcement learning: how learners publish their weights and engines take them. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .errors import BrokenSnapshot, EngineFailed, StaleWeights

if TYPE_CHECKING:
    from .canary import TOLERANCE, Canary, score
    from .engine import Answers, Engine, Receipt, Scores
    from .engine_process import EngineProcess
    from .mismatch import Mismatch, measure_mismatch
    from .snapshot import Publisher, WeightSnapshot, newest_snapshot, open_snapshot
    from .sync import publish_weights, require_fresh

__all__ = [
    "TOLERANCE",
    "Answers",
    "BrokenSnapshot",
    "Canary",
    "Engine",
    "EngineFailed",
    "EngineProcess",
    "Mismatch",
    "Publisher",
    "Receipt",
    "Scores",
    "StaleWeights",
    "WeightSnapshot",
    "measure_mismatch",
    "newest_snapshot",
    "open_snapshot",
    "publish_weights",
    "require_fresh",
    "score",
]

__getattr__ = lazy(__name__)
