"""The form of a launch plan: strict, so that a plan written by hand or by a candidate holds nothing but what is named here.

A value is a plain one (number, text, true, false, null) or an object with one key that says what it is: {"tensor": ...},
{"kernel": 2}. A tensor is a view of a buffer, so views need no operations. Imports no torch.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_DIMS = 16
# Of all that a plan lists: each is read by the judge, and a candidate writes as many as it likes.
MOST_KERNELS, MOST_BUFFERS, MOST_STEPS, MOST_GIVEN, MOST_OUTPUTS, MOST_CHOICES = 256, 1 << 16, 4096, 4096, 256, 256
MOST_TURNS = 1 << 16  # of steps, where they come again
TOO_LONG = "Its launch plan is too long: {}. Launch less often: loop in a kernel, or compute more in each launch."
# As long as `bombs` lets pass.
LONGEST_SOURCE = 100_000
MOST_CONSTANT = 8 << 20  # bytes of one constant's text
BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8, "int32": 4,
    "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}  # fmt: skip

# No machine has so many bytes; and Python's whole numbers never wrap around.
Count = Annotated[int, Field(ge=0, lt=1 << 48)]
Index = Annotated[int, Field(ge=0, lt=1 << 16)]
# Plain ASCII: Python takes letters that look alike for the same name.
Word = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Dotted = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,199}$")]
Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "uint8",
    "uint16", "uint32", "uint64", "bool",
]  # fmt: skip
Extents = Annotated[tuple[Count, ...], Field(max_length=MOST_DIMS)]


class Strict(BaseModel):
    """No key beside those named, no value of another type."""

    # Else the text "3" would pass for a number, and true for 1: what is checked must be what is written.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tensor(Strict):
    """A view of a buffer. stride, offset: in elements of its dtype, the offset from the buffer's start."""

    buffer: Index
    dtype: Dtype
    shape: Extents
    stride: Extents
    offset: Count = 0

    @property
    def end(self) -> int:
        """The byte of its buffer after its last element; its start where it has no element."""
        size = BYTES[self.dtype]
        if 0 in self.shape:
            return self.offset * size
        return (self.offset + 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))) * size

    @property
    def elements(self) -> int:
        """How many it has."""
        return math.prod(self.shape)


class TensorValue(Strict):
    """A tensor as an argument."""

    tensor: Tensor


class Descriptor(Strict):
    """Triton's TensorDescriptor, made by the host."""

    base: Tensor
    shape: Extents
    strides: Extents
    block_shape: Extents
    padding: Literal["zero", "nan"] = "zero"


class DescriptorValue(Strict):
    """A descriptor as an argument."""

    descriptor: Descriptor


class KernelValue(Strict):
    """Another kernel, by its number, as a constant."""

    kernel: Index


class DtypeValue(Strict):
    """A dtype: Triton's for kernels, PyTorch's for operations."""

    dtype: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,24}$")]


class FloatValue(Strict):
    """What JSON has no number for."""

    float: Literal["inf", "-inf", "nan"]


class ListValue(Strict):
    """A list."""

    list: Annotated[tuple[Value, ...], Field(max_length=4096)]


class TupleValue(Strict):
    """A tuple."""

    tuple: Annotated[tuple[Value, ...], Field(max_length=4096)]


class LayoutValue(Strict):
    """A memory format of PyTorch's."""

    memory_format: Literal["contiguous_format", "channels_last", "channels_last_3d", "preserve_format"]


class DeviceValue(Strict):
    """The judge's device, whatever it is."""

    device: Literal["here"]


Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
Text = Annotated[str, Field(max_length=10_000)]
Plain = bool | Whole | Annotated[float, Field(allow_inf_nan=False)] | Text | None
Value = (
    Plain
    | TensorValue
    | DescriptorValue
    | KernelValue
    | DtypeValue
    | FloatValue
    | ListValue
    | TupleValue
    | LayoutValue
    | DeviceValue
)


class Language(Strict):
    """A global name of a kernel that means something of Triton's: 'triton.language', 'triton.language.math.exp'."""

    language: Dotted


class Constant(Strict):
    """A global name that is a constant of the compiler (tl.constexpr) or a plain value."""

    constant: Value
    constexpr: bool


class Kernel(Strict):
    """One @triton.jit function, without decorators and annotations of its parameters.

    constexprs: parameters that are constants of the compiler. types: parameters with another annotation, 'i32'. names: what
    each global name means. do_not_specialize, aligned_or_not: what triton.jit was told of parameters. computed: it is no kernel
    but a function of the compiler's own constants (triton.constexpr_function), which picks a dtype by a dtype.
    """

    name: Word
    source: Annotated[str, Field(max_length=LONGEST_SOURCE)]
    constexprs: tuple[Word, ...] = ()
    types: dict[Word, Annotated[str, Field(pattern=r"^\*?k?[a-z0-9]{1,8}$")]] = {}
    names: dict[Word, Language | KernelValue | Constant] = {}
    do_not_specialize: tuple[Word, ...] = ()
    aligned_or_not: tuple[Word, ...] = ()
    noinline: bool = False
    computed: bool = False


