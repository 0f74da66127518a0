"""Other checkers' correctness functions on a CPU: what the benchmark gives Triton's interpreter for them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANG

CHILD = Path(__file__).parents[2] / "benchmarks" / "verify_peers_child.py"
TUNED = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice




@triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 32, 64)], key=["N"])
@triton.jit
def kernel(x, y, N, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 32)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, libdevice.tanh(tl.load(x + at, mask=at < N)), mask=at < N)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert torch.cuda.get_device_capability() == (9, 0)
        torch.cuda.synchronize(), torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats(device="cuda")
        y = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y
"""
PROGRAM = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
import verify_peers_child as child

child.make_up_for_the_gpu()
for source, right in ((child.WARM_UP, lambda x: 2 * x), (sys.stdin.read(), torch.tanh)):
    model = child.load(source, "candidate").ModelNew()
    for _ in range(8):
        x = torch.randn(48 if right is torch.tanh else 16)
        assert torch.allclose(model(x), right(x), atol=1e-5)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")
def test_the_interpreter_tunes_and_answers_for_a_gpu_as_peers_need_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(CHILD.parent)]
    done = subprocess.run(
        command,
        input=TUNED,
        cwd=tmp_path,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
