"""How kernels reach memory on the interpreter: through tensor descriptors, and past their masks."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from honest.suite import suite
from warm import kernel_box

from windtunnel.verify import find_task
from windtunnel.verify.kernel import KernelVerifier
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
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols)", True),
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=1.0)", False),
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0) + tl.load(x_ptr, mask=row < 0)", True),
        ("x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0) + tl.load(x_ptr, mask=row < 0, other=1.0)", False),
    ],
)
def test_what_a_mask_leaves_out_is_zero_without_other_as_in_the_compilers_code(box: Sandbox, load: str, right: bool) -> None:
    verdict = judged(box, load)
    assert verdict.accepted is right, verdict.message


def test_the_compiler_sets_what_a_mask_leaves_out_to_zero() -> None:
    """What the interpreter does there rests on this: for NVIDIA's GPUs a register is set to 0 before the load that may not be."""
    script = (
        "import triton, triton.language as tl\n"
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource\n"
        "@triton.jit\n"
        "def kernel(x, y, n, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(y + at, tl.load(x + at, mask=at < n))\n"
        "types = {'x': '*fp32', 'y': '*fp32', 'n': 'i32', 'BLOCK': 'constexpr'}\n"
        "for capability in (80, 90, 100):\n"
        "    made = triton.compile(ASTSource(kernel, types, {(3,): 64}), target=GPUTarget('cuda', capability, 32))\n"
        "    lines = made.asm['ptx'].splitlines()\n"
        "    at = next(number for number, line in enumerate(lines) if 'ld.global' in line)\n"
        "    print(lines[at - 1].strip())\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "made.py").write_text(script)
        environment = {**os.environ, "TRITON_CACHE_DIR": folder, "TRITON_INTERPRET": "0"}
        command = [sys.executable, f"{folder}/made.py"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    assert len(done.stdout.splitlines()) == 3
    assert all(line.startswith("mov.") and line.endswith(", 0x0;") for line in done.stdout.splitlines()), done.stdout


def test_a_launch_that_stores_nothing_is_fine(box: Sandbox) -> None:
    twice = SUM.replace("BODY", "x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0)").replace(
        "tl.store(y_ptr + row, tl.sum(x.to(tl.float32), 0))",
        "tl.store(y_ptr + row, tl.sum(x.to(tl.float32), 0), mask=cols > 0)",
    )
    launch = next(line for line in twice.splitlines() if "sum_kernel[" in line)
    twice = twice.replace(launch, f"{launch}\n{launch.replace('x.shape[1], BLOCK', '0, BLOCK')}")
    verdict = KernelVerifier(find_task("sum_last"), box).verify(twice)
    assert verdict.accepted, verdict.message
