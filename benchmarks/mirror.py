"""What a mirror costs training: the same run with and without one, in turns, against a real S3 server on this machine.

Usage: python benchmarks/mirror.py --pairs 3 --steps 150 --out build/measured/mirror.json
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
import tempfile
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from s3_server import environment, make_bucket, s3_server

from windtunnel.mirror import STATE
from windtunnel.recipe import dump_recipe, load_recipe, scale_model
from windtunnel.run import MetricsReader

UNSETTLED = 10


def train(place: Path, steps: int, mirror: str | None, variables: dict[str, str]) -> dict[str, float]:
    """Train the scale model of charlm, saved every ten steps; returns seconds a step (wall and of the processor)."""
    sets = [f"budget.steps={steps}", "budget.tokens=null", "budget.hours=null", "checkpoints.every=10 steps"]
    (place / "base.yaml").write_text(dump_recipe(scale_model(load_recipe("charlm"))))
    (place / "recipe.yaml").write_text(dump_recipe(load_recipe(str(place / "base.yaml"), sets)))
    root = place / ("with" if mirror else "without")
    command = [sys.executable, "-m", "windtunnel", "train", str(place / "recipe.yaml"), "--yes", "--root", str(root)]
    command += ["--set", f"checkpoints.mirror={mirror}"] if mirror else []
    busy, settled = {"train": 0.0, "mirror": 0.0}, 0.0
    # One core for training: on a rig the mirror and the network have cores of their own, and here the S3 server needs one too.
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env={**os.environ, **variables, **alone}, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                times = child.cpu_times()
                which = "mirror" if "windtunnel.mirror.process" in " ".join(child.cmdline()) else "train"
                busy[which] = max(busy[which], times.user + times.system)
            except psutil.Error:
                continue
        if not settled and list(root.glob("*/checkpoints/step-*")):
            settled = busy["train"]  # from here on: starting up takes as long as many steps, and differs more than a mirror could
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode == 0
    run = max(root.glob("*/"), key=lambda path: path.stat().st_mtime)
    with MetricsReader(run / "metrics.sqlite") as reader:
        points = reader.series("step_seconds")
    seconds = [point.value for point in points][UNSETTLED:]
    found = {
        "median_step": statistics.median(seconds),
        "mean_step": statistics.mean(seconds),
        "train_cpu": busy["train"] - settled,
    }
    if mirror:
        found |= {"mirror_cpu": busy["mirror"], "mirrored_step": json.loads((run / STATE).read_text())["step"]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder, s3_server() as port:
        variables = environment(f"http://127.0.0.1:{port}")
        make_bucket(variables["AWS_ENDPOINT_URL"], "runs")
        for pair in range(options.pairs):
            for which in ("without", "with") if pair % 2 == 0 else ("with", "without"):
                mirror = "s3://runs/benchmark" if which == "with" else None
                found[which].append(train(Path(folder), options.steps, mirror, variables))
                print(which, found[which][-1], flush=True)
    medians = {which: statistics.median(one["median_step"] for one in runs) for which, runs in found.items()}
    processor = {which: statistics.median(one["train_cpu"] for one in runs) for which, runs in found.items()}
    results = {
        "what": "charlm's scale model, saved every 10 steps, with and without a mirror in an S3 server (moto) here, from the "
        "first checkpoint to the end; training has one thread",
        "date": str(datetime.date.today()),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "runs": found,
        "median_step_seconds": medians,
        "wall_share": medians["with"] / medians["without"] - 1,
        "processor_seconds": processor,
        "processor_share": processor["with"] / processor["without"] - 1,
        "processor_share_of_pairs": [b["train_cpu"] / a["train_cpu"] - 1 for a, b in zip(*found.values(), strict=True)],
        "note": "wall times compare only where nothing else runs: see the spread of the runs without a mirror",
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"training: processor time {results['processor_share']:+.2%}, wall time {results['wall_share']:+.2%}")


if __name__ == "__main__":
    main()
