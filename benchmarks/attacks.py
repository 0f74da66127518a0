"""Runs the attack suite and the honest suite through the kernel verifier, and writes docs/verify-attacks.md from what came out.

    python benchmarks/attacks.py run   --out benchmarks/results/verify-suites-cpu.json   # minutes on 2 cores
    python benchmarks/attacks.py run   --gpu --minutes 8 --out benchmarks/results/verify-suites-gpu.json   # on a GPU
    python benchmarks/attacks.py again --gpu --tasks softmax relu --out benchmarks/results/verify-suites-gpu.json
    python benchmarks/attacks.py write                                                   # the page from the first file

Both suites stand in tests/verify, whose tests run them too. On a GPU, several at a time: every attack through all stages, as does
one honest candidate of each task; then the other honest ones up to full shapes; then those before the clock too. --minutes bounds
it: of each part those that differ most come first, and what the time did not suffice for is named under left_out and not_timed.
The file is written as it goes along. `again` judges what is on some tasks alone (--tasks NAME ..., or `products`: those with
matrix products), or all, those that were wrong first and most without the clock. It puts each new row, with its date, in the
place of the old one in the file; what it had no time for has no row any more, and is named under left_out. Exit code 1 when an
attack that should be stopped here is accepted, an honest candidate is refused, or a refusal has a reason that does not fit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attacks_page import document

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
from windtunnel.verify.kernel.hidden import may_have_products

HERE = Path(__file__).parent
SAVE_SECONDS = 5.0
CONTEXTS = 4  # processes on the GPU, of kernels and of references each
SUITES = HERE.parent / "tests" / "verify"
RESULTS = HERE / "results" / "verify-suites-cpu.json"
GPU_RESULTS = HERE / "results" / "verify-suites-gpu.json"
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
    harmless: str = ""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "again", "write"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tasks", nargs="+", default=[], help="of `again`: names of tasks, or `products`; without it all")
    parser.add_argument("--gpu", action="store_true", help="run the stages that need a GPU too")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after so many")
    parser.add_argument("--calls", type=int, default=60, help="of each candidate that is timed, at most; as in use: 60")
    parser.add_argument("--pretend", action="store_true", help=argparse.SUPPRESS)  # --gpu's motions on the interpreter
    parser.add_argument("--every", type=int, default=1, help="every n-th candidate alone, to try it")
    arguments = parser.parse_args()
    if arguments.what != "write":
        device = ("cpu" if arguments.pretend else "cuda") if arguments.gpu else None

        def save(results: dict[str, Any]) -> None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            part = arguments.out.with_suffix(".part")
            part.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(arguments.out)

        before = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.what == "again" else None
        again = Again(before, frozenset(arguments.tasks)) if before else None
        results = run(arguments.workers, device, 60 * arguments.minutes, arguments.every, save, arguments.calls, again)
        save(results)
        print(f"{results['summary']}\n{arguments.out}")
        return 0 if not results["accepted_attacks"] and not results["refused_honest"] and not results["wrong_reasons"] else 1
    gpu = json.loads(GPU_RESULTS.read_text(encoding="utf-8")) if GPU_RESULTS.exists() else None
    sys.path.insert(0, str(SUITES))
    from attacks.suite import KINDS

    here = json.loads(arguments.out.read_text(encoding="utf-8"))
    DOCUMENT.write_text(document(here, gpu, KINDS), encoding="utf-8")
    print(DOCUMENT)
    return 0


def entries() -> tuple[list[Entry], list[Entry]]:
    """(attacks, honest candidates)."""
    sys.path.insert(0, str(SUITES))
    from attacks.suite import suite as attack_suite
    from honest.suite import suite as honest_suite

    tasks = kernel_tasks()
    attacks = [Entry(a.name, a.task, a.source, a.number, a.how, a.where, a.reasons, a.harmless) for a in attack_suite()]
    return attacks, [Entry(h.name, tasks[h.task], h.source) for h in honest_suite()]


def run(
    workers: int,
    device: str | None,
    limit: float,
    every: int = 1,
    save: Callable[[dict[str, Any]], None] = lambda _: None,
    calls: int = 60,
    again: Again | None = None,
) -> dict[str, Any]:
    """Judge everything, `workers` candidates at a time, and begin nothing after `limit` seconds. device: of the stages that
    need a GPU; None leaves them out. save: called with what is known, now and then and at the end. again: judges only some, after
    an earlier run."""
    attacks, honest = (some[::every] for some in entries())
    tally = Tally(attacks, honest, device, save, again)
    with ExitStack() as stack:
        judge = Judge(stack, workers, device, calls)
        tally.hardened = judge.boxes.start().hardened
        if again is not None:
            again.with_judge(judge, tally, limit)
            return tally.results(final=True)
        first = spread(attacks, [])
        first += [entry for entry in spread([], honest) if entry.name in {of.name for of in one_of_each(honest)}]
        rest = [entry for entry in spread([], honest) if entry not in first]
        judge.all_of(first, tally, limit * 0.6, clock=True)
        judge.all_of(rest, tally, limit * 0.92, clock=False)
        if device is not None:
            judge.all_of([entry for entry in first if entry.name not in tally.found], tally, limit, clock=True)
            judge.all_of([entry for entry in rest if tally.stands(entry)], tally, limit, clock=True)
    return tally.results(final=True)


@dataclass(frozen=True)
class Again:
    """before: what an earlier run wrote. tasks: names of those whose candidates are judged again, `products` for those with
    matrix products, none for all."""

    before: dict[str, Any]
    tasks: frozenset[str]

    def meant(self, entry: Entry) -> bool:
        """Whether it is judged again: whatever was wrong before is."""
        before = {
            name for key in ("refused_honest", "accepted_attacks", "wrong_reasons", "nothing_known") for name in self.before[key]
        }
        return (
            not self.tasks
            or entry.name in before
            or entry.task.name in self.tasks
            or ("products" in self.tasks and may_have_products(entry.task.source))
        )

    def with_judge(self, judge: Judge, tally: Tally, limit: float) -> None:
        """Those that were refused first, then what reached a GPU, then the others; with the clock what the time is left for."""
        rows = {row["name"]: row for row in (*self.before["attacks"], *self.before["honest"])}
        wrong = {*self.before["refused_honest"], *self.before["accepted_attacks"], *self.before["wrong_reasons"]}
        early = ("allow-list", "syntax", "tiny", "compile")
        todo = [entry for entry in spread(tally.attacks, tally.honest) if self.meant(entry)]
        todo.sort(key=lambda e: (e.name not in wrong, rows.get(e.name, {}).get("stage") in early, e.number > 0))
        judge.all_of(todo, tally, limit * 0.8, clock=False)
        judge.all_of([entry for entry in todo if tally.stands(entry)], tally, limit, clock=True)


class Judge:
    """The warm workers, and a verifier for each task. device, calls: as in `run`."""

    def __init__(self, stack: ExitStack, workers: int, device: str | None, calls: int) -> None:
        self.calls, self.workers, self.device = calls, workers, device
        self.verifiers = dict[tuple[str, bool], KernelVerifier]()
        gpu, trusted = (gpu_sandbox, reference_sandbox) if device == "cuda" else (kernel_sandbox, kernel_sandbox)
        pools = [Sandboxes(workers, kernel_sandbox), Sandboxes(workers, compiler_sandbox)]
        if device is not None:
            contexts = min(workers, CONTEXTS) if device == "cuda" else workers
            pools += [Sandboxes(contexts, gpu), Sandboxes(contexts, trusted)]
        for pool in pools:
            stack.enter_context(pool).begin()
        self.boxes, self.compilers, *self.gpus = pools

    def verifier(self, task: Task, *, clock: bool) -> KernelVerifier:
        """Made once for each task."""
        key = (task.name, clock)
        if key not in self.verifiers:
            stages = None
            if self.device is not None:
                options: dict[str, Any] = {"calls": self.calls, "device": self.device, "baseline": ()}
                options |= {} if self.device == "cuda" else {"size": "tiny", "index": None}
                stages = GpuStages(task, *self.gpus, clock=clock, **options)
            made = self.verifiers[key] = KernelVerifier(task, self.boxes, compiler=self.compilers, gpu=stages)
            if (other := self.verifiers.get((task.name, not clock))) is not None:
                made.preparation = other.preparation  # the reference at the tiny sizes is the same
        return self.verifiers[key]

    def all_of(self, todo: list[Entry], tally: Tally, until: float, *, clock: bool) -> None:
        """Judge them; nothing is begun so many seconds after the tally was."""
        known = {entry.task.name: self.verifier(entry.task, clock=clock) for entry in todo}

        def one(entry: Entry) -> None:
            if tally.seconds < until:
                tally.add(entry, judged(entry, known[entry.task.name]))

        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(one, todo))


class Tally:
    """What is known so far, written now and then."""

    def __init__(
        self,
        attacks: list[Entry],
        honest: list[Entry],
        device: str | None,
        save: Callable[[dict[str, Any]], None],
        again: Again | None = None,
    ) -> None:
        self.attacks, self.honest, self.device, self.save, self.again = attacks, honest, device, save, again
        self.found: dict[str, dict[str, Any]] = {}
        if again is not None:
            old = {row["name"]: row for row in (*again.before["attacks"], *again.before["honest"])}
            self.found = {e.name: old[e.name] for e in (*attacks, *honest) if e.name in old and not again.meant(e)}
        self.hardened = False
        self._lock, self._began, self._saved = threading.Lock(), time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def stands(self, entry: Entry) -> bool:
        """Whether a candidate was accepted so far, but not timed."""
        row = self.found.get(entry.name)
        return row is not None and row["accepted"] and row["stage"] != "timing"

    def add(self, entry: Entry, row: dict[str, Any]) -> None:
        """One more row; a later one of the same candidate counts."""
        if entry.number:
            row |= {"number": entry.number, "how": entry.how, "where": entry.where, "right": row["reason"] in entry.reasons}
            row |= {"harmless": entry.harmless} if row["accepted"] and entry.harmless else {}
        if self.again is not None:
            row["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with self._lock:
            self.found[entry.name] = row
            if self.seconds - self._saved > SAVE_SECONDS:
                self._saved = self.seconds
                self.save(self.results())

    def results(self, *, final: bool = False) -> dict[str, Any]:
        """All of it, plain."""
        gpu = self.device is not None
        bad, good = ([self.found[e.name] for e in some if e.name in self.found] for some in (self.attacks, self.honest))
        here = [row for row in bad if gpu or row["where"] == "cpu"]
        judgements = [row for row in (*here, *good) if row["reason"] != "infrastructure"]
        right = {entry.name for entry in self.attacks if entry.harmless}
        accepted = [row["name"] for row in here if row["accepted"] and row["name"] not in right]
        by_plan = [row["name"] for row in here if row["accepted"] and row["name"] in right]
        nothing = [row["name"] for row in (*bad, *good) if row["reason"] == "infrastructure"]
        wrong = [row["name"] for row in bad if not row["accepted"] and not row["right"] and row["name"] not in nothing]
        refused = [row["name"] for row in good if not row["accepted"] and row["reason"] != "infrastructure"]
        found = {
            "what": f"attack and honest candidates through {'all stages' if gpu else 'the stages that need no GPU'}",
            "finished": final,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, {platform.system()}",
            "gpu": gpu_name() if self.device == "cuda" else "none",
            "versions": {name: version(name) for name in ("torch", "triton", "numpy")}
            | {"windtunnel": __version__, "python": platform.python_version()},
            "seconds": round(self.seconds, 1),
            "per_second": round(len(judgements) / max(self.seconds, 1e-9), 2),
            "hardened": self.hardened,
            "left_out": [entry.name for entry in (*self.attacks, *self.honest) if entry.name not in self.found],
            "not_timed": [row["name"] for row in good if row["stage"] == "full" and row["accepted"]],
            "nothing_known": nothing,
            "summary": f"{len(here)} attacks to be stopped here: {len(accepted)} accepted, {len(by_plan)} whose trick has no "
            f"place to run, {len(wrong)} refused for a wrong reason; {len(bad) - len(here)} need a GPU; {len(good)} honest "
            f"candidates: {len(refused)} refused; {len(nothing)} judged by nobody; {self.seconds:.0f} s",
            "accepted_attacks": accepted,
            "right_by_their_plan": by_plan,
            "wrong_reasons": wrong,
            "refused_honest": refused,
        }
        if self.again is not None:  # of the run before it, but what the rows say; the later ones have their dates
            kept = ("date", "seconds", "per_second", "summary")
            found["again"] = {name: found[name] for name in kept} | {"tasks": sorted(self.again.tasks)}
            found |= {name: self.again.before[name] for name in kept if name != "summary"}
            found["finished"] = self.again.before["finished"]
        return found | {"attacks": bad, "honest": good}


def gpu_name() -> str:
    """As its driver says, asked without a context of our own."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def one_of_each(honest: list[Entry]) -> list[Entry]:
    """The first candidate of each task."""
    return list({entry.task.name: entry for entry in reversed(honest)}.values())


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
    fits = (
        verdict.accepted if not entry.reasons else verdict.reason in entry.reasons or (bool(entry.harmless) and verdict.accepted)
    )
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


if __name__ == "__main__":
    sys.exit(main())
