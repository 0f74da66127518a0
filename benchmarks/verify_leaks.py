"""Many candidates, 5 % of which hang, raise, do not compile or are wrong: does each get its verdict, and is nothing left behind?

    python benchmarks/verify_leaks.py --out benchmarks/results/verify-leaks-cpu.json [--candidates 10000]

Kernels, through all stages that need no GPU. verify_speed.py does the same with answers in code, verify_replay_gpu.py through the
stages that need a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from windtunnel.verify import KernelVerifier, Pool, Sandboxes, Verifier, compiler_sandbox, find_task, kernel_sandbox
from windtunnel.verify.sandbox import Outcome, Runner, SandboxJob

BAD_EVERY = 20  # one candidate of so many is bad
HANG_SECONDS = 2.0
HEAD = """
import torch
import triton
import triton.language as tl

BLOCK_SIZE = {block}


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
"""
STORE = "    tl.store(y + at, tl.maximum(v, 0.0), mask=at < n)\n"
HOST = """

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, BLOCK_SIZE),)](x, y, n, BLOCK=BLOCK_SIZE)
        return y
"""
HANG = "    i = n\n    while i > 0:\n        i = i + 1 - tl.minimum(i - i + 1, 1)\n"
BLOCKS = (64, 128, 256, 512)
# By the reason for which each has to be refused.
KERNELS = {
    "accepted": HEAD + STORE + HOST,
    "wrong-values": HEAD + STORE.replace("tl.maximum(v, 0.0)", "v") + HOST,
    "out-of-bounds": HEAD + STORE.replace("y + at,", "y + at + (1 << 40),") + HOST,
    "timeout": HEAD + HANG + STORE + HOST,
    "raised": HEAD + STORE + HOST.replace("        return y", "        assert n < 0\n        return y"),
    "import-failed": HEAD.replace("{block}", "{block} // 0") + STORE + HOST,
    "compile-error": HEAD + STORE.replace("v, 0.0", "v, 0.0, 1, 2, 3") + HOST,
}


class Hurried:
    """A runner whose jobs may take HANG_SECONDS."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def run(self, job: SandboxJob) -> Outcome:
        """The same job, with less time."""
        return self.runner.run(replace(job, limits=replace(job.limits, wall_seconds=HANG_SECONDS)))


def with_bad(number: int, texts: dict[str, Iterator[str]]) -> Iterator[tuple[str, str]]:
    """(the reason that each should get, its text): `accepted` ones, and all others in turn, one of BAD_EVERY."""
    bad = [name for name in texts if name != "accepted"]
    for at in range(number):
        name = bad[at // BAD_EVERY % len(bad)] if at % BAD_EVERY == 7 else "accepted"
        yield name, next(texts[name])


def judged(verifier: Verifier, candidates: Iterable[tuple[str, str]], workers: int) -> tuple[dict[str, int], float]:
    """Verdicts that were not the wanted ones, and the seconds that all took. candidates: (wanted reason, text)."""
    surprises: Counter[str] = Counter()
    waiting: list[tuple[str, Any]] = []

    def settle() -> None:
        wanted, future = waiting.pop(0)
        verdict = future.result()
        if verdict.reason != wanted:
            surprises[f"{wanted} -> {verdict.reason}: {verdict.message[:80]}"] += 1

    started = time.monotonic()
    with Pool(workers, 4 * workers) as pool:
        for wanted, text in candidates:
            waiting.append((wanted, pool.submit(verifier, text, wait=True)))
            if len(waiting) > 8 * workers:
                settle()
        while waiting:
            settle()
    return dict(surprises), time.monotonic() - started


def census() -> dict[str, int]:
    """Descendants, zombies, their and our memory (MiB), our descriptors and threads, and our temporary files."""
    states = []
    resident = 0
    for pid in _descendants():
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        states.append(fields["State"].split()[0])
        resident += int(fields.get("VmRSS", "0 kB").split()[0])
    mine = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "processes": len(states),
        "zombies": states.count("Z"),
        "worker_mib": resident // 1024,
        "judge_mib": int(mine["VmRSS"].split()[0]) // 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "files": sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
    }


def _descendants() -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found: list[int] = []
    layer = [os.getpid()]
    while layer:
        layer = [pid for pid, parent in parents.items() if parent in layer]
        found += layer
    return found


def _kernels() -> dict[str, Iterator[str]]:
    def texts(text: str) -> Iterator[str]:
        return (text.replace("{block}", str(BLOCKS[number % len(BLOCKS)])) + f"# {number}\n" for number in count())

    return {name: texts(text) for name, text in KERNELS.items()}


def kernels(number: int, workers: int) -> dict[str, Any]:
    """Kernels through compile and tiny."""
    with Sandboxes(workers, kernel_sandbox) as tiny, Sandboxes(workers, compiler_sandbox) as compilers:
        verifier = KernelVerifier(find_task("relu"), Hurried(tiny), tiny, compiler=Hurried(compilers))
        surprises, _ = judged(verifier, with_bad(len(KERNELS) * BAD_EVERY, _kernels()), workers)
        assert not surprises, surprises
        before = census()
        surprises, seconds = judged(verifier, with_bad(number, _kernels()), workers)
        after, restarts = census(), tiny.restarts + compilers.restarts
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


def header(cores: int) -> dict[str, Any]:
    """Where and with what."""
    import torch
    import triton

    return {
        "what": "windtunnel verify: what judging costs",
        "date": datetime.date.today().isoformat(),
        "load_before": round(os.getloadavg()[0], 1),
        "machine": f"{cores} cores, {platform.processor() or platform.machine()}, Linux {platform.release()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--candidates", type=int, default=10_000)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    result = header(cores)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        result["kernel_leaks"] = kernels(options.candidates, cores)
        tempfile.tempdir = None
    print(json.dumps(result["kernel_leaks"]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
