"""Runs the attack suite and the honest suite through the kernel verifier, and writes docs/verify-attacks.md from what came out.

    python benchmarks/attacks.py run   --out benchmarks/results/verify-suites-cpu.json   # minutes on 2 cores
    python benchmarks/attacks.py run   --gpu --minutes 8 --out benchmarks/results/verify-suites-gpu.json   # on a GPU
    python benchmarks/attacks.py write                                                   # the page from the first file

Both suites stand in tests/verify, whose tests run them too. On a GPU everything first goes through the stages up to full
shapes, several candidates at a time; then what still stands goes before the clock, one at a time, attacks first. --minutes bounds
both: one attack of each kind and one honest candidate of each task come before the others, and what the time did not suffice for
is named under left_out and not_timed. Exit code 1 when an attack that should be stopped here is accepted, an honest candidate is
refused, or a refusal has a reason that does not fit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from windtunnel import __version__
from windtunnel.recipe import UserError
from windtunnel.verify import (
    GpuStages,
    KernelVerifier,
    Sandboxes,
    Task,
    Verdict,
    compiler_sandbox,
    gpu_sandbox,
    kernel_sandbox,
    kernel_tasks,
    reference_sandbox,
    refuse,
)

HERE = Path(__file__).parent
SUITES = HERE.parent / "tests" / "verify"
RESULTS = HERE / "results" / "verify-suites-cpu.json"
DOCUMENT = HERE.parent / "docs" / "verify-attacks.md"


@dataclass(frozen=True)
class Entry:
    """One candidate to judge. reasons: the slugs that count as right, empty for an honest one."""

    name: str
    task: Task
    source: str
    number: int = 0
    how: str = ""
    where: str = "cpu"
    reasons: frozenset[str] = frozenset()


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--gpu", action="store_true", help="run the stages that need a GPU too")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--gpu-workers", type=int, default=8, help="candidates at full shapes at a time on one GPU")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after so many")
    arguments = parser.parse_args()
    if arguments.what == "run":
        results = run(arguments.workers, arguments.gpu_workers if arguments.gpu else 0, 60 * arguments.minutes)
        arguments.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{results['summary']}\n{arguments.out}")
        return 0 if not results["accepted_attacks"] and not results["refused_honest"] and not results["wrong_reasons"] else 1
    DOCUMENT.write_text(document(json.loads(arguments.out.read_text(encoding="utf-8"))), encoding="utf-8")
    print(DOCUMENT)
    return 0


def entries() -> tuple[list[Entry], list[Entry]]:
    """(attacks, honest candidates)."""
    sys.path.insert(0, str(SUITES))
    from attacks.suite import suite as attack_suite
    from honest.suite import suite as honest_suite

    tasks = kernel_tasks()
    attacks = [Entry(a.name, a.task, a.source, a.number, a.how, a.where, a.reasons) for a in attack_suite()]
    return attacks, [Entry(h.name, tasks[h.task], h.source) for h in honest_suite()]


def run(workers: int, gpu: int, limit: float) -> dict[str, Any]:
    """Judge everything, `workers` candidates at a time, `gpu` of them on a GPU, and begin nothing after `limit` seconds."""
    attacks, honest = entries()
    began = time.monotonic()
    with ExitStack() as stack:
        boxes = stack.enter_context(Sandboxes(workers, kernel_sandbox))
        compilers = stack.enter_context(Sandboxes(max(1, workers // 2), compiler_sandbox))
        layers = boxes.start()
        trusted = stack.enter_context(Sandboxes(max(1, gpu // 2), reference_sandbox)) if gpu else None
        runner = stack.enter_context(Sandboxes(gpu, gpu_sandbox)) if gpu else None

        def pass_over(todo: list[Entry], threads: int, until: float, clock: bool) -> dict[str, dict[str, Any]]:
            verifiers: dict[str, KernelVerifier] = {}
            for task in {entry.task.name: entry.task for entry in todo}.values():
                stages = GpuStages(task, runner, trusted, clock=clock, baseline=False) if runner and trusted else None
                verifiers[task.name] = KernelVerifier(task, boxes, compiler=compilers, gpu=stages)
            with ThreadPoolExecutor(threads) as pool:
                rows = pool.map(lambda e: judged(e, verifiers[e.task.name]) if time.monotonic() < until else None, todo)
                return {row["name"]: row for row in rows if row is not None}

        order = spread(attacks, honest)
        # A third of the time is the clock's.
        found = pass_over(order, workers, began + limit * (2 / 3 if gpu else 1), clock=False)
        if runner:
            standing = [entry for entry in order if entry.name in found and found[entry.name]["accepted"]]
            standing.sort(key=lambda entry: entry.number == 0)
            found |= pass_over(standing, gpu, began + limit, clock=True)
    attacks = [entry for entry in attacks if entry.name in found]
    left_out = [entry.name for entry in order if entry.name not in found]
    rows = [found[entry.name] for entry in (*attacks, *(entry for entry in honest if entry.name in found))]
    seconds = time.monotonic() - began
    bad, good = rows[: len(attacks)], rows[len(attacks) :]
    for row, entry in zip(bad, attacks, strict=True):
        row |= {"number": entry.number, "how": entry.how, "where": entry.where, "right": row["reason"] in entry.reasons}
    here = [row for row in bad if gpu or row["where"] == "cpu"]
    accepted = [row["name"] for row in here if row["accepted"]]
    wrong = [row["name"] for row in bad if not row["accepted"] and not row["right"]]
    refused = [row["name"] for row in good if not row["accepted"]]
    return {
        "what": f"attack and honest candidates through {'all stages' if gpu else 'the stages that need no GPU'}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, {platform.system()}",
        "versions": {name: version(name) for name in ("torch", "triton", "numpy")}
        | {"windtunnel": __version__, "python": platform.python_version()},
        "seconds": round(seconds, 1),
        "hardened": layers.hardened,
        "left_out": left_out,
        "not_timed": [row["name"] for row in good if row["stage"] == "full" and row["accepted"]],
        "summary": f"{len(here)} attacks to be stopped here: {len(accepted)} accepted, {len(wrong)} refused for a wrong reason; "
        f"{len(bad) - len(here)} need a GPU; {len(good)} honest candidates: {len(refused)} refused; {seconds:.0f} s",
        "accepted_attacks": accepted,
        "wrong_reasons": wrong,
        "refused_honest": refused,
        "attacks": bad,
        "honest": good,
    }


def spread(attacks: list[Entry], honest: list[Entry]) -> list[Entry]:
    """All, the first of each kind of attack and of each task before the seconds, and so on."""
    turns: Counter[object] = Counter()
    placed = []
    for entry in (*attacks, *honest):
        key = entry.number or entry.task.name
        placed.append((turns[key], entry))
        turns[key] += 1
    return [entry for _, entry in sorted(placed, key=lambda pair: pair[0])]


def judged(entry: Entry, verifier: KernelVerifier) -> dict[str, Any]:
    """One candidate's row."""
    began = time.monotonic()
    verdict = verdict_of(verifier, entry.source)
    row = {
        "name": entry.name,
        "task": entry.task.name,
        "accepted": verdict.accepted,
        "stage": verdict.stage,
        "reason": verdict.reason,
        "seconds": round(time.monotonic() - began, 2),
    }
    if not verdict.accepted:
        row["said"] = verdict.message[:300]
    fits = verdict.reason in entry.reasons if entry.reasons else verdict.accepted
    print(
        f"{'ok    ' if fits else 'LOOK  '} {row['seconds']:6.2f} s  {entry.name:44} {verdict.stage}: {verdict.reason}", flush=True
    )
    return row


