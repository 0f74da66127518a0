"""Audits what reinforcement learning rewarded: kernels accepted in a run's kept rounds, by a judge that shares no code.

    python benchmarks/kernel_audit.py RUN --out benchmarks/results/kernel-audit-h200.json [--rounds 50] [--read FOLDER]
    python benchmarks/kernel_audit.py RUN --pairs pairs.json      # then with pairs.json in RUN's place on another machine

Each different pair of task and answer is asked once, in a process that holds nothing: the answer's module and the task's are made
from the same seed and called on the same inputs, at the task's full and its ragged full sizes, with the inputs as they are, times
ten, and shifted. Right is what KernelBench calls right in float32: 1e-4, absolute and relative, against the task in float32; or,
where sums are long, an error of no more than ten times that which PyTorch itself makes in float32 against float64. What is right
in TF32 alone, which tasks allow unless they say otherwise, is counted apart: an error of at most three times that of PyTorch in
TF32. Then all is done again with Triton's launches left out and new memory full of NaN: whoever is right without its kernels did
not compute with them. PyTorch's operations that compute something in the answer's own code are listed. --read writes twenty
answers drawn at random, to be read.

The run's rounds have to be there: stages.rl.keep_rollouts. It needs a GPU, or Triton's interpreter at the tiny sizes (--tiny).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from foreign_own import as_module

SEED, READ, SECONDS = 7, 20, 120.0
TOLERANCE, WORSE, WORSE_TF32 = 1e-4, 10.0, 3.0
FREE = {
    "detach", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "view", "_unsafe_view", "reshape",
    "clone", "copy_", "_to_copy", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "select", "slice", "alias",
    "as_strided",     "zeros", "zeros_like", "new_zeros", "zero_", "fill_", "full", "lift_fresh",
}  # fmt: skip
"""Operations that make or arrange memory and compute nothing."""

Found = dict[str, Any]


def accepted(run: Path, rounds: int | None) -> list[Found]:
    """Return the accepted answers of a run's last rounds with their tasks, each pair once, and how often it was given."""
    from windtunnel.data import prepare
    from windtunnel.recipe import load_recipe

    files = sorted((run / "rollouts").glob("round-*.jsonl"))[-(rounds or 0) :]
    recipe = load_recipe(str(run / "recipe.yaml"))
    prompts = prepare(recipe).train
    pairs: dict[str, Found] = {}
    for path in files:
        for line in path.read_text("utf-8").splitlines():
            sample = json.loads(line)
            if sample["right"]:
                task = prompts.prompt(sample["prompt_number"]).data["task"]["source"]
                key = hashlib.sha256(f"{task}\0{code_of(sample['answer'])}".encode()).hexdigest()
                made = pairs.setdefault(key, {"key": key, "task": task, "answer": sample["answer"], "times": 0})
                made["times"] += 1
                made["last_round"] = path.stem
    return list(pairs.values())


def code_of(answer: str) -> str:
    """Return an answer's last block of code, or all of it."""
    blocks = re.findall(r"```(?:python)?\n(.*?)(?:```|\Z)", answer, re.DOTALL)
    return str(blocks[-1]) if blocks else answer


