"""`windtunnel train` on real GPUs: scaling, stalls by checkpoints, the same bits after a SIGKILL, fp8 beside bf16.

    python benchmarks/training.py scaling --out benchmarks/results/scaling-h200.json          # depth 24
    python benchmarks/training.py checkpoints --out benchmarks/results/checkpoints-h200.json  # depth 24
    python benchmarks/training.py resume --out benchmarks/results/resume-h200.json            # depth 8
    python benchmarks/training.py precision --out benchmarks/results/precision-h200.json      # depth 12

Text is Python's standard library, BPE with 32,768 tokens, sequences of 2,048, a step of 4 x 16
sequences a rank. Needs about 40 GB of free disk under --root.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.run import MetricsReader, RunFolder

STEP_TOKENS = 4 * 16 * 2048
KEYS = {
    "data.corpus.kind": "stdlib",
    "data.corpus.megabytes": 20,
    "data.tokenizer.kind": "bpe",
    "data.tokenizer.vocab_size": 32768,
    "budget.hours": "null",
    "checkpoints.keep_last": 1,
    "checkpoints.keep_best": 0,
    "checkpoints.keep_hourly": "false",
    "stages.pretrain.micro_batch": 16,
    "stages.pretrain.validation_tokens": 65536,
    "stages.pretrain.validate_every": "1000 steps",
}
WARM = 8  # steps not counted


def start(root: Path, keys: dict[str, Any], *arguments: str) -> subprocess.Popen[bytes]:
    """`windtunnel train charlm` with overrides, its output beside the runs."""
    root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "windtunnel", "train", "charlm", "--root", str(root), "--yes", "--json", *arguments]
    for key, value in (KEYS | keys).items():
        command += ["--set", f"{key}={value}"]
    with open(root.with_suffix(".log"), "a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def train(root: Path, keys: dict[str, Any], *arguments: str) -> Path:
    """Run to the end; the run's folder."""
    code = start(root, keys, *arguments).wait()
    if code:
        raise SystemExit(f"windtunnel train ended with {code}: see {root.with_suffix('.log')}")
    return newest(root)


def newest(root: Path) -> Path:
    return max((p for p in root.iterdir() if p.is_dir()), key=lambda p: p.name)


def series(run: Path, name: str) -> dict[int, float]:
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        return {point.step: point.value for point in reader.series(name)}


def summary(run: Path) -> dict[str, Any]:
    """Medians of a run after its first steps, beside what was planned."""
    seconds = series(run, "step_seconds")
    plan = RunFolder.open(run).manifest["plan"]
    step = statistics.median(v for k, v in seconds.items() if k > WARM)
    found: dict[str, Any] = {
        "layout": plan["layout"], "step_seconds": step, "tokens_per_second": plan["layout"]["batch_tokens"] / step,
        "planned_step_seconds": plan["step_seconds"], "planned_peak_gib": plan["peak_gib"],
        "all_step_seconds": list(seconds.values()),
    }  # fmt: skip
    for name in ("mfu", "memory_gib", "gpu_utilisation", "data_wait_share"):
        values = list(series(run, name).values())[WARM:]
        found[name] = statistics.median(values) if values else None
    return found


def scaling(root: Path, deterministic: bool) -> dict[str, Any]:
    """Tokens per second on all GPUs of the machine and on one."""
    import torch

    count = torch.cuda.device_count()
    runs = {}
    for gpus in (count, 1):
        keys = {"model.depth": 24, "budget.steps": 30, "stages.pretrain.batch_tokens": STEP_TOKENS * gpus}
        keys |= {"checkpoints.every": "1000 steps", "stages.pretrain.deterministic": str(deterministic).lower()}
        runs[gpus] = summary(train(root / f"gpus-{gpus}", keys, "--gpus", str(gpus)))
    efficiency = runs[count]["tokens_per_second"] / runs[1]["tokens_per_second"] / count
    return {"runs": runs, "gpus": count, "efficiency": efficiency}


