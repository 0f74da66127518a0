"""The part of verify_replay_gpu.py that asks what is left behind: thousands of candidates, of which 5 % crash, hang or are wrong
on the GPU and nowhere else. Bounded by the clock on the wall."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from verify_leaks import BAD_EVERY, census, judged, with_bad

from windtunnel.verify import KernelVerifier, find_task
from windtunnel.verify.kernel.gpu import LIMITS
from windtunnel.verify.sandbox import Limits

HEAD = """
import torch
import triton
import triton.language as tl

"""
KERNEL = """

@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    """
# At the tiny sizes all of them are right: what they do at full ones is for the GPU's stages to find.
BODIES = {
    "accepted": "tl.store(y + at, tl.maximum(v, 0.0), mask=at < n)",
    "wrong-values": "tl.store(y + at, tl.where(n > 100000, v, tl.maximum(v, 0.0)), mask=at < n)",
    "raised": "tl.store(y + at.to(tl.int64) * tl.where(n > 100000, 1 << 40, 1), tl.maximum(v, 0.0), mask=at < n)",
    "timeout": """i = n
    while i > 100000:
        tl.store(y + at, tl.maximum(v, 0.0) + i * 0.0, mask=at < n)
        i = i + 1 - tl.minimum(i - i + 1, 1)
    tl.store(y + at, tl.maximum(v, 0.0), mask=at < n)""",
}
HOST = """

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, BLOCK_SIZE),)](x, y, n, BLOCK=BLOCK_SIZE)
        return y
"""
SMALL = {"ROWS": 1024, "COLS": 1024}
SMALL_RAGGED = {"ROWS": 1021, "COLS": 769}
HANG_SECONDS = 4.0
MOST_CANDIDATES = 10_000
BLOCKS = (256, 512, 1024, 2048)


def hanging() -> Limits:
    """The limits of the GPU's stages, with as little time as a hang may cost here."""
    return replace(LIMITS, phases=tuple((name, own if name == "waiting" else HANG_SECONDS) for name, own in LIMITS.phases))


def leaks(machine: Any, seconds: float) -> dict[str, Any]:
    """Judge many, of which some crash, hang or are wrong on the GPU; count what is there before and after."""
    until = time.monotonic() + seconds - 3 * HANG_SECONDS  # those under way at the end take their time, and bad ones the longest
    relu = find_task("relu")
    task = replace(relu, sizes={**relu.sizes, "full": SMALL, "full_ragged": SMALL_RAGGED})
    verifier: KernelVerifier = machine.verifier(task, clock=False, limits=hanging())
    begun, workers = count(), machine.workers
    texts = {name: _texts(name) for name in BODIES}
    judged(verifier, with_bad(len(BODIES) * BAD_EVERY, texts), workers)  # every worker has had work before anything is counted
    candidates = with_bad(MOST_CANDIDATES, texts)
    before = census() | gpu_in_use()
    surprises, spent = judged(verifier, takewhile(lambda _: time.monotonic() < until and next(begun) + 1, candidates), workers)
    number = next(begun)
    return {
        "candidates": number,
        "bad_share": 1 / BAD_EVERY,
        "workers": workers,
        "seconds": round(spent, 1),
        "per_second": round(number / spent, 2),
        "unexpected_verdicts": surprises,
        "workers_replaced": machine.restarts(),
        "before": before,
        "after": census() | gpu_in_use(),
    }


def _texts(name: str) -> Iterator[str]:
    """Candidates that do this, none of them like the other."""
    for number in count():
        yield f"{HEAD}# {number}\nBLOCK_SIZE = {BLOCKS[number % len(BLOCKS)]}\n{KERNEL}{BODIES[name]}\n{HOST}"


def gpu_in_use() -> dict[str, int]:
    """MiB of the GPU's memory in use, and processes that use it, as its driver says; nothing where it is not asked."""
    found = {}
    for name, query in (("gpu_mib", "--query-gpu=memory.used"), ("gpu_processes", "--query-compute-apps=pid")):
        try:
            command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
            lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        except (OSError, subprocess.SubprocessError):
            continue
        found[name] = int(lines[0]) if name == "gpu_mib" else len(lines)
    return found
