"""Carries one plan out on buffers of the judge's, on a GPU or on Triton's interpreter. Imports torch and triton.

In a clean sandboxed child: of the candidate there is nothing here but kernels' texts, which the judge has checked.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError

from windtunnel.verify.kernel.child.build import argument, build
from windtunnel.verify.kernel.child.load import Wrong
from windtunnel.verify.kernel.child.memory import NAN_BYTE, POISON_BYTE, Fenced, fenced, first_broken, poison
from windtunnel.verify.kernel.plan.operations import sets_only
from windtunnel.verify.kernel.plan.places import carried, tensors_in
from windtunnel.verify.kernel.plan.schema import Choice, Given, Launch, Operation, Plan, Tensor

# Starts a kernel: itself, its grid, its arguments, its options.
Start = Callable[[Any, Any, dict[str, Any], dict[str, Any]], None]


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Misfit(AssertionError):
    """A configuration that a kernel itself has no room for."""


MISFITS = (Misfit, OutOfResources, CompileTimeAssertionFailure, PTXASError)  # the last three: Triton's tuner passes over them


def misfits(error: BaseException) -> bool:
    """Return whether another configuration may do. The interpreter wraps what a kernel raises."""
    return isinstance(error, MISFITS) or isinstance(error.__cause__, Misfit)


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def quietly() -> contextlib.redirect_stdout[io.TextIOBase]:
    """Throw away what Triton prints: all of a kernel's code where ptxas has no room for it, more than a child may."""
    return contextlib.redirect_stdout(_Nowhere())


@dataclass
class Kept:
    """A tensor that has to be after a call what it was before."""

    reason: str
    text: str
    tensor: torch.Tensor
    before: torch.Tensor


