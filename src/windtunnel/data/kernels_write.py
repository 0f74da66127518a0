"""Write a kernel task: the module in PyTorch, a plan in words, and a Triton kernel that is right, from one description."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .kernels_operators import ROWS

SIZES = ("tiny", "tiny_ragged", "full", "full_ragged")
# For each kernel. Those of the data's own answers take up to three (convolutions); a round waits for its slowest answer.
COMPILE_SECONDS = 8.0
# Of the inputs. A mish whose exponential overflows beyond 44, and a softmax without its maximum, are right for all that a file
# draws; a model that is rewarded for those learns them.
VARIATIONS = ("plain", "scaled", "small", "negated", "large", "shifted")
IMPORTS = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
TRITON_IMPORTS = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
LIBDEVICE = "from triton.language.extra import libdevice\n"


@dataclass(frozen=True)
class Step:
    """A pointwise step in a task.

    Attributes:
        name: of the operator. torch, triton: expressions of `x` and perhaps of `tensor`.
        tensor: what it takes beside x: a parameter's or an input's name; '' for none.
        column: it is a parameter, by column or channel; else a second input of x's shape.
    """

    name: str
    torch: str
    triton: str
    words: str
    tensor: str = ""
    column: bool = False


@dataclass(frozen=True)
class Description:
    """What a task computes, and on what.

    Attributes:
        cores: what is not pointwise, in order: a row's, 'matmul', 'conv2d' or 'pointconv', then perhaps a row's or 'batchnorm'.
        before, after: steps around the cores.
        dims: names of x's dimensions. sizes: of each module-level number, by SIZES.
        gate: the second product's activation is `after`'s first step, and the products are multiplied.
    """

    name: str
    level: int
    cores: tuple[str, ...]
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    dims: tuple[str, ...]
    sizes: Mapping[str, tuple[int, int, int, int]]
    block: int
    gate: bool = False

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the names of all operators, sorted: what tells one combination from another."""
        named = [*self.cores, *(step.name for step in (*self.before, *self.after))]
        return tuple(sorted([*named, "matmul", "mul"] if self.gate else named))

    @property
    def kind(self) -> str:
        """Return which kernel it takes: elementwise, row, gemm, gemm_row or conv."""
        if not self.cores:
            return "elementwise"
        if self.cores[0] == "matmul":
            return "gemm_row" if len(self.cores) > 1 else "gemm"
        return "conv" if self.cores[0] in ("conv2d", "pointconv") else "row"

    @property
    def row(self) -> str:
        """Return the core along a row; '' for none."""
        return next((core for core in self.cores if core in ROWS), "")

    @property
    def biased(self) -> bool:
        """Return whether the product's or convolution's own bias is the first step after it."""
        first = self.after[:1]
        return (
            self.kind in ("gemm", "conv") and not self.gate and len(self.cores) == 1 and bool(first) and first[0].tensor == "bias"
        )

    @property
    def columns(self) -> list[str]:
        """Parameters by column that are the module's own."""
        held = [step.tensor for step in (*self.before, *self.after) if step.column]
        return held[1:] if self.biased else held

    @property
    def seconds(self) -> list[str]:
        """Inputs beside x."""
        return [step.tensor for step in (*self.before, *self.after) if step.tensor and not step.column]


@dataclass(frozen=True)
class Written:
    """A task as text.

    Attributes:
        reference: module in PyTorch, as the model is shown it. source: the same with TASK, as the verifier needs it.
        plan: one or two sentences. answer: module in Triton.
    """

    reference: str
    source: str
    plan: str
    answer: str


_GIVEN = """

def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{init}]
"""


