"""What every verifier answers, whatever it judges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Verdict:
    """A judgement of one answer.

    accepted: the answer is right. stage: where the judgement fell. reason: a stable slug such as 'never-launched',
    'accepted' when it is. message: what happened, in words that a model can learn from. reward: a number, or None after an
    infrastructure error, which is neither right nor wrong: retry or mask it. times: seconds by stage. evidence: plain JSON
    values that show why.
    """

    accepted: bool
    stage: str
    reason: str
    message: str
    reward: float | None
    times: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    infrastructure: bool = False

    def __post_init__(self) -> None:
        # A reward of 0 for a machine's fault would be learned from as if it were the answer's.
        assert self.infrastructure == (self.reward is None), "an infrastructure error has no reward; any judgement has one"
        assert not (self.accepted and self.infrastructure), "an infrastructure error judges nothing"

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain JSON values: what the command line prints and the service answers."""
        return {
            "accepted": self.accepted,
            "stage": self.stage,
            "reason": self.reason,
            "message": _printable(self.message),
            "reward": self.reward,
            "times": dict(self.times),
            "evidence": _printable(self.evidence),
            "infrastructure": self.infrastructure,
        }


def _printable(value: Any) -> Any:
    """Return what any JSON writer takes: NaN and infinities become text, lone surrogates (an answer may hold some) become '?'."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {_printable(str(key)): _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list | tuple) else value


class Verifier(Protocol):
    """Judges answers to one task. Safe to call from several threads at once."""

    def verify(self, answer: str) -> Verdict:
        """Judge one answer. Raises nothing because of the answer."""


def accept(stage: str, message: str, *, reward: float = 1.0, **more: Any) -> Verdict:
    """Return a verdict for a right answer."""
    return Verdict(True, stage, "accepted", message, reward, **more)


def refuse(stage: str, reason: str, message: str, *, reward: float = 0.0, **more: Any) -> Verdict:
    """Return a verdict for a wrong answer."""
    return Verdict(False, stage, reason, message, reward, **more)


def broken(stage: str, message: str, **more: Any) -> Verdict:
    """Return a verdict that says: the machinery failed, nothing is known about the answer."""
    return Verdict(False, stage, "infrastructure", message, None, infrastructure=True, **more)
