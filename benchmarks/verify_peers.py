"""The same attack and honest files before other public checkers, as far as each runs on this machine, in one run.

    .venv/bin/python benchmarks/verify_peers.py --kernelbench FOLDER --robust-kbench FOLDER --backendbench FOLDER

FOLDER: checkouts of ScalingIntelligence/KernelBench, SakanaAI/robust-kbench and meta-pytorch/BackendBench, used as they are;
what is not named is left out. Of KernelBench: its static checker (its text rules for Triton), and its evaluation, on a GPU
whole, otherwise its correctness functions through the interpreter. Of robust-kbench: its correctness function, on a GPU where
there is one. Of what is left: their correctness functions through the interpreter (verify_peers_child.py says how), at the
sizes and in the float32 that it can run. Beside them stands every stage of ours that this machine can run, but the clock.
--seconds bounds all of it: each judge then has an equal share, one candidate of each kind and task comes before the others, and
how many a judge had no time for stands in its row. The file is written after each. A file on which a judge gave no verdict (it
crashed, hung or was ended by the candidate) is counted as such, never as passed or refused. Attacks that are honest at the
sizes of the interpreter are left out where there is no GPU, for all.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.util
import io
import itertools
import json
import math
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUITES = ROOT / "tests" / "verify"
CHECKOUTS = {"kernelbench": "src/kernelbench", "robust-kbench": "robust_kbench", "backendbench": "BackendBench"}


@dataclass(frozen=True)
class File:
    """A candidate. small: the reference at the sizes that the interpreter runs. kind: of attack, or the task of an honest one.

    no_place: an attack in host code, of which a launch plan holds nothing: ours is right to accept what its kernels compute.
    """

    name: str
    source: str
    task: Any
    small: str
    kind: object
    no_place: bool = False


Judge = Callable[[File], "bool | None"]
Maker = Callable[[contextlib.ExitStack], Judge]
OURS = "windtunnel"
ON_GPU = {"kernelbench": "evaluation on a GPU", "robust-kbench": "correctness on a GPU"}


def main() -> None:
    """Judge every file by every peer and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "verify-peers-cpu.json")
    for name in CHECKOUTS:
        parser.add_argument(f"--{name}", type=Path, help="a checkout")
    parser.add_argument("--every", type=int, default=1, help="judge only every n-th file, to try it")
    parser.add_argument("--no-funnel", action="store_true", help="leave out the stages of ours that run candidates")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all judges together")
    parser.add_argument("--at-once", type=int, default=1, help="files under way at once")
    parser.add_argument("--judges", default="", help="only those with this in their names; the other rows of --out stay")
    options = parser.parse_args()
    checkouts = {name: folder for name in CHECKOUTS if (folder := getattr(options, name.replace("-", "_"))) is not None}
    for name, folder in checkouts.items():
        if not (folder / CHECKOUTS[name]).is_dir():
            sys.exit(f"error: --{name} {folder} is no checkout: it has no {CHECKOUTS[name]}")
    sys.path.insert(0, str(SUITES))
    attacks, honest = spread(read_attacks())[:: options.every], spread(read_honest())[:: options.every]
    judges = judges_of(checkouts, options.at_once, funnel_too=not options.no_funnel)
    judges = {name: make for name, make in judges.items() if options.judges in name}
    result: dict[str, Any] = {
        "machine": machine(),
        "peer_commits": {name: commit(folder) for name, folder in checkouts.items()},
        "attacks": len(attacks),
        "honest": len(honest),
        "judges": {},
    }
    if options.judges and options.out.exists():
        before = json.loads(options.out.read_text())
        if any(before[key] != result[key] for key in ("attacks", "honest")):
            sys.exit(f"error: --out {options.out} is of other files than these: give --every as it was then")
        result |= {"machine": before["machine"], "judges": before["judges"]}
        result["peer_commits"] = before["peer_commits"] | result["peer_commits"]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    began = time.monotonic()
    for number, (name, make) in enumerate(judges.items()):
        share = (options.seconds - (time.monotonic() - began)) / (len(judges) - number)
        with contextlib.ExitStack() as opened:
            row = count(name, make(opened), attacks, honest, options.at_once, share)
        result["judges"][name] = row | {"date": today}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def spread(files: list[File]) -> list[File]:
    """The first of each kind before the seconds, and so on."""
    turns: Counter[object] = Counter()
    placed = []
    for file in files:
        placed.append((turns[file.kind], file))
        turns[file.kind] += 1
    return [file for _, file in sorted(placed, key=lambda pair: pair[0])]