def write_task(task: Description) -> Written:
    """Return the texts of a task."""
    head = "\n".join(f"{name} = {row[2]}" for name, row in task.sizes.items())
    init, forward = _init(task), _forward(task)
    arguments = ", ".join(["x", *task.seconds])
    shape, given = ", ".join(task.dims), ", ".join(_init_arguments(task))
    out = _out_shape(task)
    inputs = [f"torch.randn({shape})", *[f"torch.randn({out})"] * len(task.seconds)]
    body = _module("Model", init, given, arguments, forward) + _GIVEN.format(inputs=", ".join(inputs), init=given)
    reference = f"{IMPORTS}\n{head}\n\n\n{body}"
    sizes = {size: {name: row[i] for name, row in task.sizes.items()} for i, size in enumerate(SIZES)}
    told = {
        "level": task.level, "sizes": sizes, "dtypes": ["float32", "float16", "bfloat16"], "variations": list(VARIATIONS),
        "compile_seconds": COMPILE_SECONDS,
    }  # fmt: skip
    source = f"{IMPORTS}\n{head}\n\nTASK = {told!r}\n\n\n{body}"
    return Written(reference, source, _plan(task), _answer(task, init, given, arguments))


def without_settings(source: str) -> str:
    """Return a module's text without its TASK, which only the verifier is to know."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "TASK" for target in node.targets):
            del lines[node.lineno - 1 : node.end_lineno]
            break
    return "\n".join(lines)


def _module(name: str, init: list[str], given: str, arguments: str, forward: list[str]) -> str:
    takes = f", {given.lower()}" if given else ""
    return (
        f"class {name}(nn.Module):\n    def __init__(self{takes}):\n        super().__init__()\n{_indented(init)}"
        f"\n    def forward(self, {arguments}):\n{_indented(forward)}"
    )


def _indented(lines: list[str]) -> str:
    return "".join(textwrap.indent(line, " " * 8) + "\n" for line in lines)


def _init_arguments(task: Description) -> list[str]:
    if task.kind in ("gemm", "gemm_row"):
        return ["INNER", "OUTER"]
    if task.kind == "conv":
        return ["CHANNELS", "OUT"]
    return [task.dims[-1]] if task.columns or (task.row and ROWS[task.row].init) else []


def _width(task: Description) -> str:
    """Return the name by which `__init__` knows the number of columns or channels of the output."""
    return _init_arguments(task)[-1].lower()


def _out_shape(task: Description) -> str:
    dims = list(task.dims)
    if task.kind in ("gemm", "gemm_row"):
        dims[-1] = "OUTER"
    elif task.kind == "conv":
        dims[1] = "OUT"
    return ", ".join(dims)


def _init(task: Description) -> list[str]:
    lines = []
    bias = "" if task.biased else ", bias=False"
    if task.cores[:1] == ("matmul",):
        names = ("gate", "up") if task.gate else ("linear",)
        lines += [f"self.{name} = nn.Linear(inner, outer{bias})" for name in names]
    elif task.kind == "conv":
        extent = "3, padding=1" if task.cores[0] == "conv2d" else "1"
        lines.append(f"self.conv = nn.Conv2d(channels, out, {extent}{bias})")
    if "batchnorm" in task.cores:
        lines.append("self.bn = nn.BatchNorm2d(out)")
    if task.row and ROWS[task.row].init:
        lines.append("self.norm = " + ROWS[task.row].init.format(cols=_width(task)))
    shape = ", 1, 1" if task.kind == "conv" else ""
    return lines + [f"self.{name} = nn.Parameter(torch.randn({_width(task)}{shape}))" for name in task.columns]


def _forward(task: Description) -> list[str]:
    lines = [f"x = {step.torch}" for step in task.before]
    for core in task.cores:
        if task.gate:
            lines += [f"gate = {task.after[0].torch}".replace("(x", "(self.gate(x)"), "x = gate * self.up(x)"]
        elif core in ROWS:
            lines.append(f"x = {ROWS[core].torch}")
        else:
            lines.append(f"x = self.{ {'matmul': 'linear', 'batchnorm': 'bn'}.get(core, 'conv') }(x)")
    after = task.after[1:] if task.gate or task.biased else task.after
    return [*lines, *(f"x = {step.torch}" for step in after), "return x"]


def _plan(task: Description) -> str:
    whole = {
        "elementwise": "each program takes one block of elements",
        "row": "each program takes one row, which fits into a block",
        "gemm": "each program computes one tile of the product, adding up over blocks of the inner dimension in fp32",
        "gemm_row": "each program computes whole rows of the product, adding up over blocks of the inner dimension in fp32",
        "conv": "each program takes one block of output elements and adds up over channels and taps in fp32",
    }[task.kind]
    said = [step.words for step in task.before]
    said += [
        ROWS[core].words if core in ROWS else "batchnorm with the running statistics"
        for core in task.cores
        if core in (*ROWS, "batchnorm")
    ]
    said += ["the gate's " + task.after[0].words, "times the second product"] if task.gate else []
    said += [step.words for step in (task.after[1:] if task.gate else task.after)]
    then = f" On it, without going back to memory: {', then '.join(said)}." if said else ""
    return f"Plan: {whole}.{then} Masks at the edges, one store."


# A row is one dimension of a program's block or the second of two, and the same statements serve both.
class _Reduce:
    """Formats '{sum:x}' as a reduction of x over a row: of one dimension, or the second of two."""

    def __init__(self, name: str, flat: bool) -> None:
        self._name, self._flat = name, flat

    def __format__(self, what: str) -> str:
        return f"tl.{self._name}({what}, 0)" if self._flat else f"tl.{self._name}({what}, 1)[:, None]"


@dataclass(frozen=True)
class _Places:
    """Where a kernel's values lie: of a parameter by column, and of a second input."""

    column: str
    column_mask: str
    lift: str
    second: str


