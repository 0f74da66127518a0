"""What judging costs: one fresh child, candidates a second by number of workers, and 10,000 candidates that leave nothing behind.

python benchmarks/verify_speed.py --out benchmarks/results/verify-speed-cpu.json [--candidates 10000] [--workers 1 2 4 8 16]

The file is written as it goes along. What a GPU does is verify_replay_gpu.py's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from verify_leaks import BAD_EVERY, census, header, judged, with_bad

from windtunnel.verify import (
    KernelVerifier,
    Pool,
    Sandboxes,
    Verifier,
    compiler_sandbox,
    find_task,
    kernel_sandbox,
)
from windtunnel.verify.code import Call, CodeTask, CodeVerifier
from windtunnel.verify.sandbox import Limits, MiB, Sandbox, SandboxJob

CHILD = "windtunnel.verify.code.child"
RIGHT, WRONG = "def f(x): return x * x", "def f(x): return x"
BAD = {
    "crashed": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "timeout": "def f(x):\n while True: pass",
    "memory": "def f(x):\n y = []\n while True: y.append(bytearray(1 << 20))",
    "exited": "import os\ndef f(x): os._exit(1)",
    "too-much-output": "def f(x):\n open('t', 'wb').write(bytes(100000))\n while True: print('x' * 9999)",
}
HANG_SECONDS = 1.0
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.maximum(v, 0.0), mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
        return y
"""


def child_cost(preload: tuple[str, ...], *, namespaces: bool = True, times: int = 200) -> dict[str, Any]:
    """Milliseconds from request to verdict for a child that does nothing."""
    job = SandboxJob(f"{CHILD}:call", {"source": "def f(): pass", "function": "f", "args": [], "kwargs": {"dict": []}})
    with Sandbox(preload=(*preload, CHILD), namespaces=namespaces) as sandbox:
        started = time.monotonic()
        hardened = sandbox.start().hardened
        start_seconds = time.monotonic() - started
        taken, busy = [], []
        for _ in range(times):
            started = time.monotonic()
            outcome = sandbox.run(job)
            taken.append(1000 * (time.monotonic() - started))
            assert outcome.finished
            busy.append(1000 * outcome.cpu_seconds)
    taken.sort()
    return {
        "preload": list(preload),
        "namespaces": namespaces,
        "hardened": hardened,
        "start_seconds": round(start_seconds, 2),
        "median_ms": round(statistics.median(taken), 2),
        "p95_ms": round(taken[int(0.95 * times)], 2),
        "child_cpu_ms": round(statistics.median(busy), 2),
    }


def throughput(verifier: Verifier, answer: str, workers: int, number: int) -> float:
    """Candidates a second with all workers warm."""
    with Pool(workers, 4 * workers) as pool:
        for verdict in [pool.submit(verifier, answer, wait=True) for _ in range(2 * workers)]:
            assert verdict.result().accepted, verdict.result()
        started = time.monotonic()
        for verdict in [pool.submit(verifier, answer, wait=True) for _ in range(number)]:
            assert verdict.result().accepted, verdict.result()
        return number / (time.monotonic() - started)


def scaling(counts: list[int]) -> list[dict[str, Any]]:
    """Candidates a second by number of workers, for code (one test) and for a small kernel's correctness: compile and tiny."""
    rows = []
    for workers in counts:
        with Sandboxes(workers, lambda: Sandbox(preload=(CHILD,))) as sandboxes:
            code = throughput(CodeVerifier(CodeTask([Call("f", [3], 9)]), sandboxes), RIGHT, workers, 150 * workers)
        with Sandboxes(workers, kernel_sandbox) as sandboxes, Sandboxes(workers, compiler_sandbox) as compilers:
            verifier = KernelVerifier(find_task("relu"), sandboxes, compiler=compilers)
            kernel = throughput(verifier, KERNEL, workers, 30 * workers)
        rows.append({"workers": workers, "code_per_second": round(code, 1), "kernel_per_second": round(kernel, 1)})
        print(rows[-1], flush=True)
    return rows


def leaks(number: int, workers: int) -> dict[str, Any]:
    """Judge many answers in code, half of them wrong, of which 5 % crash, hang or use too much; count what is there before and
    after."""
    limits = Limits(
        wall_seconds=HANG_SECONDS, cpu_seconds=2, memory_bytes=64 * MiB, result_bytes=MiB, log_bytes=4096, file_bytes=MiB
    )
    task = CodeTask([Call("f", [3], 9)], limits=limits)
    texts = {"accepted": cycle((RIGHT,)), **{name: cycle((text,)) for name, text in BAD.items()}}
    wanted = (
        ("wrong-result", WRONG) if name == "accepted" and at % 2 else (name, text)
        for at, (name, text) in enumerate(with_bad(number, texts))
    )
    with Sandboxes(workers, lambda: Sandbox(preload=(CHILD,))) as sandboxes:
        verifier = CodeVerifier(task, sandboxes)
        throughput(verifier, RIGHT, workers, 20)
        before = census()
        surprises, seconds = judged(verifier, wanted, workers)
        after, restarts = census(), sandboxes.restarts
    return {
        "candidates": number,
        "bad_share": 1 / BAD_EVERY,
        "workers": workers,
        "seconds": round(seconds, 1),
        "per_second": round(number / seconds, 1),
        "unexpected_verdicts": surprises,
        "workers_replaced": restarts,
        "before": before,
        "after": after,
        "after_closing": census(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--candidates", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="*")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    counts = options.workers or sorted({1, 2, 4, 8, 16, min(16, cores)} & set(range(1, cores + 1)))
    result = header(cores)

    def save() -> None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    result["child"] = [child_cost(()), child_cost(("torch",)), child_cost(("torch",), namespaces=False)]
    print(json.dumps(result["child"]), flush=True)
    save()
    result["scaling"] = scaling(counts)
    save()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        result["leaks"] = leaks(options.candidates, cores)
        tempfile.tempdir = None
    print(json.dumps(result["leaks"]), flush=True)
    save()


if __name__ == "__main__":
    main()
