"""Which way of supervising a recursive GPT gives the lowest true cross-entropy for the same training FLOPs on text?

    OMP_NUM_THREADS=1 python benchmarks/presets.py --tiny --out benchmarks/results/presets-cpu.json     # one core, 10 minutes
    python benchmarks/presets.py --out benchmarks/results/presets-h200.json                             # 8 minutes of an H200
    python benchmarks/presets.py --tiny --candidates equal each each-half --seeds 3 --out build/measured/presets.json

A candidate is a few keys of the recipe `trm` (CANDIDATES): the guide's three presets at their own rates, aggressive and
extreme at derived ones, and equal weights with one thing changed at a time. All train on the source of Python's standard
library for the same FLOPs, and those of one seed begin at the same weights and see the same batches (a plain model and one
with fewer supervision steps: the same FLOPs, not always the same tokens: `tokens` says). Warm-up is a tenth of the run for all,
since the guide's 100 to 200 steps would be most of a short one. What is compared is the cross-entropy of the last supervision
step on held-out text, never an objective. presets_rule.py says how the winner is found.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from presets_candidates import CANDIDATES, DECIDE, ON_A_CPU, ON_A_GPU, RATES, Candidate
from presets_rule import verdict

from windtunnel.data import BatchLoader, PreparedData, ValidationBatches, prepare
from windtunnel.evaluate.flop_matched import matching_gpt
from windtunnel.model import (
    CudaRecorder,
    Derived,
    GPTShape,
    HyperParameters,
    RecursiveGPT,
    Replay,
    Supervision,
    build_model,
    derive,
    deterministic,
    objective_of,
    recipe_shape,
)
from windtunnel.recipe import Recipe, Recursion, load_recipe
from windtunnel.train import MuonAdamW
from windtunnel.train.optimizer import Scalars
from windtunnel.train.schedule import scalars


@dataclass(frozen=True)
class Size:
    """What all candidates share. A step is `rows` sequences; `steps` are those of the recursive model.

    `rates` is a factor on all derived learning rates (not on a preset's own): the rules are for long runs.
    """

    depth: int
    aspect: int
    head_dim: int
    sequence: int
    rows: int
    steps: int
    loops: int
    supervision: int
    tokenizer: str
    validation_tokens: int
    device: str
    rates: float

    @property
    def batch(self) -> int:
        """Tokens a step."""
        return self.rows * self.sequence


TINY = Size(2, 24, 24, 64, 8, 96, 1, 4, "character", 2**14, "cpu", 16.0)
# Not quite an epoch: 2.6 M tokens.
LARGE = Size(6, 64, 128, 512, 16, 320, 1, 4, "bpe", 2**18, "cuda", 4.0)
ONCE = Recursion(scheme="looped", preset="honest", loops=1, cycles=1, supervision=1)
KERNELS = 256
"""Shapes of the optimizer's updates that are compiled in one process: candidates have models of several sizes."""


@dataclass(frozen=True)
class PresetJob:
    """A candidate ready to be trained: its recipe and shape, and steps that take the FLOPs that all get."""

    name: str
    candidate: Candidate
    recipe: Recipe
    shape: GPTShape
    steps: int
    rows: int

    @property
    def batch(self) -> int:
        """Tokens a step."""
        return self.rows * self.shape.sequence

    @property
    def flops(self) -> float:
        """Of the whole training."""
        return self.steps * self.batch * self.shape.flops_per_token


def base_recipe(size: Size, changes: dict[str, Any]) -> Recipe:
    """The recipe trm at this size, `changes` laid over it."""
    keys: dict[str, Any] = {
        "stages": "{}", "model.depth": size.depth, "model.aspect": size.aspect, "model.head_dim": size.head_dim,
        "model.sequence": size.sequence, "trm.loops": size.loops, "trm.supervision": size.supervision,
        "stages.pretrain.batch_tokens": size.batch, "data.corpus.megabytes": 4 if size.tokenizer == "character" else 12,
        "data.tokenizer.kind": size.tokenizer, "data.validation": 0.05,
    }  # fmt: skip
    tokenizer = {"data.tokenizer.vocab_size": 4096} if size.tokenizer == "bpe" else {"data.tokenizer": "{kind: character}"}
    keys = {key: value for key, value in keys.items() if not key.startswith("data.tokenizer")} | tokenizer | changes
    return load_recipe("trm", [f"{key}={value}" for key, value in keys.items()])


def make_job(name: str, size: Size, vocab: int) -> PresetJob:
    """The candidate as a recipe of the same FLOPs as `equal`."""
    candidate = CANDIDATES[name]
    changes = dict(candidate.keys)
    if name == "supervision-2":
        # Twice the passes a step, so that all passes together stay the same.
        changes["trm.loops"] = size.supervision // 2 * (size.loops + 1) - 1
    equal = base_recipe(size, CANDIDATES["equal"].keys)
    whole = recipe_shape(equal, vocab).flops_per_token * size.steps * size.batch
    rows = size.rows // candidate.parts
    changes["stages.pretrain.batch_tokens"] = rows * size.sequence
    recipe = base_recipe(size, changes)
    if candidate.kind == "plain":
        recipe = plain(recipe, name, vocab, size.device == "cuda")
    shape = recipe_shape(recipe, vocab)
    steps = size.steps if name == "plain-parameters" else max(1, round(whole / (rows * size.sequence * shape.flops_per_token)))
    stage = recipe.pretrain
    schedule = stage.schedule.model_copy(update={"warmup_steps": max(1, steps // 10)})
    return PresetJob(
        name, candidate, recipe.with_stages(pretrain=stage.model_copy(update={"schedule": schedule})), shape, steps, rows
    )


def plain(recursive: Recipe, name: str, vocab: int, recorded: bool) -> Recipe:
    """The recipe without recursion, with a larger model where its name says that the FLOPs should be the same a token.

    Args:
        recorded: as a stack looped once, the same model bit for bit, whose passes can be recorded as a CUDA graph.
    """
    model = recursive.gpt
    if name.startswith("plain-flops"):
        model = matching_gpt(model, vocab, recipe_shape(recursive, vocab).flops_per_token)
    return recursive.model_copy(update={"trm": ONCE if recorded else None, "model": model})


def train(job: PresetJob, data: PreparedData, size: Size, seed: int) -> dict[str, Any]:
    """Train a candidate from random weights and score it; everything that is kept of it."""
    compute = torch.bfloat16 if size.device == "cuda" else torch.float32
    model = build_model(job.shape, device=size.device, compute=compute, seed=seed)
    stage, rates = job.recipe.pretrain, derive(job.recipe, data.tokenizer.vocab)
    own = {name for name in RATES if getattr(stage.optimizer, name) is not None}
    rates = scaled(rates, size.rates * job.candidate.rates, own)
    optimizer = MuonAdamW(model, rates, compiled=size.device == "cuda", clip=stage.optimizer.clip)
    if size.device == "cuda":
        model.compile()
    objective = None if job.recipe.trm is None else objective_of(job.recipe.trm.resolved)
    work = None
    if objective is not None:
        assert isinstance(model, RecursiveGPT)
        work = Supervision(model, objective, 1 / job.batch, Replay(CudaRecorder() if size.device == "cuda" else None))
    layout = {"sequence": size.sequence, "micro_batch": job.rows, "accumulation": 1, "rank": 0, "world": 1}
    began, losses, left = time.perf_counter(), [], 0.0
    with BatchLoader(data.train, **layout, seed=seed, device=size.device) as loader:
        for step in range(job.steps):
            x, y = loader.next_batch()
            momentum, decay = stage.optimizer.momentum, rates.weight_decay.value
            now = scalars(stage.schedule, momentum=momentum, weight_decay=decay, step=step, progress=step / job.steps)
            if objective is None or work is None:
                loss = model(x, y, "sum") * (1 / job.batch)
                loss.backward()
            else:
                update = partial(take_step, optimizer, now) if objective.updates == "each" else None
                loss = work.step([(x, y)], update).losses[-1] / job.batch
            if objective is None or objective.updates == "once":
                optimizer.step(now)
            losses.append(loss.detach())
        train_losses = torch.stack(losses).tolist()
        left = time.perf_counter() - began
    scored = score(model, data, size)
    return {
        "seed": seed,
        "loss": scored[-1],
        "loss_of_steps": scored,
        "refinement_percent": 100 * (scored[0] - scored[-1]) / scored[0],
        "train_loss": [round(statistics.fmean(train_losses[i : i + 10]), 4) for i in range(0, job.steps, 10)],
        "seconds": round(left, 1),
    }


def take_step(optimizer: MuonAdamW, now: Scalars, _: int) -> None:
    """What happens after each supervision step where each has an update."""
    optimizer.step(now)


def scaled(rates: HyperParameters, factor: float, own: set[str]) -> HyperParameters:
    """Derived learning rates times `factor`; those that the recipe or its preset names (`own`) stay as they are."""
    found = {name: getattr(rates, name) for name in RATES if name not in own}
    changed = {name: Derived(rate.value * factor, f"{rate.rule} x {factor:g}") for name, rate in found.items()}
    return replace(rates, **changed)


@torch.no_grad()
def score(model: Any, data: PreparedData, size: Size) -> list[float]:
    """Mean nats a token of the validation split's beginning after each supervision step; of a plain model one value."""
    model.eval()
    batches = ValidationBatches(
        data.validation, sequence=size.sequence, micro_batch=size.rows, limit=size.validation_tokens, device=size.device
    )
    sums, count = torch.zeros((), device=size.device), 0
    for x, y in batches:
        steps = model.step_losses(x, y) if isinstance(model, RecursiveGPT) else model(x, y, "none").reshape(y.shape)[None]
        sums, count = sums + steps.double().sum((1, 2)), count + int((y >= 0).sum())
    return [float(total) / count for total in sums]


def summary(job: PresetJob, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A candidate with its runs: mean and spread over seeds."""
    losses = [run["loss"] for run in runs]
    trm = job.recipe.trm
    updates = trm.supervision if trm is not None and trm.resolved.updates == "each" else 1
    return {
        "words": job.candidate.words,
        "kind": job.candidate.kind,
        "keys": {key: str(value) for key, value in job.candidate.keys.items()},
        "rates_factor": job.candidate.rates,
        "model": f"{job.shape.layers} layers of {job.shape.dim}, {job.shape.parameters:,} parameters",
        "steps": job.steps,
        "updates": job.steps * updates,
        "tokens": job.steps * job.batch,
        "flops": job.flops,
        "loss": statistics.fmean(losses),
        "spread": max(losses) - min(losses),
        "refinement_percent": statistics.fmean(run["refinement_percent"] for run in runs),
        "runs": runs,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="a toy over characters, for a CPU; its own candidates and size")
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, help="`equal` is always among them")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="of the recursive model")
    parser.add_argument("--depth", type=int)
    parser.add_argument("--rates", type=float, help="factor on all derived learning rates")
    parser.add_argument("--minutes", type=float, help="no run begins that would end later than this: 7 on a GPU, 90 on a CPU")
    parser.add_argument("--shared", action="store_true", help="other work is on the GPU meanwhile: seconds say nothing then")
    parser.add_argument("--resume", action="store_true", help="keep the runs that --out already has")
    args = parser.parse_args()
    args.minutes = args.minutes or (90.0 if args.tiny else 7.0)
    return args


def main() -> None:
    args = arguments()
    changes = {name: value for name in ("steps", "depth", "rates") if (value := getattr(args, name)) is not None}
    size = replace(TINY if args.tiny else LARGE, **changes)
    torch.set_float32_matmul_precision("high" if size.device == "cuda" else "highest")
    torch._dynamo.config.recompile_limit = KERNELS
    deterministic(size.device == "cpu")  # on a GPU that would compile attention for minutes
    chosen = list(dict.fromkeys(["equal", *(args.candidates or (ON_A_CPU if args.tiny else ON_A_GPU))]))
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(base_recipe(size, {}), cache=Path(folder))
        jobs = [make_job(name, size, data.tokenizer.vocab) for name in chosen]
        run_all(args, size, jobs, data)


def run_all(args: argparse.Namespace, size: Size, jobs: list[PresetJob], data: PreparedData) -> None:
    """While there is time all seeds of what decides, then of the others; the report is written after each run."""
    started, longest = time.monotonic(), 0.0
    before = resumed(args.out, size) if args.resume else {}
    runs: dict[str, list[dict[str, Any]]] = {job.name: list(before.get(job.name, {}).get("runs", [])) for job in jobs}
    left_out: list[str] = []
    for seed, job in in_order(jobs, args.seeds):
        began = time.monotonic()
        if any(run["seed"] == seed for run in runs[job.name]):
            continue
        if began - started + longest > args.minutes * 60:
            left_out.append(f"{job.name}, seed {seed}")
            continue
        try:
            result = train(job, data, size, seed)
        except RuntimeError as error:  # out of memory, say: the others must not be lost with it
            left_out.append(f"{job.name}, seed {seed}: {str(error).splitlines()[0][:200]}")
            if job.name == "equal":
                raise  # what all are compared with
            continue
        if size.device == "cuda":  # what was recorded has memory of its own
            gc.collect()
            torch.cuda.empty_cache()
        runs[job.name].append(result)
        longest = max(longest, time.monotonic() - began)
        steps = " ".join(f"{loss:.4f}" for loss in result["loss_of_steps"])
        print(f"seed {seed} {job.name:<20} {job.steps:>5} steps, {result['seconds']:>5} s: {steps}", flush=True)
        write(args.out, size, data, before | {j.name: summary(j, runs[j.name]) for j in jobs if runs[j.name]}, left_out)
    if left_out:
        write(args.out, size, data, before | {j.name: summary(j, runs[j.name]) for j in jobs if runs[j.name]}, left_out)
        print(f"no time for: {'; '.join(left_out)}")


def in_order(jobs: list[PresetJob], seeds: int) -> list[tuple[int, PresetJob]]:
    """(seed, candidate), most informative first: a later stop then costs candidates, not the decision."""
    first = [job for job in jobs if job.name in DECIDE]
    return [(seed, job) for group in (first, [job for job in jobs if job not in first]) for seed in range(seeds) for job in group]


def resumed(path: Path, size: Size) -> dict[str, dict[str, Any]]:
    """The results of an earlier command of the same size and versions."""
    if not path.exists():
        return {}
    report = json.loads(path.read_text())
    if report["size"] != vars(size) or report["versions"] != versions():
        raise SystemExit(f"{path} is of another size or of other versions: leave --resume out, or name another --out")
    found: dict[str, dict[str, Any]] = report["results"]
    return found


def versions() -> dict[str, str]:
    """What results depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__}


def write(path: Path, size: Size, data: PreparedData, results: dict[str, dict[str, Any]], left_out: list[str]) -> None:
    """The report as it stands."""
    report = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "command": ["python", "benchmarks/presets.py", *sys.argv[1:]],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "gpu": torch.cuda.get_device_name() if size.device == "cuda" else None,
            "cpu": platform.machine(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
        },
        "versions": versions(),
        "training_seconds": round(sum(run["seconds"] for result in results.values() for run in result["runs"]), 1),
        "size": vars(size),
        "vocab": data.tokenizer.vocab,
        "train_tokens": data.train.count,
        "left_out": left_out,
        "verdict": verdict(results),
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