class Launch(Strict):
    """A kernel's start. arguments: of all parameters that have no default or get another value. options: num_warps and such."""

    launch: Index
    grid: tuple[Count, Count, Count]
    arguments: dict[Word, Value]
    # By name: others of the compiler's name files to link (extern_libs).
    options: dict[
        Literal["num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "launch_cooperative_grid", "launch_pdl"],
        bool | Annotated[int, Field(ge=0, le=1024)] | None,
    ] = {}


class Operation(Strict):
    """One of PyTorch's: 'aten.mm.default'. results: where each of its results goes, null for one that nobody takes."""

    operation: Dotted
    arguments: Annotated[tuple[Value, ...], Field(max_length=64)] = ()
    keywords: dict[Word, Value] = {}
    results: Annotated[tuple[Tensor | None, ...], Field(max_length=64)] = ()


class Choice(Strict):
    """Configurations of a tuned kernel: the judge takes any one, so each has to be right.

    Each is one launch with what its hook does before.
    """

    choice: Annotated[tuple[Annotated[tuple[Launch | Operation, ...], Field(max_length=64)], ...], Field(max_length=MOST_CHOICES)]


Step = Launch | Operation | Choice


class Given(Strict):
    """What lies in a tensor before the first step.

    An argument of forward, a parameter by the reference's name, or a constant, as bytes (base64) or as one number everywhere.
    """

    tensor: Tensor
    input: Index | None = None
    parameter: Annotated[str, Field(max_length=500)] | None = None
    constant: Annotated[str, Field(max_length=MOST_CONSTANT)] | None = None
    fill: bool | Whole | float | FloatValue | None = None

    def data(self) -> bytes | None:
        """Return a constant's bytes, None where they are none."""
        try:
            return base64.b64decode(self.constant or "", validate=True)
        except (binascii.Error, ValueError):
            return None


Turn = Annotated[tuple[Count, ...], Field(min_length=1, max_length=1 << 14)]


class Plan(Strict):
    """All that one call of forward does. buffers: bytes of each. kind: whether forward returns one tensor or several.

    order: empty where the steps are carried out as they stand. Else one turn after the other: the number of a step, then buffer
    and offset that stand, this time, in place of each pair that its tensors have, in the order in which `places` has these. So a
    loop of the host's over thousands of launches is a few steps and a list of numbers.
    """

    kernels: Annotated[tuple[Kernel, ...], Field(max_length=MOST_KERNELS)]
    buffers: Annotated[tuple[Count, ...], Field(max_length=MOST_BUFFERS)]
    given: Annotated[tuple[Given, ...], Field(max_length=MOST_GIVEN)]
    steps: Annotated[tuple[Step, ...], Field(max_length=MOST_STEPS)]
    outputs: Annotated[tuple[Tensor, ...], Field(max_length=MOST_OUTPUTS)]
    kind: Literal["tensor", "tuple"]
    order: Annotated[tuple[Turn, ...], Field(max_length=MOST_TURNS)] = ()

    def times(self) -> list[int]:
        """Return how often each step is carried out."""
        counted = Counter(turn[0] for turn in self.order)
        return [counted[number] if self.order else 1 for number in range(len(self.steps))]

    def launches(self) -> list[Launch]:
        """Return those of all steps, of every configuration too, each once."""
        return [launch for step in self.steps for launch in launches_of(step)]

    def launched(self) -> int:
        """Return how many there are as they are carried out, those of every configuration counted."""
        return sum(len(launches_of(step)) * times for step, times in zip(self.steps, self.times(), strict=True))


def launches_of(step: Step) -> list[Launch]:
    """Return a step's, of every configuration."""
    some = [inner for one in step.choice for inner in one] if isinstance(step, Choice) else [step]
    return [inner for inner in some if isinstance(inner, Launch)]


class Form(Strict):
    """Which of a task's cases a plan is for."""

    size: Annotated[str, Field(max_length=100)]
    dtype: Annotated[str, Field(max_length=100)]
    training: bool = False


class Recorded(Strict):
    """One form's plan."""

    form: Form
    plan: Plan


class Recording(Strict):
    """What a file holds: plans of one candidate for one task. made_with: versions, for people."""

    # Another number would be another form: refused, not guessed at.
    format: Literal[1] = 1
    task: Annotated[str, Field(max_length=200)] = ""
    made_with: dict[str, Annotated[str, Field(max_length=100)]] = {}
    plans: Annotated[tuple[Recorded, ...], Field(max_length=256)]


# `Value` is defined after the first classes that name it.
for model in (ListValue, TupleValue, Constant, Launch, Operation, Choice, Kernel, Plan, Recorded, Recording):
    model.model_rebuild()
