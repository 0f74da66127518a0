"""A real small model learns by reward from tasks that nobody here wrote: held-out score before and after, on this machine.

    pip install reasoning-gym
    windtunnel fetch smollm2-135m-instruct
    reasoning.py --work FOLDER --out benchmarks/results/reasoning-cpu.json
    reasoning.py --run RUN --out FILE             # of a run that is there already

SmolLM2-135M-Instruct is asked reasoning-gym's leap years and judged by exact match: `Yes` or `No` and nothing else, in four
tokens at most. It answers in sentences at first. `always` is what the best constant answer would get: a policy that has learned
the form alone comes near it, and only what is above it is knowledge of leap years.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windtunnel.run import MetricsReader, RunFolder

TASK, SETTINGS, SEED, DRAWN = "calendar_arithmetic", {"tasks": ["is_leap_year"], "offset_upper_bound": 800}, 1, 1500
RECIPE = """\
name: leap-years
model: {kind: huggingface, config: smollm2-135m-instruct, sequence: 256}
data:
  corpus: {kind: prompts, files: [leap.jsonl], system: Answer in one word.}
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
"""


def main() -> None:
    """Make tasks and recipe, train, and write what held-out answers were worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="a folder for tasks, recipe and run")
    parser.add_argument("--run", type=Path, help="a run that is there already")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.work is None):
        parser.error("one of --work and --run")
    run = arguments.run or trained(arguments.work)
    arguments.out.write_text(json.dumps(found(run), indent=1) + "\n")


def trained(work: Path) -> Path:
    """Return the folder of a run on newly drawn tasks."""
    import reasoning_gym

    work.mkdir(parents=True, exist_ok=True)
    drawn = {
        one["question"].strip(): one["answer"] for one in reasoning_gym.create_dataset(TASK, size=DRAWN, seed=SEED, **SETTINGS)
    }
    lines = (json.dumps({"prompt": question, "answer": answer}) + "\n" for question, answer in drawn.items())
    (work / "leap.jsonl").write_text("".join(lines))
    (work / "leap.yaml").write_text(RECIPE)
    subprocess.run([sys.executable, "-m", "windtunnel", "train", "leap.yaml", "--yes", "--root", "runs"], cwd=work, check=True)
    return max((work / "runs").iterdir(), key=lambda path: path.stat().st_mtime)


def found(folder: Path) -> dict[str, Any]:
    """Return what a run shows: rewards by round, held-out answers by step, and the evaluation beside the base model."""
    run = RunFolder.open(folder)
    names = ("reward", "right", "answer_length", "mismatch", "answers_right", "generating_seconds", "learning_seconds")
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
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPU cores, busy with other work",
        "task": {"of": "reasoning-gym 0.1.25", "name": TASK, "settings": SETTINGS, "seed": SEED},
        "recipe": RECIPE,
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