class Replay:
    """One plan with its kernels made and its buffers allocated, to be carried out any number of times.

    start: starts a kernel. inplace: positions of inputs that may be overwritten. training: statistics may be kept anew. taken:
    number of a step with a choice → the configuration that is always taken, where one was chosen. among: the same → those that
    were compiled and fit, of which one is taken as long as one does. blank: no kernel runs, and what
    PyTorch sets counts as unset.
    """

    def __init__(
        self,
        plan: Plan,
        start: Start,
        dice: random.Random,
        inplace: Sequence[int],
        device: str = "cpu",
        *,
        training: bool = False,
        among: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.plan, self.start, self.dice, self.inplace, self.device = plan, start, dice, inplace, device
        self.training, self.among = training, among or {}
        self.kernels = build(plan.kernels)
        self.taken: dict[int, int] = {}
        self.blank = False
        self.last = ""  # the kernel that was started last
        # Once: the order of a loop over thousands of launches is unfolded here, not in timed calls.
        self.steps = carried(plan)
        self.dtypes = {tensor.buffer: tensor.dtype for tensor in reversed(list(self._tensors()))}
        # The interpreter knows no warps and stages: what sets configurations apart is all else.
        unseen = {"options"} if device == "cpu" else set[str]()
        self.alike = [_alike(step, unseen) if isinstance(step, Choice) else [] for step in plan.steps]
        self.times = [Counter(dict.fromkeys(alike, 0)) for alike in self.alike]
        self.own: list[torch.Tensor] = []
        self.memory: list[torch.Tensor] = []
        self.fences: list[Fenced] = []

    def untried(self) -> int:
        """Return how many configurations no run has had, of the step that has most."""
        return max((sum(not times for times in counted.values()) for counted in self.times), default=0)

    def run(self, inputs: Mapping[int, torch.Tensor], parameters: Mapping[str, torch.Tensor], label: str) -> list[torch.Tensor]:
        """Run one call under all eyes. Raises Wrong for what they saw; values are compared elsewhere."""
        self.prepare(inputs, parameters)
        kept = [Kept(reason, text, tensor, tensor.clone()) for reason, text, tensor in self._unchanging()]
        outputs = self.carry_out()
        self.check(kept, label)
        return outputs

    def prepare(self, inputs: Mapping[int, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> None:
        """Poison all buffers and fill in what is given."""
        if not self.own:
            for number, size in enumerate(self.plan.buffers):
                memory, fence = fenced(size, f"tensor {number} of the plan", self.device)
                self.own.append(memory)
                self.fences.append(fence)
        self.memory = list(self.own)
        for number, memory in enumerate(self.memory):
            floating = getattr(torch, self.dtypes.get(number, "float32")).is_floating_point
            memory.fill_(NAN_BYTE if floating else POISON_BYTE)
        for given in self.plan.given:
            self._give(given, inputs, parameters)

    def carry_out(self) -> list[torch.Tensor]:
        """Carry all steps out. What is raised is the candidate's doing."""
        for number, step in self.steps:
            if isinstance(step, Choice):
                self._chosen(number, step)
            else:
                self._step(step)
        return [self.view(tensor) for tensor in self.plan.outputs]

    def check(self, kept: Sequence[Kept], label: str) -> None:
        """Raise Wrong where something lies outside the buffers, or is changed that may not be."""
        broken = first_broken(self.fences)
        if broken is not None:
            raise Wrong("out-of-bounds", f"A kernel wrote outside {broken.name}. Mask its stores ({label}).")
        for one in kept:
            if not torch.equal(_bits(one.tensor), _bits(one.before)):
                raise Wrong(one.reason, f"{one.text} ({label})")

    def view(self, tensor: Tensor) -> torch.Tensor:
        """Return the tensor that a plan describes, in this call's buffers."""
        made = torch.empty(0, dtype=getattr(torch, tensor.dtype), device=self.device)
        # PyTorch's annotations know no set_ of an untyped storage; so it is below.
        return made.set_(self.memory[tensor.buffer].untyped_storage(), tensor.offset, tensor.shape, tensor.stride)  # type: ignore[call-overload, no-any-return]

    def choices(self) -> Iterator[tuple[int, Choice]]:
        """Yield steps with several configurations, with their numbers."""
        yield from ((number, step) for number, step in enumerate(self.plan.steps) if isinstance(step, Choice))

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the tensors of the plan, in order."""
        yield from (given.tensor for given in self.plan.given)
        for _, step in self.steps:
            yield from tensors_in(step)
        yield from self.plan.outputs

    def _give(self, given: Given, inputs: Mapping[int, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> None:
        tensor = self.view(given.tensor)
        if given.input is not None:
            tensor.copy_(inputs[given.input])
        elif given.parameter is not None:
            tensor.copy_(parameters[given.parameter])
        elif given.constant is not None:
            data = torch.frombuffer(bytearray(given.data() or b"\0"), dtype=torch.uint8)
            tensor.copy_(data[: tensor.numel() * tensor.element_size()].view(tensor.dtype).reshape(tensor.shape))
        else:
            tensor.fill_(argument(given.fill, (), self.view))

    def _unchanging(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield reason and words of a refusal for each tensor that a call may not change."""
        for given in self.plan.given:
            if self.training and _is_statistic(given):
                continue
            if given.input is None:
                name = given.parameter or "What the model holds"
                yield "keeps-state", f"{name} is not after forward what it was before.", self.view(given.tensor)
            elif given.input not in self.inplace:
                text = f"Input {given.input} was overwritten. Write to a new tensor."
                yield "input-changed", text, self.view(given.tensor)

    def _chosen(self, number: int, step: Choice) -> None:
        """Run the configuration that was settled on, else the one taken least often, and another one where it does not fit."""
        if number in self.taken:
            for inner in step.choice[self.taken[number]]:
                self._step(inner)
            return
        times, left = self.times[number], list(range(len(step.choice)))
        self.dice.shuffle(left)
        among = self.among.get(number, left)
        left.sort(key=lambda at: (at not in among, times[self.alike[number][at]]))
        for place, at in enumerate(left):
            times[self.alike[number][at]] += not self.blank
            try:
                for inner in step.choice[at]:
                    self._step(inner)
            except Exception as error:  # of any kind: the interpreter wraps what a kernel raises
                if place == len(left) - 1 or not misfits(error):
                    raise
            else:
                return

    def _step(self, step: Launch | Operation) -> None:
        if isinstance(step, Operation):
            self._operation(step)
            return
        if 0 in step.grid or self.blank:
            return
        values = {name: argument(value, self.kernels, self.view) for name, value in step.arguments.items()}
        self.last = self.plan.kernels[step.launch].name
        self.start(self.kernels[step.launch], step.grid, values, {k: v for k, v in step.options.items() if v is not None})

    def _operation(self, step: Operation) -> None:
        _, name, overload = step.operation.split(".")
        arguments = [self._here(argument(value, self.kernels, self.view)) for value in step.arguments]
        keywords = {key: self._here(argument(value, self.kernels, self.view)) for key, value in step.keywords.items()}
        found = getattr(getattr(torch.ops.aten, name), overload)(*arguments, **keywords)
        results = list(found) if isinstance(found, tuple | list) else [found]
        for tensor, result in zip(step.results, results, strict=False):
            if tensor is not None and isinstance(result, torch.Tensor):
                self._take(tensor, result, name)
                if self.blank and sets_only(step):  # what was to be zeros or ones does not count as what a kernel did
                    poison(self.view(tensor))

    def _here(self, value: Any) -> Any:
        return torch.device(self.device) if isinstance(value, torch.device) else value

    def _take(self, tensor: Tensor, result: torch.Tensor, name: str) -> None:
        """Put a result where the plan has it.

        On a GPU one that is all of a buffer becomes the buffer: a copy would cost time.
        """
        place = self.view(tensor)
        if not result.numel():  # a side result that only some devices have
            return
        if place.shape != result.shape or place.dtype != result.dtype:
            raise Wrong("bad-plan", f"aten.{name} gives {tuple(result.shape)}, {result.dtype}; the plan says otherwise.")
        if result.untyped_storage().data_ptr() == place.untyped_storage().data_ptr():
            return
        bytes_ = result.numel() * result.element_size()
        whole = (
            bytes_ == self.plan.buffers[tensor.buffer] == result.untyped_storage().nbytes() and place.stride() == result.stride()
        )
        if whole and self.device != "cpu":
            self.memory[tensor.buffer] = torch.empty(0, dtype=torch.uint8, device=self.device).set_(result.untyped_storage())  # type: ignore[call-overload]
        else:
            place.copy_(result)


def _is_statistic(given: Given) -> bool:
    """Return whether training counts up or takes the mean in this, by its name, or as a number by itself that has none."""
    if given.parameter is not None:
        return given.parameter.rpartition(".")[2] in STATISTICS
    return given.input is None and given.tensor.dtype == "int64" and given.tensor.elements == 1


def _alike(step: Choice, unseen: set[str]) -> list[int]:
    """Return for each configuration the first one of the same form."""
    forms = [[inner.model_dump_json(exclude=unseen) for inner in one] for one in step.choice]
    return [forms.index(form) for form in forms]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor
