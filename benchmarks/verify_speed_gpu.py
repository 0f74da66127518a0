"""The part of verify_speed.py that needs a GPU: candidates a second, through correctness and with the clock; what is left behind.

The workers are started once; what varies is how many candidates are under way. Everything is bounded by the clock on the wall.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

from verify_leaks import BAD_EVERY, census, judged, with_bad

from windtunnel.verify import (
    GpuStages,
    KernelVerifier,
    Pool,
    Sandboxes,
    Task,
    Verdict,
    compiler_sandbox,
    find_task,
    gpu_sandbox,
    kernel_sandbox,
    reference_sandbox,
)
from windtunnel.verify.kernel.gpu import BINARIES_ONLY, LIMITS, ONE_QUEUE

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
ROW_SECONDS, CLOCK_SECONDS = 5.0, 10.0  # measured, of what is not timed and what is; then those under way are waited for
SMALL_SECONDS = 18.0  # of what is not timed where the time is given to it: candidates end in bunches
MOST_CANDIDATES = 10_000
LEAKS_SHARE = 0.3
BLOCKS = (256, 512, 1024, 2048)


@dataclass(frozen=True)
class Machine:
    """The warm workers. device: 'cpu' goes through the motions on the interpreter, to try this file out."""

    tiny: Sandboxes
    compilers: Sandboxes
    gpus: Sandboxes
    trusted: Sandboxes
    device: str

    def verifier(self, task: Task, *, clock: bool, hang: float | None = None) -> KernelVerifier:
        """For one task, without the reference's own times, taken once a task. hang: seconds that a candidate may take."""
        limits = LIMITS
        if hang is not None:
            limits = replace(LIMITS, phases=tuple((name, own if name == "waiting" else hang) for name, own in LIMITS.phases))
        size, index = ("full", 0) if self.device == "cuda" else ("tiny", None)
        options: dict[str, Any] = {"device": self.device, "size": size, "index": index, "limits": limits}
        stages = GpuStages(task, self.gpus, self.trusted, clock=clock, baseline=False, **options)
        return KernelVerifier(task, self.tiny, compiler=self.compilers, gpu=stages)


def measure(result: dict[str, Any], save: Callable[[], None], options: Any, counts: list[int]) -> None:
    """Fill result, and save it after every row. options: those of the command line."""
    deadline = time.monotonic() + 60 * options.minutes
    most = max(counts)
    ONE_QUEUE.update(dict(setting.split("=", 1) for setting in options.settings))  # of the workers' environment
    result["settings"] = ONE_QUEUE | BINARIES_ONLY
    with ExitStack() as stack:
        machine = _started(stack, most, options.on_gpu or most, "cpu" if options.pretend else "cuda")
        relu = find_task("relu")
        small = replace(relu, sizes={**relu.sizes, "full": SMALL, "full_ragged": SMALL_RAGGED})
        if not options.leaks_only:
            _scaling(machine, result, save, options, _plans(relu, small, counts, options), deadline)
        if options.clock:
            result["clock"] = _steadiness(machine, relu, most)
            print(result["clock"], flush=True)
            save()
        number = options.gpu_candidates or (0 if options.small and not options.leaks_only else MOST_CANDIDATES)
        # Those that are under way at the end take their time, and bad ones the longest.
        until = deadline - 3 * HANG_SECONDS
        if number and time.monotonic() < until:
            result["gpu_leaks"] = _leaks(machine, small, most, number, until)
            print(result["gpu_leaks"], flush=True)
    if "gpu_leaks" in result:
        result["gpu_leaks"]["after_closing"] = census() | gpu_in_use()
    save()


def _plans(relu: Task, small: Task, counts: list[int], options: Any) -> list[tuple[Task, bool, int]]:
    """(task, with the clock, how many at once) of each row, in order of worth."""
    most = max(counts)
    if options.small:
        return [(small, False, number) for number in sorted(counts, reverse=True)] + [(small, True, most)] * bool(options.clock)
    plans = [(small, False, most), (small, True, most), *((small, False, number) for number in sorted(counts)[:-1])]
    return [*plans, (relu, False, most), *((small, True, number) for number in sorted(counts)[:-1]), (relu, True, most)]


def _scaling(
    machine: Machine,
    result: dict[str, Any],
    save: Callable[[], None],
    options: Any,
    plans: list[tuple[Task, bool, int]],
    deadline: float,
) -> None:
    """The rows of candidates a second. A part of the time is kept for what comes after them."""
    result["gpu_scaling"], result["left_out"] = (rows, left_out) = ([], [])
    most = max(at_once for _, _, at_once in plans)
    scale, kept = min(1.0, options.minutes / 1.7), LEAKS_SHARE * 60 * options.minutes
    if options.small:
        scale, kept = 1.0, 0.0
    for task, clock, at_once in plans:
        seconds = scale * (CLOCK_SECONDS if clock else ROW_SECONDS)
        if options.small and at_once == most:
            seconds = SMALL_SECONDS
        size = "small" if task.sizes["full"] == SMALL else "full"
        row = {"task": task.name, "size": size, "clock": clock, "at_once": at_once}
        if deadline - time.monotonic() < (1.0 if options.small else 1.5) * seconds + kept:
            left_out.append(row)
            continue
        rows.append(row | _rate(machine.verifier(task, clock=clock), at_once, seconds))
        print(rows[-1], flush=True)
        save()


