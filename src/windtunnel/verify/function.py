"""A user's function as a verifier of answers to one prompt."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

from .reward_process import RewardProcess
from .types import Verdict, accept, broken, refuse

ENOUGH = 0.5
"""What a function must return at least for an answer that is right."""


@dataclass(frozen=True)
class FunctionVerifier:
    """Calls the function with prompt, answer and truth; what it returns is the reward.

    lock: of the function's process, which takes one call at a time; share it among all that use the process.
    """

    function: RewardProcess
    prompt: str
    truth: str | None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def verify(self, answer: str) -> Verdict:
        """Judge one answer."""
        with self.lock:
            reply = self.function.call(self.prompt, answer, self.truth)
        if reply.value is None or not math.isfinite(reply.value):
            return broken("function", reply.problem or f"it returned {reply.value}")
        if reply.value >= ENOUGH:
            return accept("function", f"it returned {reply.value:g}", reward=reply.value)
        return refuse("function", "wrong-result", f"it returned {reply.value:g}", reward=reply.value)
