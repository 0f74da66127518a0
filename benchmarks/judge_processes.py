"""Measures how many kernels a second one, two or four judging processes judge, on the same cores and one GPU.

    python benchmarks/judge_processes.py --out benchmarks/results/judge-processes-h100.json [--foreign foreign.jsonl.gz]

The judges are those of reinforcement learning (`windtunnel.rl.ProcessRewards`), without the clock. Answers are the generator's
own to generated tasks, four different ones to each: the right one, two that write its first program's number in another way, and
one that halves what it loads first. --foreign: also what foreign_gather.py wrote, each answer once. For each number of processes
all answers are asked at once; a few are judged before, so that the workers are there. `idle` is the share of that time in which
the GPU ran no kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from foreign_gather import read
from harness import Meter, has_gpu, machine
from verify_foreign import spread
from verify_judges import tasks

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO
from windtunnel.rl.judges_process import ProcessRewards

WARM = 24
Asked = tuple[Prompt, list[str]]


def generated(of_level: int, first: int) -> list[Asked]:
    """Return tasks with four answers to each; their prompts are numbered from `first` on."""
    found = []
    for place, one in enumerate(tasks(of_level)):
        start, loads = "tl.program_id(0)", "tl.load("
        others = [one.answer.replace(start, f"({start} + {i} - {i})", 1) for i in (1, 2)]
        answers = [one.answer, *others, one.answer.replace(loads, f"0.5 * {loads}", 1)]
        found.append((prompt_of(first + place, f"task {place}", one.source), answers))
    return found


def prompt_of(number: int, name: str, source: str) -> Prompt:
    """Return a prompt whose task is a module in PyTorch."""
    return Prompt(number, np.array([1]), name, None, {"task": {"name": name, "source": source}})


def judged(rewards: ProcessRewards, asked: list[Asked]) -> tuple[int, int, int]:
    """Judge all answers at once; return how many, how many are accepted, and of how many nothing is known."""
    begun = [rewards.begin(rewards.verifiers(prompt), answer) for prompt, answers in asked for answer in answers]
    found = [one.result().accepted for one in begun]
    return len(found), sum(bool(one) for one in found), sum(one is None for one in found)


def measure(number: int, parts: dict[str, list[Asked]], folder: Path, meter: Meter) -> dict[str, Any]:
    """Return what so many processes took for each part."""
    stage = GRPO.model_validate({"name": "rl", "rewards": [{"kind": "kernel", "key": "task"}]})
    began, found = time.monotonic(), dict[str, Any]()
    with ProcessRewards(stage, folder / "judges.log", number=number) as rewards:
        found["start_seconds"] = round(time.monotonic() - began, 1)
        for name, asked in parts.items():
            judged(rewards, [(prompt, answers[:1]) for prompt, answers in asked[:WARM]])
            since, began = time.time(), time.monotonic()
            count, accepted, unknown = judged(rewards, asked)
            seconds = time.monotonic() - began
            found[name] = {
                "answers": count, "accepted": accepted, "unknown": unknown, "seconds": round(seconds, 2),
                "per_second": round(count / seconds, 2), "idle": meter.idle(since, time.time()), "peak_gb": meter.peak(since),
            }  # fmt: skip
            print(number, name, found[name], flush=True)
    return found


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--foreign", type=Path, help="of foreign_gather.py")
    parser.add_argument("--every", type=int, default=1, help="of its answers each so-manieth")
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--of-level", type=int, default=24, help="generated tasks of each level")
    given = parser.parse_args()
    gpu = has_gpu()
    parts = {"generated": generated(given.of_level, 0)}
    if given.foreign:
        answers = spread([one for one in read(given.foreign) if one.right is not False])[:: given.every]
        parts["foreign"] = [(prompt_of(10_000 + i, one.name, one.task), [one.answer]) for i, one in enumerate(answers)]
    found: dict[str, Any] = {
        "what": "kernels judged a second by so many judging processes on the same cores and GPU, not timed",
        "command": ["python", "benchmarks/judge_processes.py", *sys.argv[1:]],
        "machine": machine(gpu=gpu),
        "processes": {},
    }
    meter = Meter(gpu)
    with tempfile.TemporaryDirectory() as temporary:
        for number in given.numbers:
            found["processes"][str(number)] = measure(number, parts, Path(temporary), meter)
            given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    meter.close()


if __name__ == "__main__":
    main()
