"""What the gates of the recipe trm's first stage see of a real run: its losses by supervision step, and each gate's verdict.

    python benchmarks/phase_one.py --out benchmarks/results/trm-phase-1-h200.json        # five minutes of an H200
    python benchmarks/phase_one.py --out FILE --run RUN                                  # of a run that is there

The shape is the recipe's; the run is shorter than the recipe's thousand steps of 512 sequences, which take 2.4 hours of an H200.
The guide's limits (preset `aggressive`) are judged beside the recipe's own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from windtunnel.recipe import Gates
from windtunnel.run import MetricsReader, RunFolder
from windtunnel.train import gate_series, judge_gates

SHORT = ["stages.pretrain.batch_tokens=32768", "budget.steps=440", "stages.pretrain.validation_tokens=131072"]
CURVES = ("loss", "refinement", "gradient_norm")
EVERY = 10  # steps, of curves that have a point a step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="a finished run of stage validation; without it one is trained")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the recipe")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or trained(Path(folder), [*SHORT, *options.set])
        report = seen(run)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")


def trained(root: Path, changes: list[str]) -> Path:
    """Phase validation alone. Its exit code is 1 where a gate does not hold, which is what is to be seen."""
    command = [sys.executable, "-m", "windtunnel", "train", "trm", "--root", str(root), "--yes", "--stage", "validation"]
    subprocess.run([*command, *(part for change in changes for part in ("--set", change))], check=False)
    return next(path for path in root.iterdir() if (path / "manifest.json").exists())


def seen(path: Path) -> dict[str, Any]:
    """Curves and gates of a run."""
    folder = RunFolder.open(path)
    recipe, manifest = folder.recipe, folder.manifest
    with MetricsReader(folder.metrics_path) as metrics:
        series = gate_series(metrics, recipe)
        curves = {name: metrics.series(name) for name in CURVES} | {
            name: points for name, points in series.items() if name.startswith("validation_loss")
        }
    guide = judge_gates(Gates(), recipe, series, gpus=manifest["rig"]["gpu"] is not None)
    plan = manifest["plan"]
    every = {name: EVERY if name in CURVES else 1 for name in curves}
    return {
        "what": "The first stage of trm on one GPU, and what its gates see.",
        "date": datetime.date.fromtimestamp(manifest["created"]).isoformat(),
        "gpu": (manifest["rig"]["gpu"] or {}).get("name"),
        "versions": manifest["versions"],
        "preset": recipe.trm.preset,
        "parameters": plan["parameters"],
        "batch_tokens": plan["layout"]["batch_tokens"],
        "steps": manifest["summary"]["step"],
        "summary": manifest["summary"],
        "gates_by_the_guide": [gate.to_json() for gate in guide],
        "curves": {
            name: [[point.step, round(point.value, 5)] for point in points[every[name] - 1 :: every[name]]]
            for name, points in curves.items()
        },
    }


if __name__ == "__main__":
    main()
