"""Reinforcement learning: how learners publish their weights and engines take them. torch is imported on use."""

from typing import TYPE_CHECKING, Any

from .errors import BrokenPublication, EngineFailed, StaleWeights

if TYPE_CHECKING:
    from .canary import TOLERANCE, Canary, score
    from .engine import Answers, Engine, Receipt, Scores
    from .engine_process import EngineProcess
    from .mismatch import Mismatch, measure_mismatch
    from .publication import Publication, Publisher, newest_publication, open_publication
    from .sync import publish_weights, require_fresh

__all__ = [
    "TOLERANCE",
    "Answers",
    "BrokenPublication",
    "Canary",
    "Engine",
    "EngineFailed",
    "EngineProcess",
    "Mismatch",
    "Publication",
    "Publisher",
    "Receipt",
    "Scores",
    "StaleWeights",
    "measure_mismatch",
    "newest_publication",
    "open_publication",
    "publish_weights",
    "require_fresh",
    "score",
]

_LAZY = {"TOLERANCE": "canary", "Canary": "canary", "score": "canary", "EngineProcess": "engine_process"}
_LAZY |= dict.fromkeys(("Answers", "Engine", "Receipt", "Scores"), "engine")
_LAZY |= dict.fromkeys(("Publication", "Publisher", "newest_publication", "open_publication"), "publication")
_LAZY |= {"Mismatch": "mismatch", "measure_mismatch": "mismatch", "publish_weights": "sync", "require_fresh": "sync"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
