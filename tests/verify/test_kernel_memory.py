"""How kernels reach memory on the interpreter: through tensor descriptors, and past their masks."""

from collections.abc import Iterator

import pytest
from honest.suite import suite
from warm import kernel_box

from windtunnel.verify import find_task
from windtunnel.verify.kernel import KernelVerifier
from windtunnel.verify.kernel.advice import advice
from windtunnel.verify.sandbox import Sandbox
from windtunnel.verify.types import Verdict

DESCRIPTORS = [candidate for candidate in suite() if "/descriptor_" in candidate.name]
SUM = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    BODY
    tl.store(y_ptr + row, tl.sum(x.to(tl.float32), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


def judged(box: Sandbox, body: str) -> Verdict:
    return KernelVerifier(find_task("sum_last"), box).verify(SUM.replace("BODY", body))


def test_tensor_descriptors_are_understood(box: Sandbox) -> None:
    assert len(DESCRIPTORS) >= 5
    said = {c.name: KernelVerifier(find_task(c.task), box).verify(c.source) for c in DESCRIPTORS}
    assert {name: verdict.message for name, verdict in said.items() if not verdict.accepted} == {}


def test_a_descriptor_that_hardware_refuses_is_explained(box: Sandbox) -> None:
    rows = "tl.make_tensor_descriptor(x_ptr, [row + 1, cols], [cols, 1], [1, BLOCK])"
    verdict = judged(box, f"x = tl.reshape({rows}.load([row, 0]), [BLOCK])")
    assert not verdict.accepted
    assert "multiple of 16 bytes" in verdict.message


@pytest.mark.parametrize(
    ("load", "right"),
    [
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols)", False),
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0)", True),
        ("x = tl.where(at < cols, tl.load(x_ptr + row * cols + at, mask=at < cols), 0.0)", True),
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0) + tl.load(x_ptr, mask=row < 0, other=0.0)", True),
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0) + tl.load(x_ptr, mask=row < 0)", False),
    ],
)
def test_what_a_mask_leaves_out_is_undefined_without_other(box: Sandbox, load: str, right: bool) -> None:
    verdict = judged(box, load)
    assert verdict.accepted is right, verdict.message
    assert ("Give other=." in verdict.message) is not right


def test_advice_names_the_line_of_the_first_such_load() -> None:
    assert " Line 2: " in advice("a = tl.load(p, mask=m, other=0)\nb = tl.load(p, m)", "non-finite", "")
    assert " Line 1: " in advice("a = tl.load(block, boundary_check=(0,))", "wrong-values", "")
    for fine in ("tl.load(p)", "tl.load(p, m, 0.0)", "d.load([0, 1])", "tl.load(b, boundary_check=(0,), padding_option='zero')"):
        assert advice(fine, "wrong-values", "") == ""
    assert advice("tl.load(p, m)", "host-compute", "") == ""


def test_a_launch_that_stores_nothing_is_fine(box: Sandbox) -> None:
    twice = SUM.replace("BODY", "x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0)").replace(
        "tl.store(y_ptr + row, tl.sum(x.to(tl.float32), 0))",
        "tl.store(y_ptr + row, tl.sum(x.to(tl.float32), 0), mask=cols > 0)",
    )
    launch = next(line for line in twice.splitlines() if "sum_kernel[" in line)
    twice = twice.replace(launch, f"{launch}\n{launch.replace('x.shape[1], BLOCK', '0, BLOCK')}")
    verdict = KernelVerifier(find_task("sum_last"), box).verify(twice)
    assert verdict.accepted, verdict.message
