"""Whose values a candidate's parameters and buffers hold: the judge's, whatever they are called, and never its own instead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm import kernel_box

from windtunnel.verify.kernel import KernelVerifier
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.sandbox import Sandbox

pytest.importorskip("triton")

REFERENCE = """\
import torch
import torch.nn as nn

ROWS = 64
COLS = 96
TASK = {"dtypes": ["float32"]}


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(cols))
        self.offset = nn.Parameter(torch.zeros(cols))
        self.register_buffer("table", torch.arange(cols) / cols)

    def forward(self, x):
        return torch.relu(x * self.gain + self.offset) * self.table


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
"""
CANDIDATE = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scaled(x_ptr, gain_ptr, offset_ptr, table_ptr, y_ptr, n, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    gain = tl.load(gain_ptr + at % cols, mask=mask, other=0.0)
    offset = tl.load(offset_ptr + at % cols, mask=mask, other=0.0)
    table = tl.load(table_ptr + at % cols, mask=mask, other=0.0)
    tl.store(y_ptr + at, tl.maximum(x * gain + offset, 0.0) * table, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(cols))
        self.offset = nn.Parameter(torch.zeros(cols))
        self.register_buffer("table", torch.arange(cols) / cols)

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        scaled[(triton.cdiv(n, 64),)](x, self.gain, self.offset, self.table, y, n, x.shape[1], BLOCK=64)
        return y
"""
GAIN, OFFSET = "self.gain = nn.Parameter(torch.ones(cols))", "self.offset = nn.Parameter(torch.zeros(cols))"
TABLE = 'self.register_buffer("table", torch.arange(cols) / cols)'
BOTH = "both = torch.zeros(2, cols)"
# What is changed in the right candidate → the reason of its verdict.
CHANGES = {
    "nothing": ([], "accepted"),
    "other names in the same order": (
        [("self.gain", "self.first"), ("self.offset", "self.second"), ('"table"', '"third"'), ("self.table", "self.third")],
        "accepted",
    ),
    "a buffer of its own that it does not need": (
        [(TABLE, f"{TABLE}\n        self.register_buffer('spare', torch.ones(3))")],
        "accepted",
    ),
    "two of one size the other way round": (
        [("self.gain", "self.first"), ("self.offset", "self.gain_"), ("x, self.first, self.gain_", "x, self.gain_, self.first")],
        "wrong-values",
    ),
    "a constant in the place of a parameter": (
        [(OFFSET, "self.register_buffer('zeros', torch.zeros(cols + 1))"), ("self.offset,", "self.zeros,")],
        "wrong-values",
    ),
    "a list in the place of a parameter": (
        [(OFFSET, "self.kept = [torch.zeros(cols, device='cuda')]"), ("self.offset,", "self.kept[0],")],
        "wrong-values",
    ),
    "a table of its own in the place of the judge's": (
        [(TABLE, "self.register_buffer('mine', torch.arange(cols + 1) / cols)"), ("self.table,", "self.mine,")],
        "wrong-values",
    ),
    "one tensor for two parameters": ([(OFFSET, "self.offset = self.gain")], "wrong-values"),
    "folded when it is made": (
        [
            (TABLE, f"{TABLE}\n        self.register_buffer('both', self.gain.detach() * self.table)"),
            ("self.gain, self.offset", "self.both, self.offset"),
        ],
        "wrong-values",
    ),
    "a second name for one": (
        [(GAIN, f"{GAIN}\n        self._gain = self.gain"), ("x, self.gain, self.offset", "x, self._gain, self.offset")],
        "accepted",
    ),
    "a parameter of its own": ([(TABLE, f"{TABLE}\n        self.spare = nn.Parameter(torch.ones(3))")], "parameters-differ"),
    "parts of one larger tensor": (
        [(GAIN, f"{BOTH}\n        self.gain = nn.Parameter(both[0])"), (OFFSET, "self.offset = nn.Parameter(both[1])")],
        "parameters-differ",
    ),
}


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def verifier(box: Sandbox) -> KernelVerifier:
    return KernelVerifier(task_from_source(REFERENCE, name="scaled"), box)


@pytest.mark.parametrize("change", CHANGES)
def test_parameters_hold_the_judges_values_whatever_they_are_called(verifier: KernelVerifier, change: str) -> None:
    changes, reason = CHANGES[change]
    source = CANDIDATE
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    verdict = verifier.verify(source)
    assert verdict.reason == reason, verdict.message


@pytest.mark.parametrize("made", ["nn.Linear", "nn.init", "method"])
def test_of_a_large_parameter_nothing_is_drawn_and_no_page_is_touched(made: str) -> None:
    """Its values come from the judge. A layer of the file's own size would take seconds, and gigabytes."""
    torch = pytest.importorskip("torch")
    from windtunnel.verify.kernel.child.pretend import OnGpu, Tensors

    nn, wide = torch.nn, 5000
    with OnGpu(Tensors()):
        if made == "nn.Linear":
            large, small = nn.Linear(wide, wide).weight, nn.Linear(8, 8).weight
        else:
            large, small = nn.Parameter(torch.empty(wide, wide)), nn.Parameter(torch.empty(8, 8))
            for parameter in (large, small):
                if made == "nn.init":
                    nn.init.kaiming_normal_(parameter)
                else:
                    parameter.data.normal_()
    assert large.shape == (wide, wide)
    assert not large.any(), "the kernel's own pages"
    assert small.any()
