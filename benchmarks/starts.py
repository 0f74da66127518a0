"""From command to first step: a start with empty caches (data, compiled code), then the same start again.

    python benchmarks/starts.py --out build/measured/starts.json
    python benchmarks/starts.py --recipes charlm --set model.depth=2 --compile --out build/measured/starts-cpu.json

Each start is the command itself, in a process of its own; it is killed once its second step is done. Seconds are of the wall
and begin with the command: `folder` is when the run's folder was there (data ready, plan made), `first` when the first step
was done, `second` the one after it, which is as long as a step. `processor` are seconds of all processes that live by then.
`told` is when which line was printed, so that one sees where the time goes. What a start found compiled is told by `kept`:
files of compiled code before and after it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from windtunnel.recipe import UserError
from windtunnel.run import MetricsReader

RECIPES: dict[str, tuple[str, ...]] = {"charlm": ("model.depth=12",), "trm-sudoku": ()}
STARTS = ("first", "second")
CACHES = {
    "WINDTUNNEL_CACHE": "data",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash",
}
SERIES = "step_seconds"
LOOK = 0.02
MOST_TOLD = 40


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--set", action="append", default=[], dest="sets", help="a key of the recipe; given again for more")
    parser.add_argument("--compile", action="store_true", help="compile on a CPU too")
    parser.add_argument("--seconds", type=float, default=140.0, help="most that all starts may take together")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    ends = time.monotonic() + options.seconds
    results: dict[str, Any] = {
        "what": "seconds from the command to the first step: with empty caches, then again",
        "date": str(datetime.date.today()),
        "machine": machine(),
        "starts": {},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for recipe in options.recipes:
        sets = [*RECIPES.get(recipe, ()), *(["stages.pretrain.compile=true"] if options.compile else []), *options.sets]
        found = results["starts"][recipe] = {"sets": sets}
        with tempfile.TemporaryDirectory(prefix="wt-starts-") as folder:
            for name in STARTS:
                found[name] = start(Path(folder), recipe, sets, ends)
                print(recipe, name, json.dumps(found[name]), flush=True)
                options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Say what this was measured on."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    known = {"gpu": gpu, "cpus": os.cpu_count(), "load": os.getloadavg(), "torch": torch.__version__}
    return known | {"python": platform.python_version()}


def start(folder: Path, recipe: str, sets: list[str], ends: float) -> dict[str, Any]:
    """Start a training whose caches are below a folder, and return its times; with `failed` where it had no second step."""
    environment = os.environ | {name: str(folder / place) for name, place in CACHES.items()}
    root = Path(tempfile.mkdtemp(dir=folder, prefix="runs-"))
    command = [sys.executable, "-m", "windtunnel", "train", recipe, "--root", str(root), "--yes"]
    command += [word for text in (*sets, "checkpoints.every=1000 hours") for word in ("--set", text)]
    before, began, clock = kept(folder), time.time(), time.monotonic()
    times: dict[str, Any] = {}
    told: list[tuple[float, str]] = []
    with open(root / "output", "w+b") as output:
        process = psutil.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            for name in looked_for(root):
                lines = (root / "output").read_text(encoding="utf-8", errors="replace").splitlines()[len(told) :]
                told += [(round(time.time() - began, 2), line[:72]) for line in lines]
                if name is not None:
                    times[name[0]] = round(name[1] - began, 3)
                    times["processor"] = round(processor_seconds(process), 2)
                if "second" in times or process.poll() is not None or time.monotonic() > ends:
                    break
                time.sleep(LOOK)
        finally:
            kill(process)
        if "second" not in times:
            output.seek(0)
            times["failed"] = output.read().decode("utf-8", "replace")[-2000:]
    ended = {"until_killed": round(time.monotonic() - clock, 3), "kept": {"before": before, "after": kept(folder)}}
    return times | ended | {"told": [f"{when:.2f} {line}" for when, line in told[:MOST_TOLD]]}


def looked_for(root: Path) -> Iterator[tuple[str, float] | None]:
    """Yield (what, when) as things appear below a folder of runs, and None at each look in vain."""
    while not (found := list(root.glob("*/manifest.json"))):
        yield None
    yield "folder", found[0].stat().st_mtime
    metrics = found[0].with_name("metrics.sqlite")
    for number, name in enumerate(("first", "second")):
        while len(points := steps_of(metrics)) <= number:
            yield None
        yield name, points[number]


def steps_of(metrics: Path) -> list[float]:
    """Return when each step was done; none while there is no database yet."""
    with contextlib.suppress(UserError), MetricsReader(metrics) as reader:
        return [point.time for point in reader.series(SERIES)]
    return []


def processor_seconds(process: psutil.Process) -> float:
    """Return what a process and its descendants have had of the processors, those that have ended too."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            used = one.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


def kept(folder: Path) -> dict[str, int]:
    """Count the files of compiled code."""
    return {place: sum(path.is_file() for path in (folder / place).rglob("*")) for place in CACHES.values() if place != "data"}


def kill(process: psutil.Process) -> None:
    """End a training with all its processes, at once."""
    family = [*process.children(recursive=True), process]
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(family, timeout=10)


if __name__ == "__main__":
    main()