_PLACES = {
    "elementwise": _Places("offsets % n", "mask", "", "offsets"),
    "row": _Places("cols", "mask", "", "row * n + cols"),
    "gemm": _Places("rn", "rn < N", "[None, :]", "at"),
    "gemm_row": _Places("rn", "rn < N", "[None, :]", "at"),
    "conv": _Places("channel", "mask", "", "offsets"),
}


def _load(task: Description, name: str, *, column: bool) -> str:
    at = _PLACES[task.kind]
    if column:
        return f"{name} = tl.load({name}_ptr + {at.column}, mask={at.column_mask}, other=0.0).to(tl.float32){at.lift}"
    return f"{name} = tl.load({name}_ptr + {at.second}, mask=mask, other=0.0).to(tl.float32)"


def _steps(task: Description, steps: tuple[Step, ...]) -> list[str]:
    lines = []
    for step in steps:
        lines += [_load(task, step.tensor, column=step.column)] if step.tensor else []
        lines += _assigned(step)
    return lines


def _assigned(step: Step) -> list[str]:
    """Return a step's statements, of which the last assigns `x`."""
    *first, last = step.triton.split("\n")
    return [*first, f"x = {last}"]


def _worked(task: Description) -> list[str]:
    """Return the statements between the cores' own loop, or the load, and the store."""
    lines = _steps(task, task.before) if task.kind in ("elementwise", "row") else []
    if "batchnorm" in task.cores:
        lines += [_load(task, name, column=True) for name in ("mean", "var", "weight", "shift")]
        lines.append("x = (x - mean) * tl.rsqrt(var + 1e-5) * weight + shift")
    if task.gate:
        return [*lines, *_assigned(task.after[0]), "x = x * up", *_steps(task, task.after[1:])]
    if task.row:
        row, flat = ROWS[task.row], task.kind == "row"
        lines += [_load(task, name, column=True) for name in row.parameters]
        reduces: dict[str, Any] = {"sum": _Reduce("sum", flat), "max": _Reduce("max", flat)}
        lines += row.triton.format(n="n" if flat else "N", **reduces).split("\n")
    return [*lines, *_steps(task, task.after)]


