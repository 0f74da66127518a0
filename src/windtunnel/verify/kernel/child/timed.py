"""Timed calls of a plan: each on contents that are drawn before it, each output compared with the judged one. Imports torch.

All of it happens between the measured intervals.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from windtunnel.verify.kernel.child.clock import measure, timed
from windtunnel.verify.kernel.child.compare import is_large, sums
from windtunnel.verify.kernel.child.load import Wrong
from windtunnel.verify.kernel.child.memory import FreeMemory, Masked
from windtunnel.verify.kernel.child.replay import Replay, misfits

# Of a timed output against the judged one of the same inputs: atomics add in any order, and round each time.
SAME = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TRIES = 5  # of each configuration; the least of them counts
TRIES_SECONDS = 0.1  # after which no other is begun: what takes so long is hardly off by chance
LEAST_WARM = 12  # no speed-up is made of warm calls, so that they need not be known as well


class TimedCalls:
    """Times one plan. sets: inputs by position, of equal forms. rights: what each gave when it was judged. label: for messages.

    Before a cold call all free memory is overwritten, and with it the L2 cache: what an earlier call left outside of the plan's
    buffers would be a cache that no one sees. The buffers themselves are poisoned and filled anew before each.
    """

    def __init__(
        self,
        replay: Replay,
        sets: Sequence[Mapping[int, torch.Tensor]],
        parameters: Mapping[str, torch.Tensor],
        rights: Sequence[Sequence[Right]],
        dice: random.Random,
        label: str,
    ) -> None:
        self.replay, self.sets, self.parameters, self.rights, self.label = replay, sets, parameters, rights, label
        self.dice, self.cuda = dice, replay.device != "cpu"
        self.free = FreeMemory() if self.cuda else None
        self.sample: tuple[int, list[torch.Tensor]] | None = None
        self.ended = 0

    def times(self, calls: int) -> dict[str, Any]:
        """Return samples of cold and of warm calls. Raises Wrong where a call gave something else than when it was judged."""
        self._settle()
        found = {}
        for heat, most in (("cold", calls), ("warm", min(calls, LEAST_WARM))):
            found[heat] = measure(
                lambda _: self.replay.carry_out(), len(self.sets), most, cold=heat == "cold", dice=self.dice,
                device=self.replay.device, before=self._wiping if heat == "cold" else self._fill, after=self._after,
            )  # fmt: skip
        self.replay.check((), f"{self.label}, timed")
        return found

    def _settle(self) -> None:
        """Choose the fastest of each kernel's configurations, one after the other."""
        for number, step in self.replay.choices():
            known: dict[int, float] = {}
            for at in self.replay.among.get(number) or range(len(step.choice)):
                self.replay.taken[number] = at
                try:
                    known[at] = self._least()
                except Exception as error:  # of any kind: the interpreter wraps what a kernel raises
                    if not misfits(error):
                        raise
            if not known:
                raise Wrong("raised", f"none of a kernel's configurations fits this GPU ({self.label}).")
            self.replay.taken[number] = min(known, key=lambda at: known[at])

    def _least(self) -> float:
        found = [self._try()]
        while len(found) < TRIES and sum(found) < TRIES_SECONDS:
            found.append(self._try())
        return min(found)

    def _try(self) -> float:
        self._fill(0)
        return timed(self.replay.carry_out, self.cuda, 200e-6)[0]

    def _fill(self, which: int) -> None:
        self.replay.prepare(self.sets[which], self.parameters)

    def _wiping(self, which: int) -> None:
        if self.free is not None:
            self.free.wipe()
        self._fill(which)

    def _after(self, which: int, outputs: list[torch.Tensor]) -> None:
        if not self._right(which, outputs):
            raise Wrong("timed-output-differs", "a timed call returned something else than the same call before.")
        self.ended += 1
        if self.dice.randrange(self.ended) == 0:  # each call is as likely to be the one that is kept
            # Not on the device, where a kernel could find it.
            self.sample = which, [output.detach().to("cpu", copy=True) for output in outputs]

    def _right(self, which: int, outputs: list[torch.Tensor]) -> bool:
        return all(right.matches(output) for right, output in zip(self.rights[which], outputs, strict=True))


class Right:
    """What a judged call gave, where a kernel that strays from its tensors does not find it.

    It is masked, or of a large output its blocks' sums, in the host's memory.
    """

    def __init__(self, output: torch.Tensor) -> None:
        self.sums = sums(output).cpu() if is_large(output) else None
        self.masked = Masked(output) if self.sums is None else None
        self.scale = _scale(output) if self.sums is None else _scale(self.sums)
        self.same = SAME.get(output.dtype, SAME[torch.float32])

    def matches(self, output: torch.Tensor) -> bool:
        """Return whether this is the same: bit by bit, or as near as another order of additions leaves it."""
        if self.masked is None:
            assert self.sums is not None
            return self._near(sums(output).cpu(), self.sums)
        return self.masked.equals(output) or self._near(output, self.masked.plain())

    def _near(self, output: torch.Tensor, right: torch.Tensor) -> bool:
        if not output.is_floating_point():
            return torch.equal(output, right)
        return torch.allclose(output, right, rtol=self.same, atol=self.same * self.scale, equal_nan=True)


def _scale(right: torch.Tensor) -> float:
    """Return the mean magnitude of those elements that are numbers."""
    return float(right.abs().nan_to_num(0.0, 0.0, 0.0).mean()) if right.is_floating_point() and right.numel() else 0.0
