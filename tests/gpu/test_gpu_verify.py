# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Kernels judged on a GPU: compiled, at full shapes, timed; against what an interpreter cannot see."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from windtunnel.verify import (  # noqa: E402
    GpuStages,
    KernelVerifier,
    Pool,
    Sandboxes,
    find_task,
    gpu_sandbox,
    kernel_sandbox,
    reference_sandbox,
)

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
    ("parameters", "arguments"),
    [("", ""), ("scale, ", "1.5, "), ("scale: tl.float16, ", "1.5, "), ("scale, pair, ", "1.5, (n, x), ")],
)
def test_no_launcher_is_made_for_a_candidate(verifier: KernelVerifier, parameters: str, arguments: str) -> None:
    """A C compiler would be waited for longer than all else on the GPU."""
    source = ADD.replace("n, BLOCK: tl", f"n, {parameters}BLOCK: tl").replace("n, BLOCK=", f"n, {arguments}BLOCK=")
    verdict = verifier.verify(source)
    assert verdict.accepted, verdict.message
    assert verdict.evidence["gpu"]["launchers"] == 0


LAUNCHED = """\
import os

import torch
import triton
import triton.language as tl

from windtunnel.verify.kernel.child.warm_gpu import warm


@triton.jit
def write(y, x, small, large: tl.int64, negative: tl.int16, single, half: tl.float16, brain: tl.bfloat16, double: tl.float64,
          flag, nothing, pair, BLOCK: tl.constexpr, last: tl.uint32):  # fmt: skip
    at = tl.arange(0, BLOCK)
    rows = tl.make_tensor_descriptor(x, [BLOCK, BLOCK], [BLOCK, 1], [1, BLOCK])  # lies in scratch memory
    tl.store(y + at, rows.load([1, 0]).reshape(BLOCK))
    tl.store(y + BLOCK, small)
    tl.store(y + BLOCK + 1, large)
    tl.store(y + BLOCK + 2, negative)
    tl.store(y + BLOCK + 3, single)
    tl.store(y + BLOCK + 4, half)
    tl.store(y + BLOCK + 5, brain)
    tl.store(y + BLOCK + 6, double)
    tl.store(y + BLOCK + 7, flag)
    tl.store(y + BLOCK + 8, 1.0 if nothing is None else 0.0)
    tl.store(y + BLOCK + 9, pair[0])
    tl.store(y + BLOCK + 10, tl.load(pair[1]))
    tl.store(y + BLOCK + 11, last)


warm()
os.environ["CC"] = "/bin/false"
triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda"))
x = torch.arange(16.0 * 16, device="cuda").reshape(16, 16)
y = torch.zeros(28, dtype=torch.float64, device="cuda")
write[(1,)](y, x, -5, 1 << 40, -3, 0.1, 0.25, -1.5, 0.1, True, None, (7, x[2]), 16, (1 << 32) - 1)
numbers = [-5, 1 << 40, -3, torch.tensor(0.1).item(), 0.25, -1.5, 0.1, 1, 1, 7, 32, (1 << 32) - 1]
assert y.tolist() == [*range(16, 32), *numbers], y.tolist()
"""


def test_kernels_get_their_arguments_without_a_compiler(tmp_path: Path) -> None:
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "kernels")}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


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
    assert verifier.verify(ADD).accepted  # the reference's process keeps its context, and what it needed of memory
    before = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    for number in range(10):
        assert verifier.verify(ADD + f"# {number}\n").accepted
    print(f"{10 / (time.perf_counter() - start):.2f} candidates a second with timing, one worker")
    assert before - torch.cuda.mem_get_info()[0] < 256 << 20


def test_a_kernel_timed_among_others_is_as_fast_as_alone(verifier: KernelVerifier) -> None:
    """Seven others compile and run while it is timed; what keeps them away meanwhile is the lock."""
    alone = [verifier.verify(ADD).evidence["gpu"]["cold"]["median"] for _ in range(3)]
    task = find_task("relu")
    with (
        Sandboxes(8, kernel_sandbox) as tiny,
        Sandboxes(8, gpu_sandbox) as gpu,
        Sandboxes(2, reference_sandbox) as trusted,
        Pool(8, 64) as pool,
    ):
        crowded = KernelVerifier(task, tiny, gpu=GpuStages(task, gpu, trusted, baseline=()))
        verdicts = [future.result() for future in [pool.submit(crowded, f"{ADD}# {n}\n", wait=True) for n in range(24)]]
    assert all(verdict.accepted for verdict in verdicts), [verdict.message for verdict in verdicts if not verdict.accepted]
    among = sorted(verdict.evidence["gpu"]["cold"]["median"] for verdict in verdicts)
    print(f"alone {min(alone) * 1e6:.1f}-{max(alone) * 1e6:.1f} us, among others {among[0] * 1e6:.1f}-{among[-1] * 1e6:.1f} us")
    assert among[len(among) // 2] == pytest.approx(sorted(alone)[1], rel=0.15)


NEIGHBOUR = """
import torch
x = torch.ones(8192, 8192, device='cuda')
print('busy', flush=True)
while True:
    x @ x
    torch.cuda.synchronize()
"""


def test_an_honest_kernel_is_not_refused_for_what_others_do_on_the_gpu(verifier: KernelVerifier) -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, text=True)
    try:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "busy\n"
        verdicts = [verifier.verify(f"{ADD}# beside {number}\n") for number in range(3)]
    finally:
        neighbour.kill()
        neighbour.wait()
    for verdict in verdicts:
        print(verdict.reason, verdict.message)
        assert verdict.accepted or verdict.infrastructure, verdict
        assert verdict.reward in (1.0, None)
    assert verifier.verify(f"{ADD}# afterwards\n").accepted


PRODUCTS = Path(__file__).parents[1] / "verify" / "attacks" / "files" / "a17_half_products.py"


@pytest.mark.parametrize(("dtype", "reason"), [("float32", None), ("float16", "non-finite"), ("bfloat16", "wrong-values")])
def test_large_products_coarser_than_tf32_are_refused(dtype: str, reason: str | None) -> None:
    """float16 has TF32's precision but not its range, bfloat16 its range but not its precision; tl.dot of float32 is in TF32."""
    dot, cast = "tl.dot(a, b)", ".to(tl.float16)"
    source = PRODUCTS.read_text()
    assert dot in source
    assert cast in source
    coarse = f"tl.dot(a.to(tl.{dtype}), b.to(tl.{dtype}))"
    branch = f"if M > 1000:\n            total += {coarse}\n        else:\n            total += {dot}"
    source = source.replace(cast, "").replace(f"total += {dot}", branch)
    with kernel_sandbox() as tiny, gpu_sandbox() as gpu, reference_sandbox() as trusted:
        task = find_task("matmul")
        verdict = KernelVerifier(task, tiny, gpu=GpuStages(task, gpu, trusted, clock=False)).verify(source)
    assert verdict.accepted == (reason is None), verdict
    if reason is not None:
        assert (verdict.stage, verdict.reason) == ("full", reason), verdict
