"""A real small model learns by reward from tasks that nobody here wrote: held-out score before and after, on this machine.

    pip install reasoning-gym
    windtunnel fetch smollm2-135m-instruct
    reasoning.py --work FOLDER --out benchmarks/results/reasoning-cpu.json
    reasoning.py --task arithmetic --work FOLDER --draw             # the tasks alone, for a machine without reasoning-gym
    reasoning.py --task arithmetic --work FOLDER --out FILE --seconds 400 --set stages.rl.engine=vllm
    reasoning.py --run RUN --out FILE                               # of a run that is there already

SmolLM2-135M-Instruct is asked reasoning-gym's questions.

`leap-years` is judged by exact match: `Yes` or `No` and nothing else, in four tokens at most. It answers in sentences at first.
`arithmetic` is sums and products of one and two digits. The last number of an answer counts, whatever stands around it, so that
the form of an answer is worth nothing: what rises is arithmetic.

`always` is what the best constant answer would get: a policy that has learned the form alone comes near it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windtunnel.run import MetricsReader, RunFolder

SEED = 1
END_SECONDS = 60.0
"""In which a run that was told to stop saves, and the evaluation behind it may begin."""
Drawn = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Questions of reasoning-gym, and the recipe that learns from them.

    Attributes:
        parts: dataset, its settings, and how many are drawn; the same question twice counts once.
        recipe: of a file. files: others that it needs.
    """

    parts: tuple[tuple[str, Drawn, int], ...]
    recipe: str
    files: dict[str, str]


LEAP_YEARS = Task(
    (("calendar_arithmetic", {"tasks": ["is_leap_year"], "offset_upper_bound": 800}, 1500),),
    """\
name: leap-years
model: {kind: huggingface, config: smollm2-135m-instruct, sequence: 256}
data:
  corpus: {kind: prompts, files: [tasks.jsonl], system: Answer in one word.}
  tokenizer: {kind: folder}
  validation: 0.3
stages:
  rl:
    prompts: 6
    samples: 6
    prompt_tokens: 64
    answer_tokens: 4
    mask_truncated: false
    learning_rate: 3e-5
    schedule: {warmup_steps: 2}
    rewards:
      - {kind: exact}
    answers: {every: 7 steps, prompts: 32}
    budget: {steps: 14}
  evaluate:
    exact_match_problems: 100
    gates: {gain: 0}
""",
    {},
)
ARITHMETIC = Task(
    (
        ("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, 3000),
        ("chain_sum", {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}, 6000),
        ("products", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, 500),
    ),
    """\
name: arithmetic
model: {kind: huggingface, config: smollm2-135m-instruct, sequence: 256}
data:
  corpus: {kind: prompts, files: [tasks.jsonl], system: You are a calculator.}
  tokenizer: {kind: folder}
  validation: 0.1
stages:
  rl:
    prompts: 32
    samples: 16
    prompt_tokens: 96
    answer_tokens: 32
    learning_rate: 2e-5
    schedule: {warmup_steps: 5}
    reward: last_number.py:right
    answers: {every: 50 steps, prompts: 400}
    budget: {steps: 400}
  evaluate:
    exact_match_problems: 500
    gates: {gain: 0}
""",
    {
        "last_number.py": """\
import re


def right(prompt, answer, truth):
    numbers = re.findall(r"-?\\d+", answer.replace(",", ""))
    return float(bool(numbers) and int(numbers[-1]) == int(truth))
"""
    },
)
TASKS = {"leap-years": LEAP_YEARS, "arithmetic": ARITHMETIC}


def main() -> None:
    """Make tasks and recipe, train, and write what held-out answers were worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="leap-years")
    parser.add_argument("--work", type=Path, help="a folder for tasks, recipe and run; tasks that lie there are taken")
    parser.add_argument("--draw", action="store_true", help="draw the tasks and do nothing else")
    parser.add_argument("--run", type=Path, help="a run that is there already")
    parser.add_argument("--seconds", type=float, help="the run is told to stop after so many; it saves and is evaluated")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.work is None):
        parser.error("one of --work and --run")
    task = TASKS[arguments.task]
    if arguments.work is not None:
        write_tasks(task, arguments.work)
    if arguments.draw:
        return
    if arguments.out is None:
        parser.error("--out says where the figures go")
    run = arguments.run or trained(task, arguments.work, arguments.set, arguments.seconds)
    if not (run / "evaluation.json").exists():
        words = [sys.executable, "-m", "windtunnel", "evaluate", str(run.resolve())]
        subprocess.run(words, cwd=arguments.work or run.parents[1], check=True)  # where the reward's file lies
    about = {"name": arguments.task, "seed": SEED, "parts": [list(part) for part in task.parts], "set": arguments.set}
    arguments.out.write_text(json.dumps(found(run, about | {"recipe": task.recipe}), indent=1) + "\n")


def write_tasks(task: Task, work: Path) -> None:
    """Write recipe and tasks into a folder, each question once; tasks that are there stay."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "recipe.yaml").write_text(task.recipe)
    for name, text in task.files.items():
        (work / name).write_text(text)
    if (work / "tasks.jsonl").exists():
        return
    import reasoning_gym

    drawn = dict[str, str]()
    for number, (name, settings, size) in enumerate(task.parts):
        for one in reasoning_gym.create_dataset(name, size=size, seed=SEED + number, **settings):
            drawn.setdefault(one["question"].strip(), one["answer"])
    lines = (json.dumps({"prompt": question, "answer": answer}) + "\n" for question, answer in drawn.items())
    (work / "tasks.jsonl").write_text("".join(lines))


def trained(task: Task, work: Path, sets: list[str], seconds: float | None) -> Path:
    """Return the folder of a new run; one that takes longer than `seconds` is told to stop."""
    words = [sys.executable, "-m", "windtunnel", "train", "recipe.yaml", "--yes", "--root", "runs"]
    process = subprocess.Popen([*words, *(word for one in sets for word in ("--set", one))], cwd=work)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(END_SECONDS)
    return max((work / "runs").iterdir(), key=lambda path: path.stat().st_mtime)


def found(folder: Path, task: Drawn) -> dict[str, Any]:
    """Return what a run shows: rewards by round, held-out answers by step, and the evaluation beside the base model."""
    run = RunFolder.open(folder)
    names = (
        "reward", "right", "answer_length", "mismatch", "equal_rewards", "answers_right", "step_seconds", "generating_seconds",
        "learning_seconds",
    )  # fmt: skip
    with MetricsReader(run.metrics_path) as reader:
        series = {name: {point.step: round(point.value, 5) for point in reader.series(name)} for name in names}
        judged = [event.message for event in reader.events() if "held-out answers" in event.message]
    answers, truths = {}, {}
    for file in sorted((folder / "rollouts").glob("round-*.jsonl")):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        answers[file.stem] = dict(Counter(one["answer"] for one in records).most_common(5))
        truths |= {one["prompt"]: one["truth"] for one in records}
    constant, times = Counter(truths.values()).most_common(1)[0]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    return {
        "benchmark": "reasoning",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {"what": f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPU cores", "device": evaluation["device"]},
        "task": {"of": "reasoning-gym 0.1.25"} | task,
        "status": {key: run.manifest.get(key) for key in ("status", "reason", "started", "ended")},
        "held_out": judged,
        "series": series,
        "answers": answers,
        "always": {"answer": constant, "share": round(times / len(truths), 4), "prompts": len(truths)},
        "evaluation": {"tuned": evaluation["answers"], "untuned": evaluation["untuned"]["answers"]}
        | {"gain": evaluation["untuned"]["gain"]},
    }


if __name__ == "__main__":
    main()
