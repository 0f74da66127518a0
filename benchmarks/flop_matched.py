"""A recursive GPT on Python's standard library beside FLOPs-matched baselines: plain models, and fewer recurrences.

    python benchmarks/flop_matched.py --out build/measured/flop-matched.json --tiny                 # minutes on a CPU
    python benchmarks/flop_matched.py --out benchmarks/results/flop-matched-h200.json --minutes 7   # of an H200
    python benchmarks/flop_matched.py --preset extreme --out build/measured/flop-matched-extreme.json
    python benchmarks/flop_matched_chart.py; python benchmarks/pages.py    # picture and results of docs/flop-matched.md

All is trained and measured by `windtunnel`: a few steps of the recursive model tell its speed, from which follows how many steps
(--most-steps at most) it and everything that it is compared with can take in --minutes; then `windtunnel train` and `windtunnel
evaluate --flop-matched`. What is known is written after each; with --root a second command of the same --steps goes on with what
the first one trained. When time is up, or this command is told to end, or a training breaks, those models are compared that have
come to their end: the plain one of the same FLOPs is trained first, then those of the same parameters, in between, and fewer
recurrences. Validation losses over training are kept of all, after each supervision step where there are several. Learning rates
of matrices are three times what the rule says, which is made for longer runs; all have them.
"""

from __future__ import annotations

import argparse
import contextlib
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from windtunnel.data import prepare
from windtunnel.evaluate import Length, compare_run, flop_matched_members, report_comparison
from windtunnel.launch import find_beside
from windtunnel.recipe import Recipe, load_recipe
from windtunnel.run import MetricsReader, RunFolder, of_step

START_SECONDS = 26.0
"""A run takes as long before and after its training on one GPU: processes, kernels, checkpoint."""
PROBE_STEPS = 12
LAUNCH_SECONDS = 0.0026
"""A layer of a plain model takes at least as long a step on a GPU: the host launches its kernels one by one."""
MARGIN = 1.5
"""Steps take as many times longer than reckoned: optimizers, validation, compiling deeper models."""
REPORT_SECONDS = 30.0
"""Kept for the report when time is up."""
MOST_POINTS = 120
RECIPE = """\
name: flop-matched
model: {depth: 6, mlp: swiglu, sequence: 512, value_embeddings: false}
trm: {scheme: layerwise, preset: honest, loops: 2, cycles: 1, supervision: 4}
data:
  corpus: {kind: stdlib, megabytes: 12}
  tokenizer: {kind: bpe, vocab_size: 8192}
  validation: 0.1
stages:
  pretrain:
    batch_tokens: 8192
    validate_every: 32 steps
    validation_tokens: 131072
    optimizer: {matrix_lr: 0.0075}
  evaluate: {samples: 0, bits_per_byte_tokens: 400000}
checkpoints: {every: 30 min, keep_last: 1, keep_best: 1, keep_hourly: false}
bands: {overfit_patience: 100}
budget: {steps: 12}
"""
TINY = {
    "model.depth": 2, "model.aspect": 16, "model.head_dim": 16, "model.sequence": 64, "data.corpus.megabytes": 0.3,
    "data.tokenizer": "{kind: character, unknown: skip}", "data.validation": 0.3, "trm.loops": 1,
    "stages.pretrain.batch_tokens": 1024, "stages.pretrain.validation_tokens": 10000,
    "stages.pretrain.optimizer.matrix_lr": 0.02, "stages.evaluate.bits_per_byte_tokens": 40000,
}  # fmt: skip


class OutOfTime(Exception):
    """A command was stopped, or did not end well."""


