"""Timed calls that a candidate cannot tell from judged ones, and judged ones among them. Imports torch.

All of it happens between the measured intervals, but for counting launches and, in some calls, for noting their numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.verify.kernel.child.load import Wrong
from windtunnel.verify.kernel.child.memory import FreeMemory, Masked
from windtunnel.verify.kernel.child.state import changed
from windtunnel.verify.kernel.child.watch import NAN_BYTE, first_broken, poison
from windtunnel.verify.kernel.child.work import NOTHING_LASTS, Places, Work, outputs_of

# Of a timed output against the judged one of the same inputs: atomics add in any order, and round each time.
SAME = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
WATCHED_SHARE = 0.12  # of the calls, beside those that are timed
NOTED_SHARE = 0.25  # of the timed calls: what noting costs a launch, the median of all does not see


class TimedCalls:
    """The calls of one candidate while it is timed: `sets`, `before` and `after` are for `measure`.

    Each set of inputs keeps its tensors and their addresses, fenced as judged ones are, and holds the contents of a case that is
    drawn before each call: an answer that is kept by address or identity is a wrong one. cases: of equal sizes. rights: what
    each returned when it was judged. tuned: some kernel chooses among configurations. cold: before each call all free memory
    is overwritten, and with it the L2 cache; otherwise only what the call will be given.
    """

    def __init__(
        self,
        work: Work,
        model: torch.nn.Module,
        cases: Sequence[dict[str, Any]],
        rights: Sequence[list[Masked]],
        dice: random.Random,
        *,
        tuned: bool,
    ) -> None:
        self.work, self.model, self.cases, self.rights, self.dice = work, model, cases, rights, dice
        self.launches = work.launches
        self.places = [Places(work.message["inplace"]) for _ in cases]
        self.sets: list[list[Any]] = [[] for _ in cases]
        self.holds = [0 for _ in cases]  # the number of the case whose contents a set has
        forms = [[(tensor.dtype, tensor.shape) for tensor in work.fresh(case)] for case in cases]
        self.alike = [[at for at, form in enumerate(forms) if form == own] for own in forms]
        self.usual: dict[int, list[object]] = {}  # the launches of one call of a case, with their numbers
        self.counts: dict[int, dict[str, int]] = {}  # the same by kernel
        self.scratch: dict[int, list[int]] = {}  # bytes of each tensor that a call of a case allocates, if not only its outputs
        self.cold = True
        self.free = FreeMemory() if work.message["device"] == "cuda" else None
        self.begun: dict[str, int] = {}
        self.sample: tuple[int, list[torch.Tensor]] | None = None
        self.ended = 0
        self.scales = [[_scale(right.plain()) for right in outputs] for outputs in rights]
        for _ in range(2 if tuned else 1):  # the first calls choose configurations, for which they launch them all
            self.usual.clear()
            self.counts.clear()
            for at in range(len(cases)):
                self._look_closely(at, at)
        self.then = work.look(model)
        self.then_roughly = work.look(model, closely=False)

    def before(self, which: int) -> None:
        """New contents for the next call; sometimes a call under all eyes first."""
        if self.dice.random() < WATCHED_SHARE:
            self._look_at_any()
        at = self.dice.choice(self.alike[which])
        self._wipe(at)
        self._fill(which, at)
        self.model.train(self.cases[which]["training"])  # as before a judged one: it may run code of the candidate's
        self.launches.watch = None
        self._begin(noted=self.dice.random() < NOTED_SHARE)

    def after(self, which: int, result: Any) -> None:
        """Checks what a timed call did. Raises Wrong."""
        outputs, _ = outputs_of(result)
        self._compare(which, outputs)
        if any(not places.may_return(output) for places in self.places for output in outputs):
            raise Wrong("output-aliases", "a timed call returned memory of an input. Return a new tensor.")
        if any(places.moved() is not None for places in self.places):
            raise Wrong("input-changed", "a timed call gave an input other memory. Leave inputs as they are.")
        self._compare_state(self.then_roughly, closely=False)
        self.ended += 1
        if self.dice.randrange(self.ended) == 0:  # each call is as likely to be the one that is kept
            # Not on the device, where a kernel could find it.
            self.sample = self.holds[which], [output.detach().to("cpu", copy=True) for output in outputs]
        self._poison(outputs)

    def finish(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """After the last call: what is left to check; then a case and what some timed call of it returned."""
        self._look_at_any()
        self._compare_state(self.then, closely=True)
        fence = first_broken([fence for places in self.places for fence in places.fences()])
        if fence is not None:
            raise Wrong("out-of-bounds", f"while it was timed, a kernel wrote outside {fence.name}. Mask its stores.")
        assert self.sample is not None, "nothing was timed"
        at, outputs = self.sample
        return self.cases[at], [output.to(self.work.message["device"]) for output in outputs]

    def _wipe(self, at: int) -> None:
        """Takes the memory that a call of case `at` will be given, or all that is free, poisons it and gives it back: what an
        earlier call left there would be a cache that no one sees. Outputs were poisoned when they came."""
        if self.cold and self.free is not None:
            self.free.wipe()
            return
        device = self.work.message["device"]
        held = [torch.empty(size, dtype=torch.uint8, device=device) for size in self.scratch.get(at, [])]
        for memory in held:
            memory.fill_(NAN_BYTE)

    def _fill(self, which: int, at: int) -> None:
        """The contents of case `at` for the set `which`."""
        self.holds[which] = at
        self.sets[which][:] = self.work.arguments(self.cases[at], self.places[which])[0]

    def _look_at_any(self) -> None:
        which = self.dice.randrange(len(self.sets))
        self._look_closely(which, self.dice.choice(self.alike[which]))

    def _look_closely(self, which: int, at: int) -> None:
        """One call as those that are judged: its operations, memory, state and launches."""
        self.holds[which] = at
        self._begin(noted=True)
        outputs, _ = self.work.watched(self.model, self.cases[at], self.places[which])
        if len(self.work.allocated) > len(outputs):
            self.scratch[at] = self.work.allocated
        self._compare(which, outputs)
        self._poison(outputs)

    def _begin(self, *, noted: bool) -> None:
        self.begun, self.launches.taken = dict(self.launches.kernels), [] if noted else None

    def _compare(self, which: int, outputs: list[torch.Tensor]) -> None:
        at, taken = self.holds[which], self.launches.taken
        self.launches.taken = None
        if not self._right(at, outputs):
            raise Wrong("timed-output-differs", "a timed call returned something else than the same call before.")
        counts = {name: count - self.begun.get(name, 0) for name, count in self.launches.kernels.items()}
        counts = {name: count for name, count in counts.items() if count}
        same = counts == self.counts.setdefault(at, counts)
        if taken is not None:
            launches = [_plain(value) for value in taken]
            same = launches == self.usual.setdefault(at, launches) and same
        if not same:
            raise Wrong(
                "timed-call-differs",
                "of two calls with inputs of the same shapes one launched other kernels than the other, on another grid or with "
                "other numbers. What forward launches may depend on shapes and dtypes only.",
            )

    def _right(self, at: int, outputs: list[torch.Tensor]) -> bool:
        """Whether these are the outputs of case `at`: bit by bit, or as near as another order of additions leaves them."""
        rights = self.rights[at]
        alike = len(outputs) == len(rights) and all(map(_alike, outputs, rights))
        if not alike or all(right.equals(output) for right, output in zip(rights, outputs, strict=True)):
            return alike
        plain = [right.plain() for right in rights]
        near = all(map(_near, outputs, plain, self.scales[at]))
        for right in plain:
            poison(right)
        return near

    def _compare_state(self, before: dict[str, object], *, closely: bool) -> None:
        place = changed(before, self.work.look(self.model, closely=closely))
        if place is not None:
            raise Wrong("keeps-state", f"{place} is not after timed calls what it was before. {NOTHING_LASTS}")

    def _poison(self, outputs: list[torch.Tensor]) -> None:
        """So that the memory, handed out again, holds no answer."""
        for output in outputs:
            if not any(places.holds(output) for places in self.places):
                poison(output.detach())


def _plain(value: Any) -> object:
    """A launch's kernel, grid or numbers in a form that can be compared."""
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, bool | float | str | None) else int(value)


def _scale(right: torch.Tensor) -> float:
    """The mean magnitude of what is a number."""
    return float(right.abs().nan_to_num(0.0, 0.0, 0.0).mean()) if right.is_floating_point() and right.numel() else 0.0


def _alike(output: torch.Tensor, right: Masked) -> bool:
    return output.shape == right.shape and output.dtype == right.dtype


def _near(output: torch.Tensor, right: torch.Tensor, scale: float) -> bool:
    if not output.is_floating_point():
        return torch.equal(output, right)
    same = SAME.get(output.dtype, SAME[torch.float32])
    return torch.allclose(output, right, rtol=same, atol=same * scale, equal_nan=True)
