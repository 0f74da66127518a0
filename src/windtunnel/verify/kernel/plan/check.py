"""A plan as hostile input: every number, view and name in it is checked before anything is made of it.

What a candidate's process says of its host code is what it likes. So a plan that passes here holds views that lie in their
buffers, sizes that the judge can allocate, kernels of the closed grammar and operations that the task allows; what it then
computes is judged by its outputs.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import ValidationError

from windtunnel.verify.kernel.plan.grammar import NotInGrammar, check_kernels
from windtunnel.verify.kernel.plan.operations import KNOWN, base_name, moves_only, sets_only, tensors_of
from windtunnel.verify.kernel.plan.places import places
from windtunnel.verify.kernel.plan.schema import (
    BYTES,
    Choice,
    DescriptorValue,
    DtypeValue,
    FloatValue,
    Given,
    Kernel,
    KernelValue,
    Launch,
    ListValue,
    Operation,
    Plan,
    Recording,
    Step,
    Tensor,
    TensorValue,
    TupleValue,
    Value,
)

MOST_GRID = ((1 << 31) - 1, 65_535, 65_535)  # CUDA's own
MOST_CONSTANTS = 16 << 20  # bytes of all together
MOST_CARRIED = 1 << 19  # launches, operations and tensors in them, counted as often as they come in a plan's order
LONGEST_REASON = 300


class PlanRefused(Exception):
    """A plan that is not carried out. reason: the slug of the refusal."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass(frozen=True)
class Allowed:
    """What a task gives and allows.

    Attributes:
        inputs: dtype and shape of each tensor that forward is given, by position.
        parameters: of the state dict, by name.
        inplace: positions of inputs that may be overwritten and returned.
        operations: 'none' may compute, 'any', or those named.
        copies: whether data may be moved.
        most_bytes: of all buffers.
        most_programs: of one launch.
    """

    inputs: Mapping[int, tuple[str, tuple[int, ...]]]
    parameters: Mapping[str, tuple[str, tuple[int, ...]]]
    inplace: Sequence[int] = ()
    operations: str | Sequence[str] = "none"
    copies: bool = True
    tf32: bool = True
    most_bytes: int = 1 << 40
    most_programs: int = MOST_GRID[0]


def read_plan(text: str | bytes) -> Plan:
    """Return a plan from JSON. Raises PlanRefused where it is anything else."""
    try:
        return Plan.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise PlanRefused("bad-plan", f"The plan is not of the form of plans: {_first(error)}") from None


def read_recording(text: str | bytes) -> Recording:
    """Return a file of plans from JSON. Raises PlanRefused where it is anything else."""
    try:
        return Recording.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise PlanRefused("bad-plan", f"The file holds no recording: {_first(error)}") from None


def _first(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply."
    one = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in one["loc"])
    return f"{place[:120]}: {one['msg'][:LONGEST_REASON]}."


