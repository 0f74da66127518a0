"""windtunnel's training throughput beside karpathy/nanochat's, on one GPU, in one call.

Both sides are compiled and warm before either is timed; then they take turns. Needs a checkout of
nanochat: PEER=folder python benchmarks/compare.py --out benchmarks/results/throughput.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from side import ACCUMULATION, SEQUENCE, VOCAB

# Depth, sequences of a micro-batch, precision.
CASES = {
    "d4": (4, 32, "bf16"), "d6": (6, 32, "bf16"), "d8": (8, 32, "bf16"), "d12": (12, 32, "bf16"), "d20": (20, 16, "bf16"),
    "d24": (24, 16, "bf16"), "d24-fp8": (24, 16, "fp8"),
}  # fmt: skip


class Side:
    """A subprocess of side.py."""

    def __init__(self, side: str, depth: int, batch: int, precision: str, options: list[str]) -> None:
        here = Path(__file__).parent
        paths = [str(here.parent / "src"), *([os.environ["PEER"]] if side == "peer" else []), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": ":".join(paths), "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        who = ["ours", "--recorded"] if side == "recorded" else [side]
        command = [sys.executable, str(here / "side.py"), "--side", *who, "--depth", str(depth), "--batch", str(batch)]
        command += ["--precision", precision, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.seconds: list[float] = []  # a step, mean of each round

    def wait_ready(self) -> dict[str, Any]:
        for line in self._lines():
            if line.startswith("READY"):
                return dict(json.loads(line[5:]))
        raise SystemExit(f"a side ended early with code {self.process.wait()}")

    def time(self, steps: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = next(line for line in self._lines() if line.startswith("{"))
        self.seconds.append(json.loads(answer)["seconds"] / steps)

    def finish(self) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.close()
        answer = [line for line in self._lines() if line.startswith("{")][-1]
        self.process.wait()
        return dict(json.loads(answer))

    def _lines(self) -> Any:
        assert self.process.stdout
        return iter(self.process.stdout.readline, "")


def compare(name: str, steps: int, rounds: int, options: list[str], sides: list[str]) -> dict[str, Any]:
    depth, batch, precision = CASES[name]
    running = {side: Side(side, depth, batch, precision, options) for side in sides}
    result: dict[str, Any] = {"case": name, "depth": depth, "batch": batch, "precision": precision}
    for side, process in running.items():
        result[side] = process.wait_ready()
    for _ in range(rounds):
        for process in running.values():
            process.time(steps)
    for side, process in running.items():
        result[side] |= process.finish()
        median = statistics.median(process.seconds)
        result[side] |= {"seconds": process.seconds, "tokens_per_second": batch * SEQUENCE * ACCUMULATION / median}
    if "peer" in sides and len(sides) > 1:
        best = max((side for side in sides if side != "peer"), key=lambda side: result[side]["tokens_per_second"])
        result["ratio"] = result[best]["tokens_per_second"] / result["peer"]["tokens_per_second"]
        result["memory_ratio"] = result[best]["peak_allocated"] / result["peer"]["peak_allocated"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--sides", nargs="+", default=["ours", "peer"], help="ours, recorded (ours, passes as CUDA graphs), peer")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--nondeterministic", action="store_true", help="let ours use kernels whose last bits vary")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    import torch

    from windtunnel.model.attention import flash_kernels

    options = [f"--{name}" for name in ("profile", "nondeterministic") if getattr(args, name)]
    report: dict[str, Any] = {
        "what": "training tokens per second, one GPU, random tokens, full attention; ours includes data loading",
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "deterministic": not args.nondeterministic,
        "attention": "FlashAttention-4" if flash_kernels() else "PyTorch",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda},
        "shapes": {"vocab": VOCAB, "sequence": SEQUENCE, "accumulation": ACCUMULATION},
        "cases": [],
    }
    for name in args.cases:
        result = compare(name, args.steps, args.rounds, options, args.sides)
        report["cases"].append(result)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        line = f"{name:8}"
        for side in args.sides:
            r = result[side]
            line += f" {side} {r['tokens_per_second']:>9,.0f} tok/s {r['peak_allocated'] / 1e9:5.1f} GB"
            line += f" warm-up {r['warm_up_seconds']:.0f}s |"
        print(line, f"ratio {result.get('ratio', 0):.3f} memory {result.get('memory_ratio', 0):.3f}", flush=True)


if __name__ == "__main__":
    main()