def judges_of(checkouts: dict[str, Path], at_once: int, *, funnel_too: bool) -> dict[str, Maker]:
    """What makes the judges that this machine can run: the cheap ones first, which leave their time to the others."""
    judges: dict[str, Maker] = {}
    if "kernelbench" in checkouts:
        judges["kernelbench, static checker"] = lambda _: static_checker(checkouts["kernelbench"])
    if funnel_too:
        judges[OURS] = lambda opened: funnel(opened, at_once)
    for name, folder in checkouts.items():
        on_gpu = name in ON_GPU and has_gpu()
        what = ON_GPU[name] if on_gpu else "correctness on a CPU"
        judges[f"{name}, {what}"] = functools.partial(forked, f"{name}-gpu" if on_gpu else name, folder, at_once)
    return judges


def read_attacks() -> list[File]:
    """Every attack that this machine can show."""
    from attacks.suite import suite

    from windtunnel.verify.kernel.task import with_numbers

    return [
        File(a.name, a.source, a.task, with_numbers(a.task.source, {**a.task.sizes["tiny"], **a.sizes}), a.number, a.right_plan)
        for a in suite()
        if a.where == "cpu" or has_gpu()
    ]


def read_honest() -> list[File]:
    """Every honest candidate."""
    from honest.suite import suite

    from windtunnel.verify import find_task

    return [File(h.name, h.source, task, task.at("tiny"), h.task) for h in suite() for task in [find_task(h.task)]]


def count(name: str, judge: Judge, attacks: list[File], honest: list[File], at_once: int, seconds: float) -> dict[str, Any]:
    """How many of each kind a judge accepts, refuses or gives no verdict on, and the names that it gets wrong.

    It begins none after so many seconds; attacks and honest candidates come in turns.
    """
    began = time.monotonic()
    row: dict[str, Any] = {}
    places = {file.name: at / len(files) for files in (attacks, honest) for at, file in enumerate(files)}

    def one(file: File) -> tuple[str, bool | None] | None:
        return (file.name, judge(file)) if time.monotonic() - began < seconds else None

    with ThreadPoolExecutor(at_once) as pool:
        order = sorted([*attacks, *honest], key=lambda file: places[file.name])
        answers = dict(pair for pair in pool.map(one, order) if pair is not None)
    for kind, files, wrong in (("attacks", attacks, True), ("honest", honest, False)):
        said = {file.name: answers[file.name] for file in files if file.name in answers}
        row[f"{kind}_no_time"] = len(files) - len(said)
        if kind == "attacks" and name == OURS:
            apart = {file.name for file in files if file.no_place and said.get(file.name)}
            row["attacks_no_place"] = len(apart)
            said = {key: answer for key, answer in said.items() if key not in apart}
        row[f"{kind}_accepted"] = sum(answer is True for answer in said.values())
        row[f"{kind}_refused"] = sum(answer is False for answer in said.values())
        row[f"{kind}_no_verdict"] = sum(answer is None for answer in said.values())
        row[f"{kind}_wrong"] = [name for name, answer in said.items() if answer is wrong]
    row["seconds"] = round(time.monotonic() - began, 1)
    print(f"{name}: { {key: value for key, value in row.items() if not isinstance(value, list)} }", flush=True)
    return row


