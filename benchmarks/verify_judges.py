"""Measures the judging process itself: seconds of its own CPU for each kernel that it judges, whatever its workers take.

    python benchmarks/verify_judges.py --out benchmarks/results/verify-judges-cpu.json [--before SRC]

Its threads share Python's lock, so these seconds bound how many answers a machine with many cores judges. The data's own answers
to generated tasks of each level go through all stages but the clock; what a GPU would run is run by the interpreter. Each is
judged once before, as a task is in training, whose answers share a reference. --before: the folder src of another version,
measured too, in turn with this one, a process for each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from verify_leaks import header

from windtunnel.data.kernels import LEVELS, combinations, describe
from windtunnel.data.kernels_write import Written, write_task
from windtunnel.verify import GpuMemory, GpuStages, KernelVerifier, Sandboxes, compiler_sandbox, kernel_sandbox
from windtunnel.verify.kernel.task import task_from_source

SEED = 12


def tasks(of_level: int) -> list[Written]:
    """Return generated tasks with their answers, as many of each level, spread over its combinations."""
    found = []
    for level in LEVELS:
        every = list(enumerate(combinations(level)))
        for place, combination in every[:: max(1, len(every) // of_level)][:of_level]:
            dice = np.random.Generator(np.random.Philox(key=np.array([SEED, place], dtype=np.uint64)))
            found.append(write_task(describe(combination, level, dice)))
    return found


def measure(written: list[Written]) -> list[float]:
    """Return the seconds of this process's CPU for each answer."""
    kinds = (kernel_sandbox, lambda: compiler_sandbox(binary=True), kernel_sandbox, kernel_sandbox)
    with ExitStack() as stack:
        runner, compiler, gpu, trusted = (stack.enter_context(Sandboxes(1, kind)) for kind in kinds)
        memory, taken = GpuMemory.of(None), []
        for one in written:
            task = task_from_source(one.source, name="generated")
            stages = GpuStages(task, gpu, trusted, clock=False, baseline=(), device="cpu", size="tiny", index=None, memory=memory)
            verifier = KernelVerifier(task, runner, compiler=compiler, gpu=stages)
            for _ in range(2):
                began = time.process_time()
                verdict = verifier.verify(one.answer)
                seconds = time.process_time() - began
            if verdict.accepted:
                taken.append(seconds)
        return taken


def apart(source: Path, number: int) -> list[float]:
    """Return what a version measures in a process of its own."""
    command = [sys.executable, __file__, "--here", str(number)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path, help="folder src of another version")
    parser.add_argument("--tasks", type=int, default=20, help="of each level")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(tasks(options.here))))
        return
    sides = {"now": Path(__file__).parent.parent / "src"} | ({"before": options.before} if options.before else {})
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, source in sides.items():
            taken = apart(source, options.tasks)
            rounds[name].append(statistics.mean(taken))
            print(name, len(taken), f"{rounds[name][-1]:.4f}", flush=True)
    result: dict[str, Any] = header(len(os.sched_getaffinity(0)))
    result |= {
        "what": "seconds of the judging process's own CPU for one right answer, mean of a round",
        "tasks": options.tasks * len(LEVELS),
        "rounds": {name: [round(seconds, 4) for seconds in taken] for name, taken in rounds.items()},
        "median": {name: round(statistics.median(taken), 4) for name, taken in rounds.items()},
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
