"""A tiny recursive model and plain ones on the same Sudoku for the same FLOPs, all trained and measured by `windtunnel`.

    python benchmarks/sudoku.py --out build/measured/sudoku.json --tiny          # 4x4, minutes on a CPU
    python benchmarks/sudoku.py --out benchmarks/results/sudoku-h200.json        # hard 9x9, eleven minutes of an H200
    python benchmarks/sudoku.py --puzzles --out benchmarks/results/sudoku-puzzles.json  # how fast puzzles are made, and which

In parts, of which each adds to what --out has:

    python benchmarks/sudoku.py --out benchmarks/results/sudoku-h200.json --twin-minutes 0
    python benchmarks/sudoku.py --out benchmarks/results/sudoku-h200.json --plain-only --most 450
    python benchmarks/sudoku_chart.py; python benchmarks/pages.py                # picture and tables of docs/sudoku.md

A variant is a few keys of the recipe trm-sudoku (sudoku_variants.py; sudoku_sweep.py tries them out). The recursive model trains
for --minutes; then each of --twins for as many FLOPs on the same puzzles. --twin-minutes limits each one's time, --most that of
the whole command: the first twin may take all but a minute for each one to come. The learning rate falls to the end all the
same; the result says under `flops_share` how far a twin came. FLOPs are the model's own: of every pass and of every supervision
step's head, recomputation not counted. --plain-only wants the --tiny and --set of the first call, refuses other puzzles than the
recursive model had, and keeps a plain result that is there already, under its share of the FLOPs (plain-0.47).

The report is written after each model; one that fails leaves its error there. On an H200 expect 40 s for puzzles and starting up,
and 20 s a model for its report and its evaluation.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sudoku_variants import TINY, TINY_RECURSIVE, TINY_TWINS, TWINS, VARIANTS, Keys

from windtunnel.data import GRADES, make_batch, prepare
from windtunnel.model import recipe_shape
from windtunnel.recipe import load_recipe
from windtunnel.run import MetricsReader, RunFolder

# Of a GPU's attention the kernels that need no compiling: their last bits vary.
LIMITS: Keys = {
    "budget.hours": "null", "budget.steps": "null", "checkpoints.every": "10 min", "checkpoints.keep_hourly": "false",
    "stages.pretrain.deterministic": "false",
}  # fmt: skip

TWIN_SECONDS = 30.0
"""A twin takes as long beside its training."""
NEXT_SECONDS = 60.0
"""Kept for each twin to come: one that has had all its FLOPs says more than two that have not."""
LEAST_SECONDS, LEAST_TINY_SECONDS = 120.0, 5.0

Results = dict[str, Any]
"""Of each model by name."""
Keep = Callable[[Results], None]
"""Told of all that is known as soon as more is."""


class Failed(Exception):
    """A command of windtunnel did not end well, or what --out has cannot be added to."""


def last_words(log: Path, most: int = 12) -> str:
    """The end of a log."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip() and not line.startswith('{"step"')]
    return " | ".join(lines[-most:])[-1500:]


@dataclass(frozen=True)
class SudokuJob:
    """Where runs go and what all of them have in common: `base` where a model has no other, `given` in any case."""

    root: Path
    base: Keys
    given: Keys

    def recipe(self, keys: Keys) -> Any:
        return load_recipe("trm-sudoku", self.settings(keys))

    def settings(self, keys: Keys) -> list[str]:
        return [f"{key}={value}" for key, value in (LIMITS | self.base | keys | self.given).items()]

    def windtunnel(self, *arguments: str) -> str:
        """Standard output of a command; its messages go to a log beside the runs."""
        command = [sys.executable, "-m", "windtunnel", *arguments]
        with open(self.root / "log.txt", "a") as log:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True)
            log.write(done.stdout)
        if done.returncode:
            raise Failed(f"windtunnel {arguments[0]} ended with {done.returncode}: {last_words(self.root / 'log.txt')}")
        return done.stdout

    def train(self, name: str, keys: Keys) -> dict[str, Any]:
        """Train and evaluate; everything that is to be kept of it."""
        root = self.root / name
        sets = [part for setting in self.settings(keys) for part in ("--set", setting)]
        started = time.monotonic()
        self.windtunnel("train", "trm-sudoku", "--root", str(root), "--yes", "--json", *sets)
        seconds = time.monotonic() - started
        run = max(path for path in root.iterdir() if path.is_dir())  # names end with the time
        started = time.monotonic()
        evaluation = json.loads(self.windtunnel("evaluate", str(run), "--json"))
        return result_of(run, keys, seconds, time.monotonic() - started, evaluation)


