"""Kernels judged on a GPU: compiled, at full shapes, timed; against what an interpreter cannot see."""

import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from windtunnel.verify import GpuStages, KernelVerifier, find_task, gpu_sandbox, kernel_sandbox, reference_sandbox  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

ADD = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, tl.maximum(x, 0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
        return y
"""


@pytest.fixture(scope="module")
def verifier() -> Iterator[KernelVerifier]:
    task = find_task("relu")
    with kernel_sandbox() as tiny, gpu_sandbox() as gpu, reference_sandbox() as trusted:
        yield KernelVerifier(task, tiny, gpu=GpuStages(task, gpu, trusted))


def test_an_honest_kernel_is_accepted_with_its_speed(verifier: KernelVerifier) -> None:
    verdict = verifier.verify(ADD)
    assert verdict.accepted, verdict.message
    assert verdict.stage == "timing"
    assert verdict.evidence["gpu"]["speedup"]["eager"] > 0.5


@pytest.mark.parametrize(
    ("old", "new", "reasons"),
    [
        # Right at tiny sizes; at full ones the rest of the output stays poison.
        ("triton.cdiv(n, 1024)", "min(triton.cdiv(n, 1024), 64)", {"non-finite"}),
        ("mask=at < n)\n\n", "mask=at < tl.minimum(n, 100000))\n\n", {"non-finite"}),
        ("tl.maximum(x, 0.0)", "tl.where(n > 100000, x, tl.maximum(x, 0.0))", {"wrong-values"}),
    ],
)
def test_what_only_full_shapes_show_is_refused(verifier: KernelVerifier, old: str, new: str, reasons: set[str]) -> None:
    assert old in ADD
    verdict = verifier.verify(ADD.replace(old, new))
    assert verdict.reason in reasons, verdict.message
    assert verdict.stage == "full"


def test_ten_candidates_follow_each_other_without_leaking_memory(verifier: KernelVerifier) -> None:
    before = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    for number in range(10):
        assert verifier.verify(ADD + f"# {number}\n").accepted
    print(f"{10 / (time.perf_counter() - start):.2f} candidates a second with timing, one worker")
    assert before - torch.cuda.mem_get_info()[0] < 256 << 20