class CheckedKernels:
    """Reads kernels' texts, equal ones once: a candidate has a plan for each size and dtype, mostly with the same kernels."""

    def __init__(self) -> None:
        self._known: dict[tuple[bool, tuple[str, ...]], list[ast.arguments]] = {}

    def parameters(self, kernels: tuple[Kernel, ...], *, tf32: bool) -> list[ast.arguments]:
        """Return the parameters of each kernel of a plan. Raises PlanRefused where a text is not of the grammar."""
        key = tf32, tuple(kernel.model_dump_json() for kernel in kernels)  # texts, in which True, 1 and 1.0 differ
        if key in self._known:
            return self._known[key]
        try:
            found = check_kernels(kernels, tf32=tf32)
        except NotInGrammar as error:
            raise PlanRefused(error.reason, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        except RecursionError:
            raise PlanRefused("too-large", "A kernel nests too deeply to be read.") from None
        self._known[key] = found
        return found


def check_plan(plan: Plan, allowed: Allowed, checked: CheckedKernels | None = None) -> None:
    """Check everything that can be known of a plan without running it.

    checked: what was read of the candidate's other plans; None: nothing was.

    Raises:
        PlanRefused: at the first thing wrong.
    """
    _Checked(plan, allowed, (checked or CheckedKernels()).parameters(plan.kernels, tf32=allowed.tf32)).whole()


class _Checked:
    def __init__(self, plan: Plan, allowed: Allowed, parameters: Sequence[ast.arguments]) -> None:
        self.plan, self.allowed = plan, allowed
        self.parameters = [[argument.arg for argument in one.args] for one in parameters]
        self.defaults = [len(one.defaults) for one in parameters]

    def whole(self) -> None:
        # Before anything is allocated: a plan of terabytes must cost its candidate the verdict, not the judge its memory.
        if sum(self.plan.buffers) > self.allowed.most_bytes:
            raise PlanRefused(
                "memory", f"The plan's buffers have {sum(self.plan.buffers):,} bytes; {self.allowed.most_bytes:,} may be."
            )
        self._given()
        for step in self.plan.steps:
            if isinstance(step, Choice):
                if not step.choice:
                    raise PlanRefused("bad-plan", "A choice of no configuration.")
                # Any configuration may be the one that is timed, so each is held to the same rules.
                for one in step.choice:
                    for inner in one:
                        self._step(inner)
            else:
                self._step(step)
        self._order()
        self._outputs()

    def _order(self) -> None:
        """Check each turn: that the step is there, and that its tensors lie in the buffers where they lie this time."""
        if not self.plan.order:
            return
        # Once a step: an order of 65,536 turns repeats a few of them.
        needs = [_needs(step) for step in self.plan.steps]
        sizes, left, unused = self.plan.buffers, MOST_CARRIED, set(range(len(needs)))
        for turn, (number, *numbers) in enumerate(self.plan.order):
            if number >= len(needs) or len(numbers) != 2 * len(needs[number][1]):
                raise PlanRefused("bad-plan", f"Turn {turn} is of no step of the plan, or has another number of places.")
            weight, of_places = needs[number]
            unused.discard(number)
            left -= weight
            if left < 0:
                raise PlanRefused("too-large", f"More than {MOST_CARRIED:,} launches, operations and tensors are carried out.")
            for buffer, offset, need in zip(numbers[::2], numbers[1::2], of_places, strict=True):
                if buffer >= len(sizes) or any(offset * size + length > sizes[buffer] for size, length in need):
                    raise PlanRefused("bad-plan", f"A tensor of turn {turn} does not lie in buffer {buffer}.")
        if unused:
            raise PlanRefused("bad-plan", f"Step {min(unused)} is never carried out.")

    def _view(self, tensor: Tensor, what: str) -> Tensor:
        if len(tensor.shape) != len(tensor.stride):
            raise PlanRefused("bad-plan", f"{what} has {len(tensor.shape)} extents and {len(tensor.stride)} strides.")
        if tensor.buffer >= len(self.plan.buffers):
            raise PlanRefused("bad-plan", f"{what} lies in buffer {tensor.buffer}; there are {len(self.plan.buffers)}.")
        # The end is Python's whole number: no stride is large enough to wrap around.
        if tensor.end > self.plan.buffers[tensor.buffer]:
            size = self.plan.buffers[tensor.buffer]
            raise PlanRefused("bad-plan", f"{what} ends at byte {tensor.end:,} of buffer {tensor.buffer}, which has {size:,}.")
        return tensor

    def _given(self) -> None:
        taken: list[tuple[int, int, int]] = []
        seen: set[object] = set()
        constants = 0
        for number, given in enumerate(self.plan.given):
            what = f"Given tensor {number}"
            tensor = self._view(given.tensor, what)
            # What is written into overlapping elements depends on the order, and so would the inputs that the judge puts there.
            if not apart(tensor):
                raise PlanRefused("bad-plan", f"{what} overlaps itself.")
            sources = [given.input, given.parameter, given.constant, given.fill]
            if sum(source is not None for source in sources) != 1:
                raise PlanRefused("bad-plan", f"{what} has to be an input, a parameter or a constant, and one of them.")
            constants += self._source(given, what)
            source = ("input", given.input) if given.input is not None else ("parameter", given.parameter)
            if source[1] is not None and source in seen:
                raise PlanRefused("bad-plan", f"{what}: {source[0]} {source[1]} is there already.")
            seen.add(source)
            if tensor.elements:
                taken.append((tensor.buffer, tensor.offset * BYTES[tensor.dtype], tensor.end))
        if constants > MOST_CONSTANTS:
            raise PlanRefused("memory", f"The constants have {constants:,} bytes; {MOST_CONSTANTS:,} may be.")
        # Sorted by buffer and beginning, an overlap is one of neighbours.
        taken.sort()
        for (left, _, end), (right, start, _) in pairwise(taken):
            if left == right and start < end:
                raise PlanRefused("bad-plan", f"Given tensors overlap in buffer {left}.")

    def _source(self, given: Given, what: str) -> int:
        """Return the bytes of a constant, 0 of others."""
        tensor = given.tensor
        found = (tensor.dtype, tensor.shape)
        if given.input is not None:
            if self.allowed.inputs.get(given.input) != found:
                wanted = self.allowed.inputs.get(given.input)
                raise PlanRefused("other-form", f"{what} is input {given.input} as {found}; forward is given {wanted}.")
        elif given.parameter is not None:
            if self.allowed.parameters.get(given.parameter) != found:
                wanted = self.allowed.parameters.get(given.parameter)
                raise PlanRefused(
                    "parameters-differ", f"{what} is parameter {given.parameter} as {found}; the reference has {wanted}."
                )
        elif given.constant is not None:
            data = given.data()
            if data is None or len(data) != tensor.elements * BYTES[tensor.dtype]:
                raise PlanRefused("bad-plan", f"{what}: its bytes are not those of {found}.")
            return len(data)
        return 0

    def _step(self, step: Launch | Operation) -> None:
        if isinstance(step, Launch):
            self._launch(step)
        else:
            self._operation(step)

    def _launch(self, launch: Launch) -> None:
        if launch.launch >= len(self.plan.kernels):
            raise PlanRefused("bad-plan", f"Kernel {launch.launch} is launched; there are {len(self.plan.kernels)}.")
        kernel, names = self.plan.kernels[launch.launch], self.parameters[launch.launch]
        if kernel.computed:
            raise PlanRefused("bad-plan", f"{kernel.name} is launched, and is no kernel.")
        if any(extent > most for extent, most in zip(launch.grid, MOST_GRID, strict=True)):
            raise PlanRefused("grid", f"Kernel {kernel.name} is launched on a grid of {launch.grid}; a GPU has {MOST_GRID}.")
        if math.prod(launch.grid) > self.allowed.most_programs:
            raise PlanRefused(
                "grid", f"Kernel {kernel.name} is launched with {math.prod(launch.grid):,} programs for such an input."
            )
        unknown = [name for name in launch.arguments if name not in names]
        needed = names[: len(names) - self.defaults[launch.launch]]
        missing = [name for name in needed if name not in launch.arguments]
        if unknown or missing:
            raise PlanRefused("bad-plan", f"Kernel {kernel.name}: argument {(unknown + missing)[0]} is unknown or missing.")
        for name, value in launch.arguments.items():
            self._argument(value, f"Argument {name} of kernel {kernel.name}", constant=name in kernel.constexprs)

    def _argument(self, value: Value, what: str, *, constant: bool, depth: int = 0) -> None:
        match value:
            case TensorValue() | DescriptorValue() if constant:
                raise PlanRefused("host-compute", f"{what} is a tensor. A constant is a number, a text, a dtype or a kernel.")
            case TensorValue(tensor=tensor):
                self._view(tensor, what)
            case DescriptorValue(descriptor=made):
                self._view(made.base, what)
                if not len(made.shape) == len(made.strides) == len(made.block_shape) or not made.shape:
                    raise PlanRefused("bad-plan", f"{what}: its shape, strides and block have different numbers of dimensions.")
                # A descriptor may claim another shape than its tensor: hardware would go by the descriptor.
                base = made.base
                self._view(base.model_copy(update={"shape": made.shape, "stride": made.strides}), what)
            case KernelValue(kernel=number):
                if not constant or number >= len(self.plan.kernels):
                    raise PlanRefused("bad-plan", f"{what}: there is no kernel {number}, or it is no constant of the compiler.")
            case DtypeValue() | str() if not constant:
                raise PlanRefused("bad-plan", f"{what} is no constant of the compiler and cannot be {value!r}.")
            case ListValue(list=inner) | TupleValue(tuple=inner):
                if depth > 4:
                    raise PlanRefused("bad-plan", f"{what} nests too deeply.")
                for entry in inner:
                    self._argument(entry, what, constant=constant, depth=depth + 1)
            case bool() | int() | float() | str() | None | FloatValue() | DtypeValue():
                pass
            case _:
                raise PlanRefused("bad-plan", f"{what} is nothing that a kernel takes.")

    def _operation(self, step: Operation) -> None:
        name = base_name(step.operation)
        if name is None or name not in KNOWN:
            raise PlanRefused("host-compute", f"{step.operation} is no operation that a plan may hold.")
        for tensor in tensors_of(step):
            self._view(tensor, f"An argument of {step.operation}")
        for value in (*step.arguments, *step.keywords.values()):
            self._plain(value, step.operation)
        for result in step.results:
            if result is not None and not apart(self._view(result, f"A result of {step.operation}")):
                raise PlanRefused("bad-plan", f"A result of {step.operation} overlaps itself.")
        allowed = self.allowed.operations
        if allowed == "any" or (not isinstance(allowed, str) and {name, f"aten.{name}"} & set(allowed)) or sets_only(step):
            return
        if moves_only(step):
            if self.allowed.copies:
                return
            raise PlanRefused(
                "host-compute", "Forward copies tensors in PyTorch; here moving data is the task. Do it in the kernel."
            )
        raise PlanRefused(
            "host-compute", f"Forward computes in PyTorch (aten.{name}). In this task only a Triton kernel may compute."
        )

    def _plain(self, value: Value, what: str, depth: int = 0) -> None:
        if isinstance(value, DescriptorValue | KernelValue) or depth > 4:
            raise PlanRefused("bad-plan", f"An argument of {what} is nothing that an operation takes.")
        if isinstance(value, ListValue | TupleValue):
            for inner in value.list if isinstance(value, ListValue) else value.tuple:
                self._plain(inner, what, depth + 1)

    def _outputs(self) -> None:
        if not self.plan.launches():
            raise PlanRefused("never-launched", "Forward launched no Triton kernel.")
        if not self.plan.outputs or (self.plan.kind == "tensor" and len(self.plan.outputs) != 1):
            raise PlanRefused("wrong-structure", f"Forward returned {len(self.plan.outputs)} tensors as one {self.plan.kind}.")
        held: dict[int, set[int | None]] = {}
        for given in self.plan.given:
            held.setdefault(given.tensor.buffer, set()).add(given.input)
        seen: set[int] = set()
        for tensor in self.plan.outputs:
            self._view(tensor, "An output")
            # Parameters and constants stand in `held` as None, which is never allowed: returning one is returning what was
            # given.
            if not held.get(tensor.buffer, set()) <= set(self.allowed.inplace):
                raise PlanRefused(
                    "output-aliases", "Forward returned memory of an input, a parameter or of what lasts. Return a new tensor."
                )
            if tensor.buffer in seen:
                raise PlanRefused("output-aliases", "Two outputs share memory.")
            seen.add(tensor.buffer)


def _needs(step: Step) -> tuple[int, list[set[tuple[int, int]]]]:
    """Return how much a step is, and for each of its places the bytes of an element and of all from there on, of each tensor."""
    inner = [one for way in step.choice for one in way] if isinstance(step, Choice) else [step]
    found = places(step)
    needs = [{(BYTES[t.dtype], t.end - t.offset * BYTES[t.dtype]) for t in tensors} for tensors in found.values()]
    return len(inner) + sum(map(len, found.values())), needs


def apart(tensor: Tensor) -> bool:
    """Return whether no two of its elements share a place."""
    reach = 0
    # By stride: each dimension has to step over all that the smaller ones reach.
    for step, extent in sorted((step, extent) for step, extent in zip(tensor.stride, tensor.shape, strict=True) if extent > 1):
        if step <= reach:
            return False
        reach += step * (extent - 1)
    return True