def told_to_end(*_: Any) -> None:
    """What is there is reported when another stops this command."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise OutOfTime("told to end")


def windtunnel(root: Path, *arguments: str, seconds: float | None = None) -> str:
    """Standard output of a command; its messages go to a log beside the runs.

    Raises:
        OutOfTime: it was asked to stop after `seconds`, or ended with an error.
    """
    command, log = [sys.executable, "-m", "windtunnel", *arguments], root / "log.txt"
    with open(log, "a") as messages:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise OutOfTime(f"windtunnel {arguments[0]}: not done after {seconds:.0f} s") from None
        finally:
            end(process)
        messages.write(out)
    if process.returncode:
        words = " | ".join(log.read_text("utf-8", "replace").strip().splitlines()[-12:])[-1500:]
        raise OutOfTime(f"windtunnel {arguments[0]} ended with {process.returncode}: {words}")
    return out


def end(process: subprocess.Popen[str]) -> None:
    """Stop a command that still runs, and whatever it started: the report needs the GPU."""
    if process.poll() is not None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REPORT_SECONDS / 3)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def train(root: Path, name: str, sets: list[str], steps: int) -> Path:
    """Train for some steps; returns the run's folder."""
    given = [part for item in (*sets, f"budget.steps={steps}") for part in ("--set", item)]
    runs = [RunFolder.open(path.parent) for path in (root / name).glob("*/manifest.json")]
    done = [run.path for run in runs if run.manifest["status"] == "done" and run.recipe.budget.steps == steps]
    if done:
        return done[0]
    windtunnel(root, "train", str(root / "flop-matched.yaml"), "--root", str(root / name), "--yes", "--json", *given)
    return max((path for path in (root / name).iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)


def series(run: Path, name: str) -> list[float]:
    """Values of a metric."""
    with MetricsReader(RunFolder.open(run).metrics_path) as metrics:
        return [point.value for point in metrics.series(name)]


def affordable(recipe: Recipe, vocab: int, step_seconds: float, left: float, tiny: bool) -> int:
    """Steps that the recursive model and all it is compared with can take in `left` seconds."""
    batch = recipe.pretrain.batch_tokens
    assert batch is not None
    members = flop_matched_members(recipe, vocab, Length(1, batch, "bf16"))
    own = members[0].shape.flops_per_token
    least = {m.name: 0.0 if tiny or m.kind != "plain" else LAUNCH_SECONDS * m.shape.layers for m in members}
    each = [max(m.shape.flops_per_token / own * step_seconds, least[m.name]) for m in members]
    training = left - REPORT_SECONDS - START_SECONDS * len(members)
    steps = int(training / MARGIN / sum(each))
    words = f"{step_seconds * 1000:.0f} ms a step; {sum(each) / step_seconds:.2f} times the run in all"
    print(f"{words}; {steps} steps each would fit", flush=True)
    if steps < 50:
        raise SystemExit(f"only {steps} steps fit: raise --minutes")
    return steps


def report_on_ended(run: Path) -> dict[str, Any]:
    """The report on those models that have come to their end.

    Raises:
        OutOfTime: the plain models that a verdict takes are not among them.
    """
    runs = ended(run)
    if missing := {"same-flops", "same-parameters"} - set(runs):
        raise OutOfTime(f"no time for {', '.join(sorted(missing))}: raise --minutes, or lower --most-steps")
    comparison = compare_run(run)
    members = tuple(m for m in comparison.members if m.name in runs)
    left_out = [m.name for m in comparison.members if m not in members]
    return report_comparison(replace(comparison, members=members), runs).to_json() | {"left_out": left_out}


def ended(run: Path) -> dict[str, Path]:
    """Member -> its run, of those that have come to their end; the run's own first."""
    own, *others = compare_run(run).members
    found = {m.name: find_beside(run, m.name, m.recipe) for m in others}
    return {own.name: run} | {name: beside.run for name, beside in found.items() if beside.ended and beside.run is not None}


def curves(run: Path) -> dict[str, Any]:
    """Of every model that has come to its end: FLOPs a step, seconds, and (step, validation loss), after each step too."""
    comparison, runs, found = compare_run(run), ended(run), dict[str, Any]()
    for member in comparison.members:
        if member.name not in runs:
            continue
        steps = member.shape.recursion.supervision if member.shape.recursion is not None else 1
        names = ["validation_loss", *(of_step("validation_loss", i) for i in range(steps if steps > 1 else 0))]
        with MetricsReader(RunFolder.open(runs[member.name]).metrics_path) as metrics:
            series = {name: thinned([(p.step, p.value) for p in metrics.series(name)]) for name in names}
            seconds = sum(p.value for p in metrics.series("step_seconds"))
        flops = member.shape.flops_per_token * (member.recipe.pretrain.batch_tokens or 0)
        found[member.name] = {"flops_per_step": flops, "step_seconds": round(seconds, 2), "series": series}
    return found


def thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """About `MOST_POINTS` of the points, the last among them."""
    every = -(-len(points) // MOST_POINTS)
    return [(step, round(value, 5)) for i, (step, value) in enumerate(points) if (len(points) - 1 - i) % every == 0]


def machine() -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"gpu": gpu, "cpu": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="where the runs go; without it a folder that is removed at the end")
    parser.add_argument("--tiny", action="store_true", help="a tiny model of characters, for a CPU")
    parser.add_argument("--minutes", type=float, default=8.5, help="of all, from the beginning of this command")
    parser.add_argument("--steps", type=int, help="of each model; without it as many as --minutes allows")
    parser.add_argument("--most-steps", type=int, default=1000, help="of each model, however much time there is")
    parser.add_argument("--preset", default="honest")
    parser.add_argument("--shared", action="store_true", help="other work is on the GPU meanwhile: seconds say nothing then")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the recipe")
    args = parser.parse_args()
    started = time.monotonic()
    signal.signal(signal.SIGTERM, told_to_end)
    with tempfile.TemporaryDirectory() as temporary:
        root = args.root or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        try:
            measure(args, root, started)
        except OutOfTime as error:
            raise SystemExit(str(error)) from None


def measure(args: argparse.Namespace, root: Path, started: float) -> None:
    """Train the recursive model, then all it is compared with; write what is known after each.

    Raises:
        OutOfTime: too little has come to its end for a report; --out says so where the recursive model has.
    """
    (root / "flop-matched.yaml").write_text(RECIPE)
    tiny = [f"{key}={value}" for key, value in TINY.items()] if args.tiny else []
    sets = [*tiny, f"trm.preset={args.preset}", *args.set]
    recipe = load_recipe(root / "flop-matched.yaml", sets)
    data = prepare(recipe)
    steps = args.steps
    if steps is None:
        probe = train(root, "probe", sets, PROBE_STEPS)
        step = statistics.median(series(probe, "step_seconds")[PROBE_STEPS // 2 :])
        steps = affordable(recipe, data.tokenizer.vocab, step, 60 * args.minutes - (time.monotonic() - started), args.tiny)
        steps = min(steps, args.most_steps)
    run = train(root, "run", sets, steps)
    result: dict[str, Any] = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": {"preset": args.preset, "tiny": args.tiny, "set": args.set, "steps": steps, "shared": args.shared},
        "data": {"checksum": data.checksum, "train_tokens": data.train.count},
        "recursive": {
            "tokens_per_second": round(statistics.median(series(run, "tokens_per_second"))),
            "validation_loss": series(run, "validation_loss")[-1],
        },
    }
    write(args.out, result, started)
    left = 60 * args.minutes - REPORT_SECONDS - (time.monotonic() - started)
    try:
        report = json.loads(windtunnel(root, "evaluate", str(run), "--flop-matched", "--yes", "--json", seconds=max(1.0, left)))
    except OutOfTime as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is there is being reported
        result |= {"stopped": str(error), "curves": curves(run)}
        try:
            report = report_on_ended(run)
        except OutOfTime as nothing:
            write(args.out, result | {"error": str(nothing)}, started)
            raise
    for model in report["models"]:
        model["trained"].pop("run")
    print(report["verdict"])
    write(args.out, result | {"curves": curves(run), "report": report}, started)


def write(path: Path, result: dict[str, Any], started: float) -> None:
    """What is known so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | {"seconds": round(time.monotonic() - started, 1)}, indent=1) + "\n")
    print(f"wrote {path} after {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