def funnel(opened: contextlib.ExitStack, at_once: int) -> Judge:
    """Every stage that this machine can run; up to full shapes where there is a GPU, since no peer's clock runs here either."""
    import threading

    from windtunnel.recipe import UserError
    from windtunnel.verify import (
        GpuStages,
        KernelVerifier,
        Sandboxes,
        compiler_sandbox,
        gpu_sandbox,
        kernel_sandbox,
        reference_sandbox,
    )

    makers = [(kernel_sandbox, at_once), (compiler_sandbox, at_once)]
    makers += [(gpu_sandbox, at_once), (reference_sandbox, max(1, at_once // 3))] if has_gpu() else []
    tiny, compiler, *boxes = (opened.enter_context(Sandboxes(number, make)) for make, number in makers)
    for pool in (tiny, compiler, *boxes):
        pool.begin()
    verifiers: dict[str, KernelVerifier] = {}
    lock = threading.Lock()

    def judge(file: File) -> bool | None:
        task = file.task
        with lock:
            if task.name not in verifiers:
                gpu = GpuStages(task, *boxes, clock=False) if boxes else None
                verifiers[task.name] = KernelVerifier(task, tiny, compiler=compiler, gpu=gpu)
        try:
            verdict = verifiers[task.name].verify(file.source)
        except UserError:
            return False  # a task that a constant would solve is refused as a whole
        return None if verdict.infrastructure else verdict.accepted

    return judge


def static_checker(peer: Path) -> Judge:
    """KernelBench's own function, with its defaults for Triton."""
    module = load(peer / "src" / "kernelbench" / "kernel_static_checker.py", "kernel_static_checker")

    def judge(file: File) -> bool | None:
        valid, _, _ = module.validate_kernel_static(file.source, backend="triton")
        return bool(valid)

    return judge


def forked(name: str, checkout: Path, at_once: int, opened: contextlib.ExitStack) -> Judge:
    """A peer's own functions, through the interpreter or on a GPU, in a process of its own for each file."""
    free: queue.SimpleQueue[Judge] = queue.SimpleQueue()
    for judge in [one_forked(name, checkout, opened) for _ in range(at_once)]:
        free.put(judge)

    def take(file: File) -> bool | None:
        judge = free.get()
        try:
            return judge(file)
        finally:
            free.put(judge)

    return take


def one_forked(name: str, checkout: Path, opened: contextlib.ExitStack) -> Judge:
    """One process that forks for each file; it is waited for when it is first asked."""
    folder = opened.enter_context(tempfile.TemporaryDirectory())
    program = Path(__file__).with_name("verify_peers_child.py")
    child = subprocess.Popen(
        [sys.executable, str(program), name, str(checkout.resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    opened.callback(child.kill)
    assert child.stdin is not None
    assert child.stdout is not None
    send, receive = child.stdin, child.stdout
    ready: list[bool] = []
    numbers = itertools.count()

    def ask(reference: str, source: str) -> bool | None:
        if not ready:
            ready.append(receive.readline() == "ready\n")
        if not ready[0]:
            raise SystemExit(f"error: {name} did not start: run {program.name} {name} {checkout} to see why")
        number = next(numbers)
        send.write(json.dumps({"number": number, "reference": reference, "source": source}) + "\n")
        send.flush()
        answer = json.loads(receive.readline())
        if answer["number"] != number:
            raise SystemExit(f"error: {name} was asked about file {number} and answers about {answer['number']}")
        return answer["said"]

    def judge(file: File) -> bool | None:
        if name.endswith("-gpu"):
            return ask(file.task.at("full"), file.source)
        source = file.source
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            source = re.sub(r"\b\w+\.is_cuda\b", "True", source)  # `assert x.is_cuda` of honest code must hold here too
        return ask(file.small, source)

    return judge


def load(path: Path, name: str) -> Any:
    """A module from a file, without what it prints."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    return module


def has_gpu() -> bool:
    """Whether KernelBench's evaluation can run."""
    import torch

    return torch.cuda.is_available()


def machine() -> dict[str, str]:
    """What the figures were taken with."""
    import platform

    import torch
    import triton

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": day,
    }


def commit(peer: Path) -> str:
    """Of the peer's checkout, or what its file COMMIT says where it is an export of one."""
    if (peer / "COMMIT").is_file():
        return (peer / "COMMIT").read_text().strip()
    if not (peer / ".git").exists():
        return "unknown"  # what git says there is of a checkout that it lies in
    done = subprocess.run(["git", "-C", str(peer), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
