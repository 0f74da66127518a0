"""Records and judges kernels that nobody here wrote, on a machine without a GPU.

    python benchmarks/verify_foreign.py foreign.jsonl.gz --out benchmarks/results/verify-foreign-cpu.json [--every 4]

The file is what foreign_gather.py wrote; nothing of it is kept but names, checksums and verdicts. Each answer is recorded at its
task's own sizes, then judged by the stages that need no GPU, in the dtype that it was written for, with PyTorch's operations
beside its kernels, as KernelBench allows them. Whether a norm takes its batch's statistics is left to the product's rule; rows
judged before 2026-11-24 had them kept. Why one is refused was read in its text: foreign_causes.txt has a line for each, name |
kind | what it is. --join FILE ... takes the rows of earlier runs over.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foreign_gather import Foreign, read

from windtunnel.recipe import UserError
from windtunnel.verify import KernelVerifier, ReferenceBroken, Sandboxes, compiler_sandbox, kernel_sandbox
from windtunnel.verify.kernel.plan import Operation
from windtunnel.verify.kernel.record import file_forms, read_recorded, record_job
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.tiny import POLICY

GOLDEN = 0.6180339887498949  # steps of this share of a circle come to lie far apart, however many there are


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after so many")
    parser.add_argument("--every", type=int, default=1, help="every n-th answer alone")
    parser.add_argument("--spread", action="store_true", help="a few of each source first, so that an early end leaves a sample")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--record-only", action="store_true")
    parser.add_argument("--only", nargs="*", help="answers with one of these words in their names")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="results whose rows are taken over; later ones count")
    arguments = parser.parse_args()
    found = read(arguments.answers)[:: arguments.every]
    if arguments.only:
        found = [answer for answer in found if any(word in answer.name for word in arguments.only)]
    if arguments.spread:
        found = spread(found)
    known = {row["task"]: row for path in arguments.join for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    again = (known[answer.name] for answer in found if known.get(answer.name, {}).get("sha256") == answer.sha256)
    began, rows = time.monotonic(), list[dict[str, Any]](again)
    taken, number = {row["task"] for row in rows}, len(found)
    found = [answer for answer in found if answer.name not in taken]

    def save(*, final: bool = False) -> None:
        results = summary(rows, number, time.monotonic() - began, final=final)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    with Sandboxes(arguments.workers, kernel_sandbox) as box, Sandboxes(arguments.workers, compiler_sandbox) as compiler:

        def one(entry: Foreign) -> None:
            if time.monotonic() - began > 60 * arguments.minutes:
                return
            made = row(entry, box, compiler, record_only=arguments.record_only)
            print(json.dumps(made)[:400] if made is not None else f"nothing known: {entry.name}", flush=True)
            if made is not None:
                rows.append(made)
                save()

        with ThreadPoolExecutor(arguments.workers) as pool:
            list(pool.map(one, found))
    save(final=True)
    return 0


def spread(answers: list[Foreign]) -> list[Foreign]:
    """The sources in turn, and of each first those that lie far apart in its list."""
    places: dict[int, tuple[float, str]] = {}
    for source in sorted({answer.source for answer in answers}):
        own = [number for number, answer in enumerate(answers) if answer.source == source]
        order = sorted(range(len(own)), key=lambda at: (at * GOLDEN) % 1.0)
        places |= {own[at]: (float(turn), source) for turn, at in enumerate(order)}
    return [answers[number] for number in sorted(places, key=places.__getitem__)]


def row(given: Foreign, box: Any, compiler: Any, *, record_only: bool) -> dict[str, Any] | None:
    """What became of one answer; None where the machinery failed: another run may reach it."""
    made: dict[str, Any] = {"source": given.source, "commit": given.commit, "task": given.name, "sha256": given.sha256}
    made |= {"right_elsewhere": given.right, "judged_on": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"}
    answer = given.answer
    try:
        task = given.judged_task()
        began = time.monotonic()
        made |= recorded(task, answer, box)
        made["record_seconds"] = round(time.monotonic() - began, 2)
        if not record_only:
            began = time.monotonic()
            verdict = KernelVerifier(task, box, compiler=compiler).verify(answer)
            if verdict.infrastructure:
                return None
            made |= {"accepted": verdict.accepted, "stage": verdict.stage, "reason": verdict.reason, "reward": verdict.reward}
            made["judge_seconds"] = round(time.monotonic() - began, 2)
            if not verdict.accepted:
                made["said"] = verdict.message[:400]
    except ReferenceBroken:
        return None
    except UserError as error:
        if "the sandbox's worker did not start" in error.message:
            return None
        made |= {"task_error": error.message[:300]}
    return made


def recorded(task: Task, answer: str, box: Any) -> dict[str, Any]:
    """Whether the answer has a plan at the task's own sizes."""
    forms = file_forms(task, box, ["full"])
    plans, wrong = read_recorded(box.run(record_job(answer, forms)), forms, task)
    if wrong is not None:
        return {"recorded": False, "not_recorded": f"{wrong.reason}: {wrong.message[:300]}"}
    operations: Counter[str] = Counter()
    for plan in plans:
        for step, times in zip(plan.steps, plan.times(), strict=True):
            operations.update({step.operation: times} if isinstance(step, Operation) else {})
    return {"recorded": True, "launches": plans[0].launched(), "operations": dict(operations)}


