"""Functions that the compiler computes with: one that picks a dtype by a dtype is taken, and nothing else of Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from warm import compiler_box, kernel_box

from windtunnel.verify import KernelVerifier
from windtunnel.verify.kernel.plan import Kernel
from windtunnel.verify.kernel.plan.grammar import NotInGrammar, check_kernels
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.sandbox import Sandbox

pytest.importorskip("triton")

TASK = """
import torch
import torch.nn as nn

ROWS, COLS = 64, 48


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
SOURCE = '''
import torch
import torch.nn as nn
import triton
import triton.language as tl


@DECORATOR
def wider(dtype: tl.dtype) -> tl.dtype:
    """Return what to add up in."""
    if dtype.is_bf16() or dtype.is_fp16():
        return tl.float32
    if dtype.is_int():
        return tl.int64
    else:
        return dtype


@triton.jit
def sums(x, y, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    kind: tl.constexpr = wider(x.type.element_ty)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(kind)
    tl.store(y + row * n + at, tl.cumsum(value, 0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        sums[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
'''


@pytest.fixture(scope="module")
def boxes() -> Iterator[list[Sandbox]]:
    with ExitStack() as opened:
        yield [opened.enter_context(make()) for make in (kernel_box, compiler_box)]


@pytest.mark.parametrize("decorator", ["tl.constexpr", "triton.constexpr_function"])
def test_a_kernel_may_pick_a_dtype_by_a_dtype(boxes: list[Sandbox], decorator: str) -> None:
    task = replace(task_from_source(TASK, name="sums"), dtypes=("float32", "float16"))
    source = SOURCE.replace("DECORATOR", decorator)
    found = KernelVerifier(task, boxes[0], compiler=boxes[1]).verify(source)
    assert found.accepted, found
    launched = source.replace("sums[(x.shape[0],)](x", "wider[(1,)](x")
    assert not KernelVerifier(task, boxes[0], compiler=boxes[1]).verify(launched).accepted


@pytest.mark.parametrize(
    "body",
    [
        "    return 1",
        "    return dtype.is_fp16()",
        "    return __import__('os')",
        "    while dtype.is_fp16():\n        return dtype",
        "    x = dtype\n    return x",
        "    if dtype:\n        return dtype",
        "    if dtype == tl.float32:\n        return dtype",
        "    if tl.load(dtype).is_fp16():\n        return dtype",
        "    if dtype.is_fp16() and dtype.value:\n        return dtype",
        "    if dtype.is_fp16(dtype):\n        return dtype",
        "    if dtype.is_fp16():\n        return wider(dtype)\n    return dtype",
        "    return dtype if dtype.is_fp16() else tl.float32",
        "    return (dtype, dtype)",
        "    return [d for d in (dtype,)][0]",
        "    print(dtype)\n    return dtype",
    ],
)
def test_nothing_else_of_python_is_run_for_the_compiler(body: str) -> None:
    names = {"tl": {"language": "triton.language"}, "wider": {"kernel": 0}}
    made = {"name": "wider", "source": f"def wider(dtype):\n{body}", "names": names, "computed": True}
    with pytest.raises(NotInGrammar):
        check_kernels((Kernel.model_validate(made),))
    right = "    if not dtype.is_fp16() or dtype.is_bf16():\n        return tl.float32\n    return dtype"
    check_kernels((Kernel.model_validate({**made, "source": f"def wider(dtype):\n{right}"}),))