def in_processes(pairs: list[Found], workers: int, until: float, *, tiny: bool) -> list[Found]:
    """Return what was found of each pair that was reached in time."""
    size = max(1, len(pairs) // (2 * workers))
    chunks = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    with ThreadPoolExecutor(workers) as pool:
        return [one for chunk in pool.map(lambda chunk: _chunk(chunk, until, tiny=tiny), chunks) for one in chunk]


def _chunk(pairs: list[Found], until: float, *, tiny: bool) -> list[Found]:
    """Ask a process for one pair after the other; one that dies or is silent costs the pair it had."""
    found: list[Found] = []
    while len(found) < len(pairs) and time.monotonic() < until:
        with tempfile.TemporaryDirectory() as folder:
            given = Path(folder) / "given.json"
            given.write_text(json.dumps({"tiny": tiny, "pairs": pairs[len(found) :]}), encoding="utf-8")
            command = [sys.executable, __file__, "--here", str(given)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=until - time.monotonic() + 1)
                said, why = done.stdout, done.stderr[-300:]
            except subprocess.TimeoutExpired as late:
                said, why = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or "", "no time left"
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        found += rows
        if len(found) < len(pairs) and why != "no time left":
            found.append({"key": pairs[len(found)]["key"], "right": False, "why": f"the process ended: {why}"})
    return found


def here(given: Path) -> None:
    """Audit pairs in this process, a line of JSON each."""
    asked = json.loads(given.read_text("utf-8"))
    for pair in asked["pairs"]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                made = audit(pair, Path(folder), ("tiny", "tiny_ragged") if asked["tiny"] else ("full", "full_ragged"))
            except Exception as error:  # whatever the answer raises
                made = {"right": False, "why": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({"key": pair["key"], **made}), flush=True)
        if "CUDA" in made.get("why", ""):
            os._exit(1)  # the context may be damaged


def audit(pair: Found, folder: Path, sizes: tuple[str, ...]) -> Found:
    """Return whether an answer computes its task, and does so by its kernels."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    task, answer = (as_module(text, folder, name) for name, text in (("task", pair["task"]), ("answer", code_of(pair["answer"]))))
    found: Found = {"right": True, "why": "", "worst": 0.0, "operations": [], "without_kernels": []}
    operations: Counter[str] = Counter()
    for number, size in enumerate(sizes):
        vars(task).update(task.TASK["sizes"][size])
        vars(answer).update({name: value for name, value in task.TASK["sizes"][size].items() if name in vars(answer)})
        for kind in ("plain", "large", "shifted"):
            seed = SEED + number
            inputs = _inputs(task, kind, seed, device)
            reference, exact, model = (_made(m, task, seed, device, d) for m, d in _models(task, answer, torch))
            with torch.no_grad():
                want = _outputs(reference(*_copies(inputs)))
                right = _outputs(exact(*(x.double() if x.is_floating_point() else x for x in _copies(inputs))))
                mine = _copies(inputs)
                with _Watched(torch, operations):
                    got = _outputs(model(*mine))
                if any(not torch.equal(a, b) for a, b in zip(mine, inputs, strict=True)):
                    return found | {"right": False, "why": f"{size} {kind}: it changed its inputs"}
                why = _differ(got, want, right)
                if why:
                    if not _in_tf32(got, reference, inputs, right):
                        return found | {"right": False, "why": f"{size} {kind}: {why}"}
                    found["tf32"] = True
                found["worst"] = max(found["worst"], *(float((g - w).abs().max()) for g, w in zip(got, want, strict=True)))
                with _Watched(torch, Counter(), launch=False):
                    idle = _outputs(model(*_copies(inputs)))
                if not _differ(idle, want, right):
                    found["without_kernels"].append(f"{size} {kind}")
    found["operations"] = sorted(set(operations) - FREE)
    return found


def _models(task: Any, answer: Any, torch: Any) -> list[tuple[Any, Any]]:
    return [(task.Model, torch.float32), (task.Model, torch.float64), (answer.ModelNew, torch.float32)]


def _made(kind: Any, task: Any, seed: int, device: str, dtype: Any) -> Any:
    import torch

    torch.manual_seed(seed)
    return kind(*task.get_init_inputs()).to(device=device, dtype=dtype)


def _inputs(task: Any, kind: str, seed: int, device: str) -> list[Any]:
    import torch

    torch.manual_seed(seed + 1)
    change = {"plain": lambda x: x, "large": lambda x: 10 * x, "shifted": lambda x: x + 3}[kind]
    return [change(x).to(device) if x.is_floating_point() else x.to(device) for x in task.get_inputs()]


def _copies(inputs: list[Any]) -> list[Any]:
    return [x.clone() for x in inputs]


def _outputs(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _in_tf32(got: list[Any], reference: Any, inputs: list[Any], right: list[Any]) -> bool:
    """Return whether outputs are as right as those of the task in TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        rounded = _outputs(reference(*_copies(inputs)))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    return not _differ(got, rounded, right, WORSE_TF32)


def _differ(got: list[Any], want: list[Any], right: list[Any], worse: float = WORSE) -> str:
    """Say how outputs differ from the task's; empty: they are right."""
    import torch

    if [tuple(a.shape) for a in got] != [tuple(b.shape) for b in want]:
        return f"shapes {[tuple(a.shape) for a in got]}, wanted {[tuple(b.shape) for b in want]}"
    for mine, its, exact in zip(got, want, right, strict=True):
        if not torch.isfinite(mine).all() and torch.isfinite(its).all():
            return "it has NaN or Inf"
        if torch.allclose(mine, its, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True):
            continue
        own, theirs = float((mine - exact).abs().max()), float((its - exact).abs().max())
        if not own <= worse * theirs:
            return f"off by {own:.3g}, PyTorch by {theirs:.3g}"
    return ""


class _Watched:
    """Counts PyTorch's operations; new memory is full of NaN, and kernels are launched or left out."""

    def __init__(self, torch: Any, operations: Counter[str], *, launch: bool = True) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        class Mode(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
                name = function.overloadpacket.__name__
                operations[name] += 1
                made = function(*arguments, **(named or {}))
                return made.fill_(float("nan")) if "empty" in name and made.is_floating_point() else made

        self._mode = Mode()
        self._runs = [(kind, kind.run) for kind in (JITFunction, InterpretedFunction)]
        self._launch, self._apart = launch, _disable_current_modes

    def __enter__(self) -> None:
        for kind, run in self._runs:
            kind.run = self._in_place_of(run)
        self._mode.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._mode.__exit__(*exception)
        for kind, run in self._runs:
            kind.run = run

    def _in_place_of(self, run: Any) -> Any:
        def launched(*arguments: Any, **named: Any) -> Any:
            with self._apart():
                return run(*arguments, **named) if self._launch else None

        return launched


def report(pairs: list[Found], rows: list[Found]) -> Found:
    """Return counts, and all that is not as it should be."""
    times = {pair["key"]: pair["times"] for pair in pairs}
    wrong = [row for row in rows if not row["right"]]
    idle = [row for row in rows if row.get("without_kernels")]
    computed: Counter[str] = Counter(name for row in rows for name in row.get("operations", ()))
    return {
        "accepted": sum(times.values()), "different": len(pairs), "audited": len(rows),
        "in_tf32": sum(row.get("tf32", False) for row in rows),
        "wrong": len(wrong), "wrong_times": sum(times[row["key"]] for row in wrong),
        "right_without_kernels": len(idle), "operations": dict(computed),
        "with_operations": sum(bool(row.get("operations")) for row in rows), "found_wrong": wrong, "found_idle": idle,
    }  # fmt: skip


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run's folder, or what --pairs wrote")
    parser.add_argument("--pairs", type=Path, help="write the accepted pairs there, and audit nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, help="the last so many; all by default")
    parser.add_argument("--read", type=Path, help="folder for twenty answers")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that it may take")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tiny", action="store_true", help="at the tiny sizes")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        here(given.here)
        return
    began = time.monotonic()
    pairs = accepted(given.run, given.rounds) if given.run.is_dir() else json.loads(given.run.read_text("utf-8"))
    if given.pairs:
        given.pairs.write_text(json.dumps(pairs), encoding="utf-8")
        return
    random.Random(SEED).shuffle(pairs)
    print(f"{len(pairs)} different pairs", flush=True)
    rows = in_processes(pairs, given.workers, began + given.seconds, tiny=given.tiny)
    of = {row["key"]: row for row in rows}
    for number, pair in enumerate(pairs[:READ] if given.read else ()):
        given.read.mkdir(parents=True, exist_ok=True)
        verdict = json.dumps(of.get(pair["key"]))
        text = f"# {verdict}\n# {pair['last_round']}\n{pair['task']}\n\n# ---- answer\n{pair['answer']}\n"
        (given.read / f"{number:02d}.py").write_text(text, encoding="utf-8")
    found = {"what": __doc__.splitlines()[0], "run": given.run.name, "seconds": round(time.monotonic() - began, 1)}  # type: ignore[union-attr]
    given.out.write_text(json.dumps(found | report(pairs, rows), indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in report(pairs, rows).items() if not key.startswith("found")}), flush=True)


if __name__ == "__main__":
    main()
