"""Record what a change to the trainer must not alter, or compare with a record: 60 steps of each shipped recipe.

    python benchmarks/golden.py record --out benchmarks/results/golden-cpu.json
    python benchmarks/golden.py check benchmarks/results/golden-cpu.json     # exit 1 where a number differs
    python benchmarks/golden.py check RECORD --src /path/to/other/checkout/src

Losses, gradient norms and learning rates of charlm, trm and trm-sudoku, made small by the values below (on a GPU a
size that fills it), each trained once without a break and once killed with SIGKILL after its first checkpoint and
resumed. Floating-point sums differ between processors, so a record holds for the machine that it was made on: make
one from the old code and check the new code beside it. With --gpu everything runs deterministically on one GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import yaml

SERIES = ("loss", "gradient_norm", "learning_rate", "validation_loss")
STEPS = 60

CHARLM = {
    "extends": "charlm",
    "model": {"depth": 2, "aspect": 32, "head_dim": 16, "sequence": 64},
    "data": {"corpus": {"kind": "arithmetic", "documents": 4000, "digits": 3, "terms": 2}, "validation": 0.02},
    "stages": {"pretrain": {"batch_tokens": 2048, "micro_batch": 8}},
}
TRM = {
    "model": {
        "kind": "gpt", "depth": 2, "aspect": 32, "head_dim": 16, "mlp": "swiglu", "sequence": 64, "value_embeddings": False,
    },
    "trm": {"scheme": "layerwise", "preset": "aggressive", "loops": 2, "cycles": 1, "supervision": 3},
    "data": {
        "corpus": {"kind": "stdlib", "megabytes": 0.3}, "tokenizer": {"kind": "bpe", "vocab_size": 512}, "validation": 0.1,
    },
    "stages": {"pretrain": {"batch_tokens": 1024, "micro_batch": 8}},
}  # fmt: skip
SUDOKU = {
    "extends": "trm-sudoku",
    "model": {"aspect": 16, "head_dim": 16, "sequence": 16},
    "data": {"corpus": {"kind": "sudoku", "box": 2, "puzzles": 300, "grade": "easy"}, "validation": 0.1},
    "stages": {"pretrain": {"batch_tokens": 512, "micro_batch": 16}},
    "trm": {"supervision": 4},
}
COMMON = {"budget": {"hours": None, "steps": STEPS}, "checkpoints": {"every": "15 steps"}}
CPU: dict[str, dict[str, Any]] = {"charlm": CHARLM, "trm": TRM, "trm-sudoku": SUDOKU}
# One GPU: twelve layers as shipped, steps of 64 sequences; the puzzles as shipped.
GPU: dict[str, dict[str, Any]] = {
    "charlm": CHARLM | {"model": {"depth": 12}, "stages": {"pretrain": {"batch_tokens": 131072, "micro_batch": 16}}},
    "charlm-fp8": CHARLM
    | {"model": {"depth": 12}, "stages": {"pretrain": {"batch_tokens": 131072, "micro_batch": 16, "precision": "fp8"}}},
    "trm": TRM
    | {
        "model": TRM["model"] | {"depth": 6, "aspect": 64, "head_dim": 64, "sequence": 512},  # type: ignore[operator]
        "stages": {"pretrain": {"batch_tokens": 32768, "micro_batch": 16}},
    },
    "trm-sudoku": {
        "extends": "trm-sudoku",
        "data": {"corpus": {"kind": "sudoku", "puzzles": 2000}},
        "stages": {"pretrain": {"batch_tokens": 41472}},
    },
}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another, section by section."""
    both = {k: merged(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v for k, v in over.items()}
    return {**base, **both}


def write_recipe(folder: Path, name: str, content: dict[str, Any]) -> Path:
    every = {"stages": {"pretrain": {"validate_every": "15 steps", "validation_tokens": 4096}}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(merged(merged(every, content), COMMON) | {"name": name}, sort_keys=False))
    return path


def train(recipe: Path, root: Path, src: Path, *arguments: str, kill: bool = False) -> Path:
    """Run to the end, or kill after the first checkpoint; the run's folder."""
    command = [sys.executable, "-m", "windtunnel", "train", str(recipe), "--root", str(root), "--yes", "--json", *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{src}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "2"}
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "log", "a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        if kill:
            while process.poll() is None and not list(root.glob("*/checkpoints/step-????????")):
                time.sleep(0.01)
            for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                each.kill()  # training goes on in a process of its own when only the command dies
            process.wait()
        elif process.wait():
            raise SystemExit(f"windtunnel train {recipe} ended with {process.returncode}:\n{(root / 'log').read_text()[-3000:]}")
    return max((p for p in root.iterdir() if p.is_dir()), key=lambda p: p.name)


def series(run: Path) -> dict[str, dict[str, str]]:
    """Every recorded value as hexadecimal, so that the comparison is of bits."""
    with sqlite3.connect(run / "metrics.sqlite") as database:
        rows = database.execute("select name, step, value from points join series on series = series.id").fetchall()
    found: dict[str, dict[str, str]] = {name: {} for name in SERIES}
    for name, step, value in rows:
        if name in found:
            found[name][str(step)] = float(value).hex()
    return {name: dict(sorted(values.items(), key=lambda item: int(item[0]))) for name, values in found.items()}


def case(name: str, content: dict[str, Any], folder: Path, src: Path, whole_only: bool) -> dict[str, Any]:
    """Train one case without a break and, unless told otherwise, once more with a kill and a resume."""
    recipe = write_recipe(folder, name, content)
    whole = series(train(recipe, folder / f"{name}-whole", src))
    assert len(whole["loss"]) == STEPS, f"{name}: {len(whole['loss'])} steps"
    found: dict[str, Any] = {"series": whole}
    if not whole_only:
        killed = train(recipe, folder / f"{name}-killed", src, kill=True)
        found["killed_after"] = len(series(killed)["loss"])
        found["resumed_equals_whole"] = series(train(recipe, folder / f"{name}-killed", src, "--run", str(killed))) == whole
    last = float.fromhex(whole["loss"][str(STEPS)])
    print(f"{name:<12} last loss {last:.4f}", *(f"{k}: {v}" for k, v in found.items() if k != "series"), flush=True)
    return found


def record(src: Path, gpu: bool, jobs: int, whole_only: bool) -> dict[str, Any]:
    """Train every case, `jobs` at a time."""
    with tempfile.TemporaryDirectory(prefix="golden-") as work, ThreadPoolExecutor(jobs) as pool:
        folder = Path(work)
        os.environ["WINDTUNNEL_CACHE"] = str(folder / "cache")
        cases = GPU if gpu else CPU
        begun = {name: pool.submit(case, name, content, folder, src, whole_only) for name, content in cases.items()}
        return {name: future.result() for name, future in begun.items()}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line for each series that is not the same to the last bit."""
    found = [f"{name}: a killed and resumed run differs" for name in new if not new[name].get("resumed_equals_whole", True)]
    for name in old.keys() | new.keys():
        for key in SERIES:
            a, b = (side.get(name, {}).get("series", {}).get(key, {}) for side in (old, new))
            steps = [int(step) for step in a.keys() | b.keys() if a.get(step) != b.get(step)]
            if steps:
                at = str(min(steps))
                values = [float.fromhex(side[at]) if at in side else None for side in (a, b)]
                found.append(f"{name}: {key} differs in {len(steps)} steps, first at {at}: {values[0]} became {values[1]}")
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("record", type=Path, nargs="?", help="the JSON file to check against")
    parser.add_argument("--src", type=Path, default=Path(__file__).parent.parent / "src", help="the code to run")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--whole-only", action="store_true", help="no kill and resume")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import torch

    found = record(args.src.resolve(), args.gpu, args.jobs, args.whole_only)
    report = {
        "what": f"{STEPS} steps of each shipped recipe",
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if args.gpu else platform.processor() or platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "cases": found,
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    if args.what == "check":
        problems = differences(json.loads(args.record.read_text())["cases"], found)
        print("\n".join(problems) or "the same, bit for bit")
        sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