def _started(stack: ExitStack, most: int, on_gpu: int, device: str) -> Machine:
    began = time.monotonic()
    makers = (kernel_sandbox, kernel_sandbox) if device == "cpu" else (gpu_sandbox, reference_sandbox)
    tiny, compilers, gpus, trusted = (
        stack.enter_context(Sandboxes(number, make))
        for number, make in (
            (most, kernel_sandbox),
            (most, compiler_sandbox),
            (on_gpu, makers[0]),
            (max(1, most // 4), makers[1]),
        )
    )
    for pool in (tiny, compilers, gpus, trusted):
        pool.begin()
    machine = Machine(tiny, compilers, gpus, trusted, device)
    # One first, which says what is wrong if something is; then all, so that no start is measured.
    verdict = machine.verifier(find_task("relu"), clock=False).verify(next(_texts("accepted")))
    assert verdict.accepted, verdict
    first = time.monotonic() - began
    _rate(machine.verifier(find_task("relu"), clock=False), most, 1.0)
    print(
        f"first verdict after {first:.1f} s, {most} workers of each kind warm after {time.monotonic() - began:.1f} s", flush=True
    )
    return machine


def _texts(name: str) -> Iterator[str]:
    """Candidates that do this, none of them like the other."""
    for number in count():
        yield f"{HEAD}# {number}\nBLOCK_SIZE = {BLOCKS[number % len(BLOCKS)]}\n{KERNEL}{BODIES[name]}\n{HOST}"


def _rate(verifier: KernelVerifier, at_once: int, seconds: float) -> dict[str, Any]:
    """Candidates a second with so many under way, between the first that ends and the moment when no more are begun."""
    texts, done = _texts("accepted"), list[tuple[float, Verdict]]()
    busy, began = _cpu(), time.monotonic()
    with Pool(at_once, at_once) as pool:
        waiting: list[Any] = []
        while time.monotonic() - began < seconds:
            future = pool.submit(verifier, next(texts), wait=True)  # waits while as many wait as are under way
            future.add_done_callback(lambda f: done.append((time.monotonic(), f.result())))
            waiting.append(future)
        stopped = time.monotonic()
        used = [after - before for before, after in zip(busy, _cpu(), strict=True)]
    for future in waiting:
        _must_be_accepted(future.result())
    # The first ones end together, having begun together.
    times = sorted(at for at, _ in done)[min(at_once, len(done)) - 1 :]
    within = [at for at in times if at <= stopped]
    verdicts = [verdict for _, verdict in done]
    return {
        "candidates": len(verdicts),
        "per_second": round((len(within) - 1) / (within[-1] - within[0]), 2) if len(within) > 1 else None,
        "counted": max(0, len(within) - 1),
        "cores_busy": round(used[0] / max(1e-9, sum(used)), 3),
        "stages": _means([verdict.times for verdict in verdicts]),
        "gpu_process": _means([verdict.evidence["gpu"]["seconds"] for verdict in verdicts]),
    }


def _steadiness(machine: Machine, task: Task, others: int) -> dict[str, dict[str, list[float]]]:
    """The least and the largest time of one kernel in several verdicts, in us: one after the other, and with others under way.

    cold: as the clock has it, the GPU's time. alone: by events around a call to an idle GPU.
    """
    verifier, found = machine.verifier(task, clock=True), {}
    for name, at_once in (("one after the other", 1), (f"{others} under way", others)):
        with Pool(at_once, at_once) as pool:
            texts = islice(_texts("accepted"), 0, None, len(BLOCKS))
            verdicts = [future.result() for future in [pool.submit(verifier, next(texts), wait=True) for _ in range(4 + at_once)]]
        for verdict in verdicts:
            _must_be_accepted(verdict)
        times = {kind: [1e6 * verdict.evidence["gpu"][kind]["median"] for verdict in verdicts] for kind in ("cold", "alone")}
        found[name] = {kind: [round(min(values), 1), round(max(values), 1)] for kind, values in times.items()}
    return found


def _must_be_accepted(verdict: Verdict) -> None:
    assert verdict.accepted, verdict


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(sum(row.get(name, 0.0) for row in rows) / len(rows), 4) for name in rows[0]} if rows else {}


def _cpu() -> tuple[int, int]:
    """(busy, idle) ticks of all cores."""
    words = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(words) - words[3] - words[4], words[3] + words[4]


def _leaks(machine: Machine, task: Task, workers: int, number: int, until: float) -> dict[str, Any]:
    """Judge many, of which some crash, hang or are wrong on the GPU; count what is there before and after. until: on the clock,
    when no more are begun."""
    verifier, begun = machine.verifier(task, clock=False, hang=HANG_SECONDS), count()
    texts = {name: _texts(name) for name in BODIES}
    judged(verifier, with_bad(len(BODIES) * BAD_EVERY, texts), workers)  # every worker has had work before anything is counted
    candidates = with_bad(number, texts)
    before = census() | gpu_in_use()
    surprises, seconds = judged(verifier, takewhile(lambda _: time.monotonic() < until and next(begun) + 1, candidates), workers)
    candidates_judged = next(begun)
    return {
        "candidates": candidates_judged,
        "bad_share": 1 / BAD_EVERY,
        "workers": workers,
        "seconds": round(seconds, 1),
        "per_second": round(candidates_judged / seconds, 2),
        "unexpected_verdicts": surprises,
        "workers_replaced": sum(pool.restarts for pool in (machine.tiny, machine.compilers, machine.gpus, machine.trusted)),
        "before": before,
        "after": census() | gpu_in_use(),
    }


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
