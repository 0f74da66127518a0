"""Which way of recursing over Sudoku learns fastest? Each variant trains for the same seconds in one process, then is examined.

    OMP_NUM_THREADS=1 python benchmarks/sudoku_sweep.py --tiny --seconds 30 --out benchmarks/results/sudoku-sweep-cpu.json
    python benchmarks/sudoku_sweep.py --seconds 40 --most 290 --variants each-narrow each each-long looped-narrow \
        --out benchmarks/results/sudoku-sweep-h200.json

Variants are those of sudoku_variants.py, tiny ones with --tiny. A variant's first steps, in which kernels are made, are not
counted. What is examined are the averaged weights on held-out puzzles. Learning rates rise, stay, and fall as in a run, by the
share of the seconds that have passed: of a CPU's work, or of a GPU's time. The report is written after each variant; one that
breaks leaves its error there. Expect some 15 s of compiling a variant on a GPU beside --seconds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sudoku_variants import TINY, TINY_VARIANTS, VARIANTS, Keys

from windtunnel.data import BatchLoader, PreparedData, PuzzleFile, prepare
from windtunnel.model import (
    CudaRecorder,
    RecursiveGPT,
    Replay,
    Supervision,
    build_model,
    derive,
    deterministic,
    objective_of,
    recipe_shape,
)
from windtunnel.recipe import Recipe, load_recipe
from windtunnel.train import MuonAdamW
from windtunnel.train.optimizer import Scalars
from windtunnel.train.schedule import scalars

WARM_STEPS = 3
"""Not counted: kernels are made in them."""
EXAMINED = 1024
AT_ONCE = 256


class Trainer:
    """A variant under way.

    Attributes:
        passed: seconds of training. steps: taken. losses: of the last supervision step, one a step.
    """

    def __init__(self, recipe: Recipe, data: PreparedData, device: str, micro: int) -> None:
        self.recipe, self.device = recipe, device
        self.shape = recipe_shape(recipe, data.tokenizer.vocab)
        compute = torch.bfloat16 if device == "cuda" else torch.float32
        self.model = build_model(self.shape, device=device, compute=compute, seed=recipe.seed)
        stage = recipe.pretrain
        self.rates = derive(recipe, data.tokenizer.vocab)
        ema = recipe.trm.ema if recipe.trm is not None else None
        self.optimizer = MuonAdamW(self.model, self.rates, compiled=device == "cuda", clip=stage.optimizer.clip, ema=ema)
        self.objective = None if recipe.trm is None else objective_of(recipe.trm.resolved)
        self.rows = max(1, (stage.batch_tokens or 0) // self.shape.sequence)
        self.micro = min(self.rows, micro)
        self.pieces = max(1, self.rows // self.micro)
        self.targets = self.micro * self.pieces * self.shape.sequence
        if self.objective is not None:
            assert isinstance(self.model, RecursiveGPT)
            run = Replay(CudaRecorder() if stage.graphs and device == "cuda" else None)
            self.supervision = Supervision(self.model, self.objective, 1 / self.targets, run)
        self.data, self.losses = data, list[torch.Tensor]()
        self.passed, self.steps = 0.0, 0

    def run(self, seconds: float) -> None:
        """Train for so long."""
        layout = {"sequence": self.shape.sequence, "micro_batch": self.micro, "accumulation": self.pieces, "rank": 0, "world": 1}
        with BatchLoader(self.data.train, **layout, seed=self.recipe.seed, device=self.device) as loader:
            began = self.clock()
            while self.passed < seconds:
                self.step([loader.next_batch() for _ in range(self.pieces)], min(1.0, self.passed / seconds))
                if self.steps == WARM_STEPS:
                    began = self.clock()
                elif self.steps > WARM_STEPS and self.steps % 4 == 0:
                    self.passed = self.clock() - began
            self.passed = self.clock() - began

    def step(self, batch: list[tuple[torch.Tensor, torch.Tensor]], progress: float) -> None:
        """One batch."""
        stage = self.recipe.pretrain
        now = scalars(
            stage.schedule, momentum=stage.optimizer.momentum, weight_decay=self.rates.weight_decay.value, step=self.steps,
            progress=progress,
        )  # fmt: skip
        if self.objective is None:
            loss = torch.zeros((), device=self.device)
            for x, y in batch:
                part = self.model(x, y, reduction="sum") / self.targets
                part.backward()
                loss += part.detach()
        else:
            each = partial(update, self.optimizer, now) if self.objective.updates == "each" else None
            loss = self.supervision.step(batch, each).losses[-1] / self.targets
        if self.objective is None or self.objective.updates == "once":
            self.optimizer.step(now)
        self.losses.append(loss.detach())
        self.steps += 1

    def clock(self) -> float:
        """Seconds: of this process's own work on a CPU, whatever else that does; of a GPU once it is idle."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    @torch.no_grad()
    def examine(self, most: int) -> dict[str, Any]:
        """Held-out puzzles solved, and cells right, after each supervision step, with averaged weights."""
        assert isinstance(self.data.validation, PuzzleFile)
        puzzles = self.data.validation.content.take(np.arange(min(most, self.data.validation.puzzles)))
        right = []
        with self.optimizer.averaged():
            self.model.eval()
            for first in range(0, len(puzzles), AT_ONCE):
                x = torch.from_numpy(puzzles.inputs[first : first + AT_ONCE].astype(np.int64)).to(self.device)
                y = torch.from_numpy(puzzles.solutions[first : first + AT_ONCE].astype(np.int64)).to(self.device)
                model = self.model
                tokens = model.solve_steps(x)[0] if isinstance(model, RecursiveGPT) else model(x).argmax(-1)[None]
                right.append((tokens == y).cpu().numpy())
            self.model.train()
        found, blank = np.concatenate(right, axis=1), puzzles.inputs == 0
        exact = found.all(2).mean(1)
        return {
            "puzzles": len(puzzles),
            "exact": float(exact[-1]),
            "cells": float(found[-1][blank].mean()),
            "exact_by_step": [round(float(share), 4) for share in exact],
        }