def result_of(run: Path, keys: Keys, seconds: float, evaluating: float, evaluation: dict[str, Any]) -> dict[str, Any]:
    folder = RunFolder.open(run)
    recipe = folder.recipe
    shape = recipe_shape(recipe, (recipe.data.corpus.box**2) + 1)
    curves = read_curves(folder)
    steps = max(step for step, _ in curves["loss"])
    layout = folder.manifest["plan"]["layout"]
    flops = steps * layout["batch_tokens"] * shape.flops_per_token
    training = sum(value for _, value in curves.pop("step_seconds"))
    return {
        "keys": {key: str(value) for key, value in keys.items()},
        "parameters": shape.parameters,
        "flops_per_puzzle": shape.flops_per_token * shape.sequence,
        "steps": steps,
        "batch": layout["batch_tokens"] // shape.sequence,
        "puzzles_seen": steps * layout["batch_tokens"] // shape.sequence,
        "flops": flops,
        "teraflops_per_second": flops / training / 1e12,
        "training_seconds": round(training, 1),
        "train_command_seconds": round(seconds, 1),
        "evaluate_command_seconds": round(evaluating, 1),
        "evaluation": evaluation,
        "curves": {name: thinned(points) for name, points in curves.items()},
    }


def read_curves(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of whatever the run has of these."""
    recursion = folder.recipe.trm
    names = ["loss", "validation_loss", "step_seconds", "gradient_norm", "halting_accuracy", "solved"]
    names += [f"validation_loss_step_{i}" for i in range(recursion.supervision if recursion else 0)]
    with MetricsReader(folder.metrics_path) as reader:
        found = {name: [(point.step, point.value) for point in reader.series(name)] for name in names}
    return {name: points for name, points in found.items() if points}


def thinned(points: list[tuple[int, float]], most: int = 120) -> list[tuple[int, float]]:
    """About `most` of the points, the last among them."""
    every = -(-len(points) // most)
    return [(step, round(value, 5)) for i, (step, value) in enumerate(points) if (len(points) - 1 - i) % every == 0]


def summary(name: str, result: dict[str, Any]) -> str:
    puzzles = result["evaluation"]["puzzles"]
    kinds = "; ".join(f"{kind['kind']} {kind['exact']['share']:.1%}" for kind in puzzles["kinds"])
    exact = puzzles["exact"]
    text = f"{name}: {exact['share']:.1%} exact ({exact['low']:.1%} to {exact['high']:.1%}) of {exact['n']:,} held out"
    size = f"{result['parameters'] / 1e6:.2f} M parameters, {result['flops']:.2e} FLOPs, {result['puzzles_seen']:,} puzzles"
    return f"{text}, {size}, {result['teraflops_per_second']:.3g} TFLOP/s\n   {kinds}"


def equal_flops(job: SudokuJob, keys: Keys, flops: float, vocab: int) -> Keys:
    """The steps of another model that take as many FLOPs."""
    recipe = job.recipe(keys)
    shape = recipe_shape(recipe, vocab)
    batch = recipe.pretrain.batch_tokens
    return {**keys, "budget.steps": max(1, round(flops / (batch * shape.flops_per_token)))}


def compare(job: SudokuJob, args: argparse.Namespace, vocab: int, keep: Keep) -> None:
    """Train the recursive model, then the plain ones."""
    recursive = {**TINY_RECURSIVE, "budget.steps": args.steps} if args.tiny else dict(VARIANTS[args.variant])
    if not args.tiny:
        recursive["budget.hours"] = args.minutes / 60
    results: Results = {"recursive": job.train("recursive", recursive)}
    keep(results)
    print(summary("recursive", results["recursive"]), flush=True)
    if args.twin_minutes is None or args.twin_minutes > 0:
        train_twins(job, args, vocab, results, keep)


def train_twins(job: SudokuJob, args: argparse.Namespace, vocab: int, results: Results, keep: Keep) -> None:
    """Train all twins, those after one that failed too.

    Raises:
        Failed: what became of those that failed.
    """
    failed = []
    for number, name in enumerate(args.twins):
        minutes = args.twin_minutes
        if args.most:
            later = len(args.twins) - number - 1
            left = args.started + args.most - time.monotonic() - TWIN_SECONDS - NEXT_SECONDS * later
            if left < (LEAST_TINY_SECONDS if args.tiny else LEAST_SECONDS):
                failed.append(f"{name}: no time left")
                continue
            minutes = min(minutes or left, left / 60)
        try:
            train_plain(job, args, vocab, results, keep, name, minutes)
        except Failed as error:
            failed.append(f"{name}: {error}")
    if failed:
        raise Failed("; ".join(failed))


def train_plain(
    job: SudokuJob,
    args: argparse.Namespace,
    vocab: int,
    results: Results,
    keep: Keep,
    name: str = "plain",
    minutes: float | None = None,
) -> None:
    """Train a plain model for the FLOPs of the recursive result; a result of it that is there is named by its share."""
    twin = equal_flops(job, (TINY_TWINS if args.tiny else TWINS)[name], results["recursive"]["flops"], vocab)
    if minutes:
        twin["budget.hours"] = minutes / 60
    before = results.get(name, {})
    try:
        found = job.train(name, twin)
    except Failed as error:
        if "flops_share" not in before:
            results[name] = {"error": str(error)}
            keep(results)
        raise
    found["flops_share"] = found["flops"] / results["recursive"]["flops"]
    if "flops_share" in before:
        results[f"{name}-{before['flops_share']:.2f}"] = before
    results[name] = found
    keep(results)
    print(summary(name, found), flush=True)


def standing(path: Path) -> dict[str, Any]:
    """The report that --plain-only completes.

    Raises:
        Failed: there is none, or it has no recursive result.
    """
    fix = "run without --plain-only first, or name the report of such a run with --out"
    try:
        report = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"{path} is no report to add to ({error}): {fix}") from None
    try:
        float(report["results"]["recursive"]["flops"]), report["puzzles"]["checksum"]
    except (KeyError, TypeError, ValueError):
        raise Failed(f"{path} has no recursive result: {fix}") from None
    return report


def check_puzzles(path: Path, there: str, here: str) -> None:
    """Raise Failed where the puzzles of a report are not those at hand."""
    if there != here:
        raise Failed(f"{path}: its puzzles have the checksum {there}, these {here}: give the --tiny and --set of its `command`")


def making(tries: int) -> dict[str, Any]:
    """What one core makes of each grade: a second of its time, whatever else the machine does."""
    results = {}
    for box, grade in [(3, 0), (3, 1), (3, 2), (2, 0)]:
        started = time.process_time()
        made = make_batch(box, grade, 1, 0, tries)
        seconds = time.process_time() - started
        clues = (made.inputs > 0).sum(axis=1)
        results[f"{box * box}x{box * box} {GRADES[grade]}"] = {
            "tries": tries, "puzzles": len(made),
            "core_seconds": round(seconds, 2), "per_core_second": round(len(made) / seconds),
            "clues": {"mean": round(float(clues.mean()), 2), "least": int(clues.min()), "most": int(clues.max())},
            "guesses_percentiles": {q: int(np.percentile(made.splits, q)) for q in (10, 50, 90, 99)} if grade == 2 else None,
        }  # fmt: skip
        print(f"{box * box}x{box * box} {GRADES[grade]}: {len(made) / seconds:,.0f} a core-second", flush=True)
    return results


def without_paths(arguments: list[str]) -> list[str]:
    """The command line but for where things go."""
    kept, skip = [], False
    for argument in arguments:
        name = argument.partition("=")[0]
        if not skip and name not in ("--out", "--root"):
            kept.append(argument)
        skip = not skip and argument in ("--out", "--root")
    return kept


def write(path: Path, started: float, content: dict[str, Any], before: dict[str, Any] | None = None) -> None:
    """Write a report; of one that was there `before` its head stays, and this command stands under `completed`."""
    head = {
        "command": ["python", "benchmarks/sudoku.py", *without_paths(sys.argv[1:])],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "seconds": round(time.monotonic() - started, 1),
    }
    what = __doc__.splitlines()[0] if __doc__ else ""
    report = {"what": what} | head | content if before is None else before | {"completed": head} | content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {path} after {head['seconds']} s")


def machine() -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="where the runs go; without it a folder that is removed at the end")
    parser.add_argument("--tiny", action="store_true", help="4x4 puzzles and a tiny model, for a CPU")
    parser.add_argument("--steps", type=int, default=150, help="of the recursive model, with --tiny")
    parser.add_argument("--minutes", type=float, default=4.7, help="of training, of the recursive model")
    parser.add_argument("--twins", nargs="+", choices=TWINS, default=list(TWINS), help="plain models, in this order")
    parser.add_argument("--twin-minutes", type=float, help="most of training, of each plain model; 0: none is trained")
    parser.add_argument("--most", type=float, help="seconds of the whole command, which what is left for the twins keeps to")
    parser.add_argument("--variant", choices=VARIANTS, default="each-long", help="the recursive model")
    parser.add_argument("--shared", action="store_true", help="other work is on the GPU meanwhile: seconds say nothing then")
    parser.add_argument("--plain-only", action="store_true", help="add plain models to the recursive result in --out")
    parser.add_argument("--puzzles", action="store_true", help="only measure how puzzles are made")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the recipe, for all runs")
    args = parser.parse_args()
    if args.plain_only and args.twin_minutes == 0:
        parser.error("--plain-only trains the plain model, --twin-minutes 0 does not: leave one of them out")
    return args


def measure(job: SudokuJob, args: argparse.Namespace, started: float, before: dict[str, Any] | None) -> None:
    """Make the puzzles; then both models, or the plain one that a report lacks."""
    data = prepare(job.recipe({}))
    seconds = time.monotonic() - started
    print(f"{data.notes[0]}; {seconds:.1f} s", flush=True)
    vocab = data.tokenizer.vocab
    if before is not None:
        check_puzzles(args.out, before["puzzles"]["checksum"], data.checksum)
        train_twins(job, args, vocab, dict(before["results"]), lambda found: write(args.out, started, {"results": found}, before))
        return
    puzzles = {"notes": data.notes, "seconds": round(seconds, 1), "reused": data.reused, "checksum": data.checksum}
    compare(job, args, vocab, lambda found: write(args.out, started, {"puzzles": puzzles, "results": found}))


def main() -> None:
    args = arguments()
    args.started = started = time.monotonic()
    if args.puzzles:
        write(args.out, started, {"results": making(2048)})
        return
    try:
        before = standing(args.out) if args.plain_only else None
        with tempfile.TemporaryDirectory() as temporary:
            root = args.root or Path(temporary)
            root.mkdir(parents=True, exist_ok=True)
            given = dict(setting.partition("=")[::2] for setting in args.set)
            measure(SudokuJob(root, TINY if args.tiny else {}, given), args, started, before)
    except Failed as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