# Sums are taken in fp32 whatever the type of the inputs, as PyTorch does.
_PRODUCT = """rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
rn = {columns}tl.arange(0, BLOCK_N)
rk = tl.arange(0, BLOCK_K)
{zeros}
for k in range(0, K, BLOCK_K):
    deep = k + rk
    a = tl.load(x_ptr + rm[:, None] * K + deep[None, :], mask=(rm[:, None] < M) & (deep[None, :] < K), other=0.0)
    inside = (deep[:, None] < K) & (rn[None, :] < N)
{dots}
at = rm[:, None] * N + rn[None, :]
mask = (rm[:, None] < M) & (rn[None, :] < N)"""
_CONVOLUTION = """offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
mask = offsets < total
col = offsets % WIDTH
row = offsets // WIDTH % HEIGHT
channel = offsets // (WIDTH * HEIGHT) % OUT
image = offsets // (WIDTH * HEIGHT * OUT)
x = tl.zeros((BLOCK,), dtype=tl.float32)
for c in range(CHANNELS):
"""
_TAPS = """    for tap in tl.static_range(9):
        r = row + tap // 3 - 1
        q = col + tap % 3 - 1
        inside = mask & (r >= 0) & (r < HEIGHT) & (q >= 0) & (q < WIDTH)
        v = tl.load(x_ptr + ((image * CHANNELS + c) * HEIGHT + r) * WIDTH + q, mask=inside, other=0.0)
        w = tl.load(w_ptr + (channel * CHANNELS + c) * 9 + tap, mask=mask, other=0.0)
        x += v.to(tl.float32) * w.to(tl.float32)"""
_TAP = """    v = tl.load(x_ptr + ((image * CHANNELS + c) * HEIGHT + row) * WIDTH + col, mask=mask, other=0.0)
    w = tl.load(w_ptr + channel * CHANNELS + c, mask=mask, other=0.0)
    x += v.to(tl.float32) * w.to(tl.float32)"""


def _begun(task: Description) -> list[str]:
    """Return a kernel's statements up to where `x` is there."""
    if task.kind == "elementwise":
        return [
            "offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "mask = offsets < total",
            "x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)",
        ]
    if task.kind == "row":
        return [
            "row = tl.program_id(0)",
            "cols = tl.arange(0, BLOCK)",
            "mask = cols < n",
            "x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)",
        ]
    if task.kind == "conv":
        return [_CONVOLUTION + (_TAPS if task.cores[0] == "conv2d" else _TAP)]
    products = [("x", "w_ptr"), ("up", "up_ptr")] if task.gate else [("x", "w_ptr")]
    zeros = "\n".join(f"{name} = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)" for name, _ in products)
    dots = "\n".join(
        f"    b = tl.load({pointer} + rn[None, :] * K + deep[:, None], mask=inside, other=0.0)\n    {name} += tl.dot(a, b)"
        for name, pointer in products
    )
    return [_PRODUCT.format(columns="" if task.row else "tl.program_id(1) * BLOCK_N + ", zeros=zeros, dots=dots)]


def _answer(task: Description, init: list[str], given: str, arguments: str) -> str:
    held = _held(task)
    tensors = {"x_ptr": "x", **held, **{f"{name}_ptr": name for name in task.seconds}, "out_ptr": "out"}
    numbers, constants, host, grid = _launch(task)
    name = "_".join([*(step.name for step in task.before), *task.cores, *(step.name for step in task.after)]) + "_kernel"
    reduced = bool(task.row) and ROWS[task.row].reduces
    store = {"row": "row" if reduced else "row * n + cols", "gemm": "at", "gemm_row": "at"}.get(task.kind, "offsets")
    masked = "" if reduced else ", mask=mask"
    body = [*_begun(task), *_worked(task), f"tl.store(out_ptr + {store}, x.to(out_ptr.dtype.element_ty){masked})"]
    signature = ", ".join([*tensors, *numbers, *(f"{key}: tl.constexpr" for key in constants)])
    call = ", ".join([*tensors.values(), *numbers.values(), *(f"{key}={value}" for key, value in constants.items())])
    lines = "".join(textwrap.indent(line, "    ") + "\n" for line in body)
    # The kernels count on rows that lie one behind the other, and callers may pass transposed tensors.
    copies = [f"{one} = {one}.contiguous()" for one in ("x", *task.seconds)]
    forward = [*copies, *host, f"{name}[{grid}]({call})", "return out"]
    imports = TRITON_IMPORTS + (LIBDEVICE if "libdevice." in lines else "")
    return (
        f"{imports}\n\n@triton.jit\ndef {name}({signature}):\n{lines}\n\n{_module('ModelNew', init, given, arguments, forward)}"
    )


