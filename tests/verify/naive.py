"""A checker as they are often written: same process, fixed seeds, allclose, a clock. It shows that the attacks work.

Run as a program it judges attacks by name and prints one JSON line each: {"name", "correct", "first", "later"}, seconds of
the first call and of later ones. Its holes are the point; nothing in the package uses it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

TOLERANCE = 1e-2
TIMED = 6  # calls
MATCHED = 0.99  # share of elements that must be right
REFERENCE: ModuleType | None = None  # lies open to the candidate, as it does in such checkers


def load(text: str, name: str, folder: Path) -> ModuleType:
    """Imports a text as a module, from a file, since Triton reads kernels from files."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(reference: str, candidate: str, folder: Path, *, trials: int, candidate_first: bool) -> dict[str, Any]:
    """Whether the candidate gives the reference's numbers, and the seconds of its first and of its later calls."""
    import torch

    global REFERENCE
    REFERENCE = load(reference, "reference", folder)
    torch.manual_seed(0)
    model = REFERENCE.Model(*REFERENCE.get_init_inputs())
    torch.manual_seed(0)
    new = load(candidate, "candidate", folder).ModelNew(*REFERENCE.get_init_inputs())
    correct, first = True, 0.0
    for seed in range(trials):
        torch.manual_seed(seed)
        inputs = REFERENCE.get_inputs()
        if candidate_first:
            output = new(*inputs)
            expected = model(*inputs).detach().numpy().copy()
        else:
            expected = model(*inputs).detach().numpy().copy()
            started = time.perf_counter()
            output = new(*inputs)
            first = first or time.perf_counter() - started
        time.sleep(0.02)
        wanted = torch.from_numpy(expected)
        error = (output - wanted).abs()
        wrong = error > TOLERANCE + TOLERANCE * wanted.abs()
        correct = correct and float(wrong.float().mean()) <= 1 - MATCHED
    started = time.perf_counter()
    calls = TIMED if trials == 1 else 1
    for _ in range(calls):
        new(*inputs)
    return {"correct": bool(correct), "first": first, "later": (time.perf_counter() - started) / calls}


def judge(attack: Any) -> dict[str, Any]:
    """Forks a process that checks one attack, and believes the last line it prints, or else its exit code."""
    from windtunnel.verify.kernel.task import with_numbers

    reference = with_numbers(attack.task.source, {**attack.task.sizes["tiny"], **attack.sizes})
    folder = Path(tempfile.mkdtemp())
    said = folder / "said"
    child = os.fork()
    if child == 0:  # no `with` and no `finally` around this: a candidate may end the process as it likes
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        trials = 1 if attack.naive in ("one-trial", "fast") else 3
        print(
            json.dumps(check(reference, attack.source, folder, trials=trials, candidate_first=attack.naive == "order")),
            flush=True,
        )
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    lines = [line for line in said.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    answer = json.loads(lines[-1]) if lines else {"correct": os.waitstatus_to_exitcode(status) == 0}
    shutil.rmtree(folder)
    Path("/tmp/kept-answer.pt").unlink(missing_ok=True)  # what attack 33 leaves
    return {"name": attack.name, **answer}


def main(names: list[str]) -> None:
    """Judges the attacks named, each in a process of its own."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(Path(__file__).parent))
    import torch
    import triton  # noqa: F401  (forked children have it then)
    from attacks.suite import suite

    torch.set_num_threads(1)
    attacks = {attack.name: attack for attack in suite()}
    for name in names:
        print(json.dumps(judge(attacks[name])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