def checkpoints(root: Path, deterministic: bool) -> dict[str, Any]:
    """What an asynchronous save adds to the steps beside it, at depth 24."""
    every = 25
    keys = {"model.depth": 24, "budget.steps": 2 * every + 16, "stages.pretrain.batch_tokens": STEP_TOKENS}
    keys |= {"checkpoints.every": f"{every} steps", "stages.pretrain.deterministic": str(deterministic).lower()}
    run = train(root / "checkpoints", keys)
    seconds = series(run, "step_seconds")
    beside = {save: range(save + 1, save + 11) for save in (every, 2 * every)}
    quiet = statistics.median(v for k, v in seconds.items() if k > WARM and not any(k in steps for steps in beside.values()))
    stalls = [sum(seconds[k] - quiet for k in steps) for steps in beside.values()]
    folder = RunFolder.open(run)
    with MetricsReader(folder.metrics_path) as reader:
        saves = [event.message for event in reader.events() if event.message.startswith("saved ")]
    return summary(run) | {
        "saves": saves,
        "quiet_step_seconds": quiet,
        "stall_seconds": stalls,
        "stall_share_of_step": [s / quiet for s in stalls],
        "stall_share_of_time_at_one_save_a_minute": [s / 60 for s in stalls],
    }


def resume(root: Path, deterministic: bool) -> dict[str, Any]:
    """Whether two runs at depth 8 agree bit for bit, and one that is killed after its first checkpoint and resumed."""
    keys = {"model.depth": 8, "budget.steps": 60, "stages.pretrain.batch_tokens": STEP_TOKENS, "checkpoints.every": "20 steps"}
    keys["stages.pretrain.deterministic"] = str(deterministic).lower()
    whole, again = (series(train(root / name, keys), "loss") for name in ("whole", "again"))
    process = start(root / "killed", keys)
    while process.poll() is None and not list((root / "killed").glob("*/checkpoints/step-????????")):
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = newest(root / "killed")
    reached = max(series(killed, "loss"))
    resumed = series(train(root / "killed", keys, "--run", str(killed)), "loss")
    exact = {"two_runs": whole == again, "killed_and_resumed": resumed == whole}
    return exact | {"steps": len(whole), "killed_after_step": reached, "final_loss": whole[max(whole)]}


def precision(root: Path, deterministic: bool, names: tuple[str, ...] = ("bf16", "fp8")) -> dict[str, Any]:
    """The losses of the same run at depth 12 in each precision, and what `windtunnel evaluate` says of its checkpoint."""
    keys = {"model.depth": 12, "budget.steps": 60, "stages.pretrain.batch_tokens": STEP_TOKENS}
    keys |= {"checkpoints.every": "1000 steps", "stages.pretrain.deterministic": str(deterministic).lower()}
    found: dict[str, Any] = {}
    for name in names:
        run = train(root / name, keys | {"stages.pretrain.precision": name})
        command = [sys.executable, "-m", "windtunnel", "evaluate", str(run), "--json"]
        evaluated = subprocess.run(command, capture_output=True, text=True)
        if evaluated.returncode:
            raise SystemExit(f"windtunnel evaluate {run} ended with {evaluated.returncode}: {evaluated.stderr}")
        losses = list(series(run, "loss").values())
        found[name] = {
            "layout": RunFolder.open(run).manifest["plan"]["layout"],
            "memory_gib": statistics.median(series(run, "memory_gib").values()),
            "losses": losses,
            "mean_of_last_10_losses": statistics.fmean(losses[-10:]),
            "evaluation": json.loads(evaluated.stdout),
        }
    first, second = (found[name]["mean_of_last_10_losses"] for name in names)
    return {"runs": found, "difference_of_last_10_losses": second - first}


MEASURES: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "scaling": scaling,
    "checkpoints": checkpoints,
    "resume": resume,
    "precision": precision,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(MEASURES))
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()) / "windtunnel-benchmark")
    parser.add_argument("--nondeterministic", action="store_true", help="cuDNN's attention where FlashAttention-4 is missing")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    import torch

    root = args.root / str(os.getpid())
    measured = MEASURES[args.what](root, not args.nondeterministic)
    report = {
        "what": f"windtunnel train: {args.what}",
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "deterministic": not args.nondeterministic,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda},
        **measured,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "runs"}, indent=1)[:2000])


if __name__ == "__main__":
    main()