CAUSES = Path(__file__).with_name("foreign_causes.txt")
# What `funnel` leaves to a GPU, which judges the same values at the file's own sizes; and long sizes, which it does without.
OF_SIZE = re.compile(
    r"\(tiny (long )?[^()]*(plain|negated|scaled)( in training mode)?\)\.?$|\(tiny ragged \w+\)\.?$|does not compile.*\(tiny"
)
NO_TINY_SIZE = "its task has no tiny size: sizes inside its code, or a reference that is too large"


def cause(entry: dict[str, Any], read_causes: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Why one was not accepted: as it was read, else as the verdict has it."""
    if entry["task"] in read_causes:
        kind, words = read_causes[entry["task"]]
        return {"kind": kind, "cause": words}
    if "task_error" in entry:
        return {"kind": "not judged", "cause": NO_TINY_SIZE}
    if entry["reason"] == "timeout":
        return {"kind": "too slow here", "cause": f"{entry['stage']} did not end in its time"}
    if entry["reason"] in POLICY:
        return {"kind": "out of policy", "cause": entry["reason"]}
    if entry["reason"] not in ("race", "wrong-shape") and OF_SIZE.search(entry.get("said", "")):
        return {"kind": "a GPU decides", "cause": f"{entry['reason']} at a size that was made for the interpreter"}
    return {"kind": "not read yet", "cause": entry["reason"]}


def summary(rows: list[dict[str, Any]], number: int, seconds: float, *, final: bool) -> dict[str, Any]:
    """All rows, and what they come to."""
    lines = [line.split(" | ") for line in CAUSES.read_text(encoding="utf-8").splitlines() if line.strip()]
    causes = {name: (kind, words) for name, kind, words in lines}
    rows = [entry if entry.get("accepted") else {**entry, **cause(entry, causes)} for entry in rows]
    judged = [entry for entry in rows if "accepted" in entry]
    sources: dict[str, Counter[str]] = {}
    for entry in rows:
        counts = sources.setdefault(entry["source"], Counter())
        counts.update(reached=1, judged=int("accepted" in entry), accepted=int(bool(entry.get("accepted"))))
    return {
        "what": "kernels that nobody here wrote, recorded at full shapes and judged without a GPU",
        "sources": {name: dict(counts) for name, counts in sorted(sources.items())},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": {name: version(name) for name in ("torch", "triton")} | {"python": platform.python_version()},
        "finished": final,
        "seconds": round(seconds, 1),
        "answers": number,
        "reached": len(rows),
        "tasks_not_usable": len(rows) - len(judged),
        "recorded": sum(entry.get("recorded", False) for entry in rows),
        "judged": len(judged),
        "accepted": sum(entry["accepted"] for entry in judged),
        "refused_by_reason": dict(Counter(entry["reason"] for entry in judged if not entry["accepted"])),
        "refused_by_kind": dict(Counter(entry["kind"] for entry in rows if not entry.get("accepted"))),
        "rows": sorted(rows, key=lambda entry: (entry["source"], entry["task"])),
    }


if __name__ == "__main__":
    sys.exit(main())
