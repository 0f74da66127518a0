"""Answers whose verdict is known: a few right ones, and wrong ones that models write and rewards must not pay for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Probe:
    """An answer to a task. reasons: those for which a wrong answer may be refused; none for a right one."""

    kind: str
    name: str
    task: Any
    answer: str
    reasons: frozenset[str] = frozenset()

    @property
    def right(self) -> bool:
        """Whether it has to be accepted."""
        return not self.reasons

    @property
    def named(self) -> str:
        """Return its task as a text, equal for equal tasks."""
        return json.dumps(self.task, sort_keys=True)


HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
# One of each kind that plans are made of: element by element, along rows with a reduction, a product with a loop.
RELU = (
    HEAD
    + """

@triton.jit
def relu_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
"""
)
SOFTMAX = (
    HEAD
    + """

@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    x = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * columns + at, x / tl.sum(x, 0), mask=at < columns)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        rows, columns = x.shape
        softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
        return out
"""
)
MATMUL = (
    HEAD
    + """

@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a_mask = (rows[:, None] < M) & (inner[None, :] < K)
        b_mask = (inner[:, None] < K) & (columns[None, :] < N)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


class ModelNew(nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        matmul_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](a, b, c, M, N, K, BLOCK=32)
        return c
"""
)


def _changed(source: str, old: str, new: str) -> str:
    """Return the source with one thing else."""
    # Else a probe would quietly be the right kernel.
    assert source.count(old) == 1, old
    return source.replace(old, new)


def _wrong(name: str, task: str, source: str, reasons: str) -> Probe:
    return Probe("kernel", name, task, source, frozenset(reasons.split()))


# Each row is then stored by two programs, and which comes last decides.
NEXT_ROW = "    tl.store(out_ptr + (row + 1) % tl.num_programs(0) * columns + at, x, mask=at < columns)\n"
RACE = _changed(SOFTMAX, "    tl.store(", f"{NEXT_ROW}    tl.store(")
SQUARE = {"cases": [{"function": "f", "args": [3], "expected": 9}, {"function": "f", "args": [-2], "expected": 4}]}
# A wrong kernel breaks one rule alone: a judge that has lost this rule accepts it, and the test of itself fails.
PROBES = (
    Probe("kernel", "an element-wise kernel", "relu", RELU),
    Probe("kernel", "a kernel over rows, in an answer with prose", "softmax", f"So:\n```python\n{SOFTMAX}```\nIt is fused."),
    Probe("kernel", "a kernel of a matrix product", "matmul", MATMUL),
    _wrong("PyTorch in place of a kernel", "relu", _changed(RELU, "return out", "return torch.relu(x)"), "host-compute"),
    _wrong("a kernel that is never launched", "relu", RELU[: RELU.index("        relu_kernel[")] + "        return out\n",
           "never-launched"),
    _wrong("a kernel with wrong values", "relu", _changed(RELU, "tl.maximum(x, 0.0)", "tl.abs(x)"), "wrong-values"),
    _wrong("a softmax that overflows", "softmax", _changed(SOFTMAX, "tl.exp(x - tl.max(x, 0))", "tl.exp(x)"),
           "wrong-values non-finite"),
    _wrong("a kernel that writes outside", "relu", _changed(RELU, "tl.maximum(x, 0.0), mask=at < total", "tl.maximum(x, 0.0)"),
           "out-of-bounds"),
    _wrong("a kernel that leaves the end out", "relu", _changed(RELU, "triton.cdiv(x.numel(), 256)", "x.numel() // 256"),
           "non-finite never-launched output-not-from-kernel grid"),
    _wrong("a kernel whose programs race", "softmax", RACE, "race"),
    _wrong("text that is no code", "relu", "The kernel is left to the reader.", "import-failed syntax-error"),
    Probe("code", "a function that passes its tests", SQUARE, "def f(x):\n    return x * x\n"),
    Probe("code", "a function that fails a test", SQUARE, "def f(x):\n    return x * 3\n", frozenset({"wrong-result"})),
    Probe("code", "a function that ends the process", SQUARE, "import os\n\ndef f(x):\n    os._exit(0)\n",
          frozenset({"exited", "crashed"})),
    Probe("math", "an equal expression", {"answer": "\\frac{1}{2}"}, "\\boxed{0.5}"),
    Probe("math", "another number", {"answer": "\\frac{1}{2}"}, "\\boxed{0.25}", frozenset({"wrong-result", "not-equal"})),
)  # fmt: skip
