"""The same attack and honest files before other public checkers, as far as each runs on this machine.

    PEER=/path/to/KernelBench .venv/bin/python benchmarks/verify_peers.py --out benchmarks/results/verify-peers-cpu.json

Peers: KernelBench's static checker (its text rules for Triton) and its evaluation, which needs an NVIDIA GPU and runs there with
five trials. Beside them stand our text rules alone, the counterpart of a static checker, and with --funnel every stage that this
machine can run. A file that a judge could not judge is counted as such, never as passed or refused.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUITES = ROOT / "tests" / "verify"
Judge = Callable[[str, Any], bool | None]


def main() -> None:
    """Judge every file by every peer and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "verify-peers-cpu.json")
    parser.add_argument(
        "--peer", type=Path, default=Path(os.environ.get("PEER", "KernelBench")), help="a checkout of KernelBench"
    )
    parser.add_argument("--funnel", action="store_true", help="also every stage of ours (minutes)")
    options = parser.parse_args()
    if not (options.peer / "src" / "kernelbench").is_dir():
        sys.exit(
            f"error: {options.peer} is no checkout of KernelBench\n"
            "  fix: --peer FOLDER, from github.com/ScalingIntelligence/KernelBench"
        )
    sys.path.insert(0, str(SUITES))
    attacks, honest = read_attacks(), read_honest()
    judges: dict[str, Judge] = {"kernelbench static checker": static_checker(options.peer)}
    if has_gpu():
        judges["kernelbench evaluation"] = evaluation(options.peer)
    judges["windtunnel, text alone"] = ours
    with contextlib.ExitStack() as opened:
        if options.funnel:
            judges["windtunnel"] = funnel(opened)
        table = {name: count(judge, attacks, honest) for name, judge in judges.items()}
    result = {
        "machine": machine(),
        "peer_commit": commit(options.peer),
        "attacks": len(attacks),
        "honest": len(honest),
        "judges": table,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, row in table.items():
        counts = {key: value for key, value in row.items() if isinstance(value, int)}
        print(f"{name}: {counts}")


def read_attacks() -> list[tuple[str, str, Any]]:
    """(name, source, task) of every attack file."""
    from windtunnel.verify import find_task, load_task

    found = []
    for file in sorted((SUITES / "attacks" / "files").glob("*.py")):
        source = file.read_text()
        named = re.search(r"^# task: (.*)$", source, re.MULTILINE)
        assert named is not None, file
        name = named.group(1).strip()
        task = load_task(SUITES / "attacks" / "tasks" / name[5:]) if name.startswith("file:") else find_task(name)
        found.append((file.stem, source, task))
    return found


def read_honest() -> list[tuple[str, str, Any]]:
    """(name, source, task) of every honest candidate."""
    from honest.suite import suite

    from windtunnel.verify import find_task

    return [(entry.name, entry.source, find_task(entry.task)) for entry in suite()]


def count(judge: Judge, attacks: list[tuple[str, str, Any]], honest: list[tuple[str, str, Any]]) -> dict[str, Any]:
    """How many of each kind a judge accepts, refuses or cannot judge, and the names that it gets wrong."""
    row: dict[str, Any] = {}
    for kind, files, wrong in (("attacks", attacks, True), ("honest", honest, False)):
        said = {name: judge(source, task) for name, source, task in files}
        row[f"{kind}_accepted"] = sum(answer is True for answer in said.values())
        row[f"{kind}_refused"] = sum(answer is False for answer in said.values())
        row[f"{kind}_not_judged"] = sum(answer is None for answer in said.values())
        row[f"{kind}_wrong"] = [name for name, answer in said.items() if answer is wrong]
    return row


def ours(source: str, task: Any) -> bool | None:
    """The allow-list and dataflow alone, as the counterpart of a static checker."""
    from windtunnel.verify import check_source

    return check_source(source, task) is None


def funnel(opened: contextlib.ExitStack) -> Judge:
    """Every stage that this machine can run; the full and timing stages where there is a GPU."""
    from windtunnel.recipe import UserError
    from windtunnel.verify import GpuStages, KernelVerifier, compiler_sandbox, gpu_sandbox, kernel_sandbox, reference_sandbox

    tiny, compiler = opened.enter_context(kernel_sandbox()), opened.enter_context(compiler_sandbox())
    boxes = [opened.enter_context(make()) for make in (gpu_sandbox, reference_sandbox)] if has_gpu() else []
    verifiers: dict[str, KernelVerifier] = {}

    def judge(source: str, task: Any) -> bool | None:
        if task.name not in verifiers:
            gpu = GpuStages(task, *boxes) if boxes else None
            verifiers[task.name] = KernelVerifier(task, tiny, compiler=compiler, gpu=gpu)
        try:
            verdict = verifiers[task.name].verify(source)
        except UserError:
            return False  # a task that a constant would solve is refused as a whole
        return None if verdict.infrastructure else verdict.accepted

    return judge


def static_checker(peer: Path) -> Judge:
    """KernelBench's own function, with its defaults for Triton."""
    module = load(peer / "src" / "kernelbench" / "kernel_static_checker.py", "kernel_static_checker")

    def judge(source: str, task: Any) -> bool | None:
        valid, _, _ = module.validate_kernel_static(source, backend="triton")
        return bool(valid)

    return judge


def evaluation(peer: Path) -> Judge:
    """KernelBench's own evaluation in a process of its own for each file: it runs the candidate unprotected."""
    program = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); from kernelbench.eval import eval_kernel_against_ref;"
        "ref, new = json.load(sys.stdin);"
        "r = eval_kernel_against_ref(ref, new, num_correct_trials=5, measure_performance=False, backend='triton', device=0);"
        "print('JUDGED', json.dumps(bool(r and r.compiled and r.correctness)))"
    )

    def judge(source: str, task: Any) -> bool | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [sys.executable, "-c", program, str(peer / "src")],
                input=json.dumps([task.at("full"), source]),
                capture_output=True,
                text=True,
                timeout=120,
            )
            said = re.search(r"^JUDGED (true|false)$", done.stdout, re.MULTILINE)
            return None if said is None else said.group(1) == "true"
        return None

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
    import datetime
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
    """Of the peer's checkout, if it is one."""
    done = subprocess.run(["git", "-C", str(peer), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
