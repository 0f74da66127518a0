"""A second opinion: the same question asked in another way, so that what fooled a verifier once may not fool it again."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .sandbox import SandboxJob
from .types import Verdict, Verifier, accept, refuse

if TYPE_CHECKING:
    from .mathematics import MathVerifier

NUMBERS = "windtunnel.verify.mathematics_numbers:compare_values"


def second_opinion(verifier: Verifier) -> Verifier:
    """Return a verifier of the same task that goes another way.

    Kernels are run on hidden inputs of their own, drawn anew, and on some far beyond the task's; mathematics is compared by
    values at a few points in place of symbols; code gets its tests in the other order, each in a fresh child. Any other is asked
    again as it is.
    """
    from .code import CodeVerifier
    from .kernel import KernelVerifier
    from .mathematics import MathVerifier

    if isinstance(verifier, KernelVerifier):
        return verifier.anew()
    if isinstance(verifier, CodeVerifier):
        return replace(verifier, task=replace(verifier.task, cases=tuple(reversed(verifier.task.cases))))
    return ByValues(verifier) if isinstance(verifier, MathVerifier) else verifier


@dataclass(frozen=True)
class ByValues:
    """Judge mathematics by numbers. What has no values to compare, such as a set or a text, is judged as before.

    Attributes:
        first: what is right, and which part of an answer counts.
    """

    first: MathVerifier

    def verify(self, answer: str) -> Verdict:
        """Judge one answer."""
        from .mathematics import LIMITS

        started = time.monotonic()
        compared = self.first.read(answer)
        if isinstance(compared, Verdict):
            return compared
        gold, found = compared
        message = {"gold": gold, "found": found, "digits": self.first.digits}
        outcome = self.first.runner.run(SandboxJob(NUMBERS, message, (), LIMITS))
        equal = outcome.message.get("equal") if outcome.finished else None
        times = {"total": time.monotonic() - started}
        # Sets, texts and what takes too long have no values: two ways that agree by asking one are no second opinion, but no
        # refusal either.
        if equal is None:
            return self.first.verify(answer)
        if equal:
            return accept("compare", "it has the values of the right one", times=times)
        words = f"its values are not those of the right one, {self.first.gold[:80]}"
        return refuse("compare", "wrong-result", words, times=times, evidence={"found": found[:200]})
