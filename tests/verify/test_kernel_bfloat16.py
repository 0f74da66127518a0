"""A task in bfloat16 is run in bfloat16, on an interpreter that has none of its own: as PyTorch computes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from warm import kernel_box

from windtunnel.verify.kernel import KernelVerifier
from windtunnel.verify.kernel.task import task_from_source

pytestmark = pytest.mark.end_to_end

pytest.importorskip("triton")

TASK = """\
import torch
import torch.nn as nn

ROWS, COLS = 512, 1024


class Model(nn.Module):
    def forward(self, x, y):
        return {}


def get_inputs():
    return [torch.randn(ROWS, COLS, dtype=torch.bfloat16), torch.randn(ROWS, COLS, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
"""
HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n\n@triton.jit\n"
ELEMENTS = """\
def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    tl.store(out_ptr + at, {}, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        assert x.dtype == torch.bfloat16
        out = torch.{}
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
        return out{}
"""
ROWS = """\
def kernel(x_ptr, y_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * cols + at, mask=at < cols, other=-float("inf"))
    y = tl.load(y_ptr + tl.program_id(0) * cols + at, mask=at < cols, other=0.0)
    part = tl.exp((x - tl.max(x, 0)).to(tl.float32))
    tl.store(out_ptr + tl.program_id(0) * cols + at, (part / tl.sum(part, 0)).to(tl.bfloat16) * y, mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
"""
PRODUCT = """\
def kernel(x_ptr, y_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for begin in range(0, cols, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i[:, None] * cols + k[None, :], mask=(i[:, None] < rows) & (k[None, :] < cols), other=0.0)
        y = tl.load(y_ptr + j[None, :] * cols + k[:, None], mask=(j[None, :] < rows) & (k[:, None] < cols), other=0.0)
        total += tl.dot(x, y)
    tl.store(out_ptr + i[:, None] * rows + j[None, :], total.to(tl.bfloat16), mask=(i[:, None] < rows) & (j[None, :] < rows))


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty(x.shape[0], x.shape[0], device=x.device, dtype=x.dtype)
        kernel[(triton.cdiv(x.shape[0], 16),) * 2](x, y, out, x.shape[0], x.shape[1], BLOCK=16)
        return out
"""
SAME = ("empty_like(x)", "")
# What the task computes, the candidate, and whether it is right.
CASES = {
    "arithmetic in bfloat16": ("x * y + abs(x)", HEAD + ELEMENTS.format("x * y + tl.abs(x)", *SAME), True),
    "a number of bfloat16": ("x * 0.5", HEAD + ELEMENTS.format("x * tl.full((BLOCK,), 0.5, tl.bfloat16)", *SAME), True),
    "by way of float32": ("torch.sigmoid(x) * y", HEAD + ELEMENTS.format("tl.sigmoid(x.to(tl.float32)) * y", *SAME), True),
    "a row": ("torch.softmax(x, -1) * y", HEAD + ROWS, True),
    "a product": ("x @ y.T", HEAD + PRODUCT, True),
    "another function": ("x * y + abs(x)", HEAD + ELEMENTS.format("x * y + x", *SAME), False),
    "float32 handed out": ("x * y", HEAD + ELEMENTS.format("x * y", "empty_like(x, dtype=torch.float32)", ""), False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bfloat16_task_is_judged_in_bfloat16(name: str) -> None:
    reference, candidate, right = CASES[name]
    task = task_from_source(TASK.format(reference), name="t")
    assert task.dtypes == ("bfloat16",)
    with kernel_box() as box:
        verdict = KernelVerifier(task, box).verify(candidate)
    assert verdict.accepted is right, verdict.message
    if right:
        assert all(" bfloat16 " in case for case in verdict.evidence["cases"])
        assert not any("bfloat16" in left for left in verdict.evidence["left"])


def test_rounding_is_that_of_pytorch() -> None:
    from windtunnel.verify.kernel.child.bfloat16 import bits_of, from_bits, rounded

    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * np.float32(10.0) ** np.arange(-5, 5).repeat(
        1000
    )
    values = np.append(values, [np.inf, -np.inf, 0.0, -0.0, 3.4e38]).astype(np.float32)
    near = torch.from_numpy(values).bfloat16()
    assert np.array_equal(rounded(values), near.float().numpy())
    assert np.array_equal(from_bits(bits_of(rounded(values))), rounded(values))
    assert np.isnan(from_bits(bits_of(rounded(np.float32([np.nan])))))
