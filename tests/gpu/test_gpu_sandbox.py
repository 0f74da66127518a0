# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""A GPU inside the sandbox: it works there, compilers too, and what is outside stays out of reach."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from windtunnel.verify.sandbox import Limits, MiB, Outcome, Sandbox, SandboxJob, files_of_gpu, gpu_numbers

pytestmark = pytest.mark.gpu
CHILD = "windtunnel.verify.code.child"
LIMITS = Limits(wall_seconds=90, cpu_seconds=90, memory_bytes=8192 * MiB, processes=32, threads=64, file_bytes=512 * MiB)
SUM = "import torch\ndef f():\n x = torch.ones(1000, device='cuda')\n torch.cuda.synchronize()\n return x.sum().item()"
TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

def f():
    x = torch.arange(1000, device='cuda', dtype=torch.float32)
    y = torch.empty_like(x)
    double[(triton.cdiv(1000, 256),)](x, y, 1000, B=256)
    return y.sum().item()
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(preload=("torch", "triton", CHILD), devices=files_of_gpu(gpu_numbers()[0])) as made:
        yield made


def run(sandbox: Sandbox, body: str) -> Outcome:
    return sandbox.run(
        SandboxJob(f"{CHILD}:call", {"source": body, "function": "f", "args": [], "kwargs": {"dict": []}}, (), LIMITS)
    )


def test_cuda_and_a_compiled_kernel_run_inside(sandbox: Sandbox) -> None:
    layers = sandbox.start()
    print(layers.as_json())
    assert layers.breaches == ()
    started = time.monotonic()
    outcome = run(sandbox, SUM)
    print(f"a child with a CUDA context of its own: {time.monotonic() - started:.2f} s")
    assert outcome.message.get("value") == 1000.0, outcome
    outcome = run(sandbox, TRITON)
    assert outcome.message.get("value") == 999_000.0, outcome


def test_a_crash_on_the_gpu_costs_only_its_child(sandbox: Sandbox) -> None:
    broken = TRITON.replace("mask=at < n), mask=at < n", "mask=at < n) + 1, mask=at > -1").replace("y + at", "y + at * 100000000")
    assert not run(sandbox, broken).finished
    assert run(sandbox, SUM).message.get("value") == 1000.0


def test_a_hung_kernel_is_ended(sandbox: Sandbox) -> None:
    hang = "import torch\ndef f():\n torch.cuda._sleep(10**13)\n torch.cuda.synchronize()"
    job = {"source": hang, "function": "f", "args": [], "kwargs": {"dict": []}}
    limits = Limits(wall_seconds=5, cpu_seconds=60, memory_bytes=8192 * MiB, processes=32)
    assert sandbox.run(SandboxJob(f"{CHILD}:call", job, (), limits)).status == "timeout"
    assert run(sandbox, SUM).message.get("value") == 1000.0


def test_files_network_and_processes_stay_out_of_reach(sandbox: Sandbox) -> None:
    for expression in ("open('/etc/passwd')", "__import__('socket').socket(2, 1)", "open('/usr/x', 'w')"):
        assert run(sandbox, f"def f():\n {expression}").status == "raised", expression