def update(optimizer: MuonAdamW, now: Scalars, _: int) -> None:
    """What happens after each supervision step where each has an update."""
    optimizer.step(now)


def try_variant(keys: Keys, args: argparse.Namespace, data: PreparedData, device: str) -> dict[str, Any]:
    """Train and examine a variant; everything that is kept of it."""
    recipe = recipe_of(args, keys)
    trainer = Trainer(recipe, data, device, args.micro)
    trainer.run(args.seconds)
    losses = torch.stack(trainer.losses).tolist()
    every = max(1, len(losses) // 40)
    seen = (trainer.steps - WARM_STEPS) * trainer.micro * trainer.pieces
    flops = seen * trainer.shape.sequence * trainer.shape.flops_per_token
    memory = {"peak_allocated": torch.cuda.max_memory_allocated()} if device == "cuda" else {}
    return {
        "keys": {key: str(value) for key, value in keys.items()},
        "parameters": trainer.shape.parameters,
        "batch": trainer.micro * trainer.pieces,
        "steps": trainer.steps,
        "puzzles_seen": seen,
        "puzzles_per_second": round(seen / trainer.passed, 1),
        "teraflops_per_second": flops / trainer.passed / 1e12,
        "seconds": round(trainer.passed, 1),
        "held_out": trainer.examine(EXAMINED),
        "loss": [round(sum(losses[i : i + every]) / len(losses[i : i + every]), 4) for i in range(0, len(losses), every)],
        **memory,
    }


def recipe_of(args: argparse.Namespace, keys: Keys) -> Recipe:
    """The recipe of a variant."""
    given = dict(setting.partition("=")[::2] for setting in args.set)
    return load_recipe("trm-sudoku", [f"{key}={value}" for key, value in ((TINY if args.tiny else {}) | keys | given).items()])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="4x4 puzzles and tiny models, for a CPU")
    parser.add_argument("--seconds", type=float, default=35.0, help="of training, for each variant")
    parser.add_argument(
        "--most", type=float, help="seconds in all, no variant begins that would end later: 540 on a GPU, else none"
    )
    parser.add_argument("--variants", nargs="+", choices=sorted({*VARIANTS, *TINY_VARIANTS}), help="all, without it")
    parser.add_argument("--micro", type=int, default=1024, help="most puzzles at once")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the recipe, for all variants")
    return parser.parse_args()


def main() -> None:
    args, started = arguments(), time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    most = args.most or (540.0 if device == "cuda" else float("inf"))
    known = TINY_VARIANTS if args.tiny else VARIANTS
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    deterministic(device == "cpu")
    report: dict[str, Any] = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
            "cpu": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "settings": {"tiny": args.tiny, "seconds": args.seconds, "micro": args.micro, "set": args.set},
        "results": {},
        "left_out": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(recipe_of(args, {}), cache=Path(folder))
        report["puzzles"] = {"notes": data.notes, "seconds": round(time.monotonic() - started, 1)}
        print(f"{data.notes[0]}; {report['puzzles']['seconds']} s", flush=True)
        longest = args.seconds
        for name in args.variants or known:
            began = time.monotonic()
            if began - started + longest > most:
                report["left_out"].append(name)
                continue
            try:
                report["results"][name] = found = try_variant(known[name], args, data, device)
                held = found["held_out"]
                print(
                    f"{name:<14} {held['exact']:6.1%} solved, {held['cells']:.1%} of blank cells, loss {found['loss'][-1]:.3f}; "
                    f"{found['puzzles_seen']:,} puzzles, {found['teraflops_per_second']:.3g} TFLOP/s",
                    flush=True,
                )
            except Exception as error:  # one variant that does not run must not cost the others theirs
                traceback.print_exc(file=sys.stderr)
                report["results"][name] = {"error": f"{type(error).__name__}: {error}"[:400]}
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            longest = max(longest, time.monotonic() - began)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