def _held(task: Description) -> dict[str, str]:
    """Return the kernel's pointers to what the module holds."""
    found = {}
    if task.cores[:1] == ("matmul",):
        found = {"w_ptr": "self.gate.weight", "up_ptr": "self.up.weight"} if task.gate else {"w_ptr": "self.linear.weight"}
        found |= {"bias_ptr": "self.linear.bias"} if task.biased else {}
    elif task.kind == "conv":
        found = {"w_ptr": "self.conv.weight"} | ({"bias_ptr": "self.conv.bias"} if task.biased else {})
    if "batchnorm" in task.cores:
        found |= {"mean_ptr": "self.bn.running_mean", "var_ptr": "self.bn.running_var"}
        found |= {"weight_ptr": "self.bn.weight", "shift_ptr": "self.bn.bias"}
    if task.row:
        held = {"weight": "self.norm.weight", "shift": "self.norm.bias"}
        found |= {f"{name}_ptr": held[name] for name in ROWS[task.row].parameters}
    return found | {f"{name}_ptr": f"self.{name}" for name in task.columns}


def _launch(task: Description) -> tuple[dict[str, str], dict[str, str], list[str], str]:
    """Return a kernel's numbers, its constants, the host's statements before the launch, and the grid."""
    block = str(task.block)
    if task.kind == "elementwise":
        numbers = {"total": "total"} | ({"n": "x.shape[-1]"} if task.columns else {})
        return numbers, {"BLOCK": block}, ["out = torch.empty_like(x)", "total = x.numel()"], f"(triton.cdiv(total, {block}),)"
    if task.kind == "row":
        reduced = ROWS[task.row].reduces
        out = "torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)" if reduced else "torch.empty_like(x)"
        return {"n": "n"}, {"BLOCK": "triton.next_power_of_2(n)"}, ["n = x.shape[-1]", f"out = {out}"], "(x.numel() // n,)"
    if task.kind == "conv":
        host = ["batch, channels, height, width = x.shape", "out_channels = self.conv.weight.shape[0]"]
        host += ["out = torch.empty((batch, out_channels, height, width), dtype=x.dtype, device=x.device)", "total = out.numel()"]
        numbers = {"total": "total", "CHANNELS": "channels", "OUT": "out_channels", "HEIGHT": "height", "WIDTH": "width"}
        return numbers, {"BLOCK": block}, host, f"(triton.cdiv(total, {block}),)"
    layer = "self.gate" if task.gate else "self.linear"
    host = [f"N, K = {layer}.weight.shape", "M = x.numel() // K"]
    host.append("out = torch.empty((*x.shape[:-1], N), dtype=x.dtype, device=x.device)")
    # An operator along rows needs whole rows in one program, so that fewer of them fit.
    high, wide = ("16", "triton.next_power_of_2(N)") if task.row else (block, block)
    grid = f"(triton.cdiv(M, {high}),)" if task.row else f"(triton.cdiv(M, {block}), triton.cdiv(N, {block}))"
    constants = {"BLOCK_M": high, "BLOCK_N": wide, "BLOCK_K": "32"}
    return {"M": "M", "N": "N", "K": "K"}, constants, host, grid
