"""Which of reasoning-gym's scorers take an answer that is right for another of the task's questions: `swapped_accepted`.

pip install reasoning-gym, then: python benchmarks/reasoning_swaps.py
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from pathlib import Path
from typing import Any

REPORT = Path(__file__).parent / "results" / "reasoning-swaps-cpu.json"
QUESTIONS, SEED, ENOUGH, LEAST = 12, 3, 0.5, 4


def main() -> None:
    """Score each question's own answer, and give it to the next question where that has another one."""
    from reasoning_gym import create_dataset
    from reasoning_gym.factory import DATASETS

    shares, left_out = {}, {}
    for name in sorted(DATASETS):
        try:
            found = swapped(create_dataset(name, size=QUESTIONS, seed=SEED))
        except Exception as error:
            left_out[name] = f"{type(error).__name__}: {error}"[:100]
            continue
        if len(found) < LEAST:
            left_out[name] = f"{len(found)} pairs with different answers"
        else:
            shares[name] = round(sum(found) / len(found), 3)
    report = {
        "what": "reasoning-gym's scorers: share of right answers that score 0.5 or more for another question of the task",
        "date": datetime.date.today().isoformat(),
        "reasoning_gym": importlib.metadata.version("reasoning-gym"),
        "tasks": len(shares),
        "above_half": sorted(name for name, share in shares.items() if share > ENOUGH),
        "shares_above_0": {name: share for name, share in shares.items() if share},
        "left_out": left_out,
    }
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def swapped(data: Any) -> list[bool]:
    """Return of each right answer whether it is taken for the next question, whose own is another."""
    asked = [data[i] for i in range(QUESTIONS)]
    return [
        data.score_answer(one["answer"], other) >= ENOUGH
        for one, other in zip(asked, [*asked[1:], asked[0]], strict=True)
        if one["answer"] is not None and one["answer"] != other["answer"] and data.score_answer(one["answer"], one) >= ENOUGH
    ]


if __name__ == "__main__":
    main()
