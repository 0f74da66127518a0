"""How long the pages of `windtunnel watch --web` take to open: 100 runs of 100,000 steps, in a headless Chromium.

Usage: python benchmarks/watch.py --runs 100 --steps 100000 --times 5 --out build/measured/watch.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import CHROMIUM, NAMES, Browser

from windtunnel.recipe import load_recipe
from windtunnel.run import Metrics, RunFolder
from windtunnel.run.thinned import sum_up

PLAN = {"model": "GPT", "layout": {"batch_tokens": 524_288}, "hours": 20.0, "dollars": 400.0, "dollars_per_hour": 20.0}
SERIES = ("loss", "tokens_per_second", "step_seconds", "dollars", "progress", "gradient_norm")
PATIENCE = 120.0


def make(root: Path, runs: int, steps: int) -> None:
    """Write so many runs below a folder; each has a database of its own."""
    first: Path | None = None
    for _ in range(runs):
        with RunFolder.create(root, load_recipe("charlm", ["model.depth=2", "budget.dollars=500"]), rig={}, plan=PLAN) as run:
            if first is None:
                with Metrics(run.metrics_path) as metrics:
                    metrics.log(1, dict.fromkeys(SERIES, 1.0))
                fill(run.metrics_path, steps)
                first = run.metrics_path
            else:
                shutil.copy(first, run.metrics_path)
            run.finish("done", "budget.steps")


def fill(path: Path, steps: int) -> None:
    now = time.time() - steps
    with sqlite3.connect(path) as database:
        for number, name in database.execute("SELECT id, name FROM series").fetchall():
            rows = ((number, step, value_of(name, step, steps), now + step) for step in range(2, steps + 1))
            database.executemany("INSERT INTO points (series, step, value, time) VALUES (?, ?, ?, ?)", rows)
        sum_up(database)  # as their writer does


def value_of(name: str, step: int, steps: int) -> float:
    if name == "progress":
        return step / steps
    return 400 * step / steps if name == "dollars" else 2 + 5 / math.sqrt(step) + 0.05 * math.sin(step)


def opened(browser: Browser, url: str, ready: str) -> float:
    """Return the seconds until an expression is true of a page that is opened afresh."""
    browser.open("about:blank", 1200)
    began = time.perf_counter()
    browser.open(url, 1200)
    while not browser.value(ready):
        assert time.perf_counter() - began < PATIENCE, (ready, browser.problems)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if CHROMIUM is None:
        parser.error(f"no Chromium on this machine: install one of {', '.join(NAMES)}")
    found: dict[str, list[dict[str, float]]] = {"list": [], "run": [], "overlay": []}
    with tempfile.TemporaryDirectory(prefix="wt-watch-") as folder:
        root = Path(folder) / "runs"
        make(root, options.runs, options.steps)
        names = sorted(path.name for path in root.iterdir())
        size = sum(path.stat().st_size for path in root.rglob("*.sqlite"))
        for _ in range(options.times):  # each time a server that knows nothing yet
            for page, taken in measure(root, Path(folder), names, options.runs).items():
                found[page].append(taken)
            print({page: times[-1] for page, times in found.items()}, flush=True)
    results: dict[str, Any] = {
        "what": f"{options.runs} runs of {options.steps:,} steps and {len(SERIES)} metrics, {size / 1e9:.2f} GB, a new server",
        "date": str(datetime.date.today()),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "median_seconds": {page: statistics.median(one["seconds"] for one in times) for page, times in found.items()},
        "least_seconds": {page: min(one["seconds"] for one in times) for page, times in found.items()},
        "median_server_processor_seconds": {
            page: statistics.median(one["server_processor_seconds"] for one in times) for page, times in found.items()
        },
        "times": found,
        "note": "seconds of the wall, from the address to the rows or curves; on a machine that others used too, see load",
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["median_seconds"]))


def measure(root: Path, folder: Path, names: list[str], runs: int) -> dict[str, dict[str, float]]:
    """Return what opening each page took from a new server, in this order: seconds, and the server's processor time."""
    command = [sys.executable, "-m", "windtunnel", "watch", "--web", "--port", "0", "--root", str(root)]
    curves = "document.querySelectorAll('.chart canvas').length > 3"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http"))
        base, _, token = address.partition("#token=")
        pages = {
            "list": (f"{base}#token={token}", f"document.querySelectorAll('tbody tr').length == {runs}"),
            "run": (f"{base}#/run/{names[0]}", curves),
            "overlay": (f"{base}#/compare/" + ",".join(names[:5]), curves),
        }
        taken = {}
        with Browser(Path(tempfile.mkdtemp(dir=folder))) as browser:
            for page, (url, ready) in pages.items():
                before = psutil.Process(server.pid).cpu_times()
                seconds = opened(browser, url, ready)
                used = psutil.Process(server.pid).cpu_times()
                busy = used.user + used.system - before.user - before.system
                taken[page] = {"seconds": seconds, "server_processor_seconds": busy}
        server.terminate()
    return taken


if __name__ == "__main__":
    main()
