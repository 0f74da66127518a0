"""Whether a kernel that nobody here wrote is right by KernelBench's own rule: what counts as an honest one.

    echo '{"task": TEXT, "answer": TEXT, "dtype": "float32", "device": "cuda", "trials": 3}' | python benchmarks/foreign_own.py

It prints {"right": true or false, "loosely": by 1e-2, its first version's, "why": what is wrong}. The rule is that of
`run_and_check_correctness` in github.com/ScalingIntelligence/KernelBench, src/kernelbench/eval.py: both modules made and
called after the same seed, in training mode, without gradients; the same shape, and torch.allclose with 1e-4 in float32, 1e-2
in fewer bits, relative and absolute. The answer runs here as it is, outside of any sandbox: only on a machine that holds
nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
FIRST_TOLERANCE = 1e-2
SECONDS = 60


def asked(task: str, answer: str, dtype: str, device: str = "cuda", trials: int = 3) -> dict[str, Any]:
    """What the rule says, from a process of its own."""
    given = json.dumps({"task": task, "answer": answer, "dtype": dtype, "device": device, "trials": trials})
    try:
        done = subprocess.run(
            [sys.executable, __file__], input=given, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"right": None, "loosely": None, "why": f"no answer in {SECONDS} s"}
    except (IndexError, ValueError):
        return {"right": False, "loosely": False, "why": f"the process ended with {done.returncode}: {done.stderr[-200:]}"}


def main() -> None:
    """Answer one question."""
    given = json.loads(sys.stdin.read())
    found: dict[str, Any] = {"right": True, "loosely": True, "why": ""}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for trial in range(given["trials"]):
                found = _trial(given, folder, 42 + trial)
                if not found["right"]:
                    break
        except Exception as error:  # whatever the answer raises
            found = {"right": False, "loosely": False, "why": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(found))


def _trial(given: dict[str, Any], folder: str, seed: int) -> dict[str, Any]:
    import torch

    task, answer = (as_module(given[name], folder, name) for name in ("task", "answer"))
    dtype, device = getattr(torch, given["dtype"]), given["device"]

    def made(of: Any) -> Any:
        torch.manual_seed(seed)
        return of(*init).to(device=device, dtype=dtype)

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=dtype) if value.is_floating_point() else value.to(device=device)

    torch.manual_seed(seed)
    init = [placed(value) for value in task.get_init_inputs()]
    with torch.no_grad():
        reference, model = made(task.Model), made(answer.ModelNew)
        torch.manual_seed(seed)
        inputs = [placed(value) for value in task.get_inputs()]
        pairs = list(zip(*(_outputs(one(*inputs)) for one in (reference, model)), strict=True))
        worst = max(
            (float((a.double() - b.double()).abs().max()) for a, b in pairs if a.shape == b.shape and a.numel()), default=0.0
        )
    shapes = [(tuple(a.shape), tuple(b.shape)) for a, b in pairs if a.shape != b.shape]
    if shapes:
        return {"right": False, "loosely": False, "why": f"shape {shapes[0][1]}, expected {shapes[0][0]}"}
    close = [
        all(torch.allclose(a.float(), b.float(), atol=most, rtol=most) for a, b in pairs)
        for most in (TOLERANCE[given["dtype"]], FIRST_TOLERANCE)
    ]
    return {"right": close[0], "loosely": close[1], "why": "" if close[0] else f"off by up to {worst:.3g}"}


def _outputs(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def as_module(text: str, folder: str | Path, name: str) -> Any:
    """Return a text as a module of that name, in a file in the folder: Triton reads its kernels' sources there."""
    import importlib.util

    path = Path(folder, f"{name}.py")
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