def verdict_of(verifier: KernelVerifier, source: str) -> Verdict:
    """The verdict; a task that cannot tell right from wrong refuses all candidates."""
    try:
        return verifier.verify(source)
    except UserError as error:
        return refuse("task", "flat-task", str(error))


def document(results: dict[str, Any]) -> str:
    """The page."""
    sys.path.insert(0, str(SUITES))
    from attacks.suite import KINDS

    rows = results["attacks"]
    here = [row for row in rows if row["where"] == "cpu"]
    solved, refused = len({row["task"] for row in results["honest"]}), len(results["refused_honest"])
    large = len(rows) - len(here)
    stages = Counter(row["stage"] for row in here if not row["accepted"])
    lines = [
        "# Attacks on the kernel verifier",
        "",
        "Written by `python benchmarks/attacks.py write`; the numbers are those of `benchmarks/results/verify-suites-cpu.json`.",
        "",
        f"{len(rows)} candidates cheat in {len(KINDS)} ways. {len(here)} of them have to be stopped without a GPU:",
        f"{len(results['accepted_attacks'])} were accepted. {large} are honest at the sizes that the interpreter can run",
        "and cheat at full size only: the correctness half accepts them, and its verdict says what it does not cover.",
        f"{len(results['honest'])} honest candidates on {solved} tasks went the same way: {refused} were refused.",
        f"All of it took {results['seconds']:.0f} s on {results['machine']}",
        f"(torch {results['versions']['torch']}, Triton {results['versions']['triton']}, {results['date'][:10]}).",
        "",
        "Of the attacks stopped here, "
        + ", ".join(f"{count} fell at the stage {stage}" for stage, count in stages.most_common())
        + ".",
        "A candidate falls at the first stage that finds something, so an attack may have more reasons than the one shown.",
        "",
        "| # | kind | candidate | what it does | stopped by | reason |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_line(row, KINDS[row["number"]]) for row in rows),
        "",
    ]
    return "\n".join([*lines, *_honest(results)]) + "\n"


def _line(row: dict[str, Any], kind: str) -> str:
    name = row["name"].partition("_")[2]
    stage = "GPU stages" if row["where"] == "gpu" else "**accepted**" if row["accepted"] else row["stage"]
    reason = "not run here" if row["where"] == "gpu" else row["reason"]
    return f"| {row['number']} | {kind} | `{name}` | {row['how']} | {stage} | {reason} |"


def _honest(results: dict[str, Any]) -> Iterator[str]:
    styles = Counter(row["name"].split("/")[1] for row in results["honest"])
    yield "## Honest candidates"
    yield ""
    yield "Each task has a plain solution; the others vary block sizes, launches, tuning and style, or are written by hand."
    yield ""
    yield (
        f"{styles['plain']} plain, {sum(styles.values()) - styles['plain']} varied. Refused: "
        + (", ".join(f"`{name}`" for name in results["refused_honest"]) or "none")
        + "."
    )


if __name__ == "__main__":
    sys.exit(main())
