"""What recursion costs, and the public TRM fork of nanochat beside it.

    python benchmarks/recursion.py --parts speed memory --out benchmarks/results/recursion-h200.json
    PEER=fork's checkout python benchmarks/recursion.py --parts fork --out benchmarks/results/recursion-fork-h200.json
    PEER=fork's checkout python benchmarks/recursion.py --parts losses --out benchmarks/results/recursion-fork-losses.json

speed   model FLOP/s of the recursive pass (forward and backward) over that of the plain GPT of the same shape and micro-batch,
        in turns in one process; every pass counts, what is computed again does not
steps   the same of whole training steps, updates too, as `windtunnel train` makes them: the plain GPT compiled, recursive passes
        recorded, presets aggressive and honest; one sequence batch for all
memory  tokens a second and peak memory of whole steps at the phase-1 shape of the 8 x H100 guide, by recompute and micro-batch
fork    does the fork run at that shape? At which batch does it? Its tokens a second compiled and eager, ours at the same batch
losses  the same weights and the same batch: objective, losses of supervision steps and gradients of both
`losses` is in fp32; with `--sequence 128` a CPU does it at d12 in minutes. `--tiny` runs everything on a CPU, where only
`losses` means anything.

The report is written after every measurement, nothing begins that --seconds has no time for, and a part that breaks leaves its
error there. On an H200 expect speed 60 s, steps 45 s, memory 120 s, fork eager 200 s, and 240 s for each batch at which the fork
is compiled: `--parts fork --modes compiled --from-batch N` from the batch that it ran eagerly.
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
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from recursion_losses import losses
from recursion_peer import PRESETS, fork_model
from recursion_size import Keep, Size, batch_of, wait

from windtunnel.model import (
    GPT,
    CudaRecorder,
    Objective,
    RecursiveGPT,
    Replay,
    Supervision,
    build_model,
    derive,
    enable_fp8,
    gpt_shape,
    objective_of,
    recipe_shape,
    train_supervised,
)

# What of ours stands beside the fork, at the batch that it can run.
OURS: list[dict[str, Any]] = [
    {"recompute": "none"},
    {"recompute": "step"},
    {"recompute": "none", "graphs": True},
    {"recompute": "none", "graphs": True, "precision": "fp8"},
]
CHILD_SECONDS = 330.0
LEAST_SECONDS = 40.0
"""With less left no process is started."""


class Time:
    """What is left of --seconds."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()


def our_step(
    size: Size,
    batch: int,
    micro: int,
    recompute: str = "none",
    graphs: bool = False,
    precision: str = "bf16",
    preset: str = "aggressive",
) -> Callable[[], None]:
    """A whole training step of ours: gradients, update. graphs: recorded as CUDA graphs."""
    from windtunnel.train.optimizer import MuonAdamW, Scalars

    recipe = size.recipe(f"trm.preset={preset}")
    model = build_model(
        recipe_shape(recipe, size.vocab), device=size.device, compute=size.compute, seed=1, recompute=recompute
    )  # fmt: skip
    assert isinstance(model, RecursiveGPT)
    if precision == "fp8":
        enable_fp8(model)
    optimizer = MuonAdamW(model, derive(recipe, size.vocab), compiled=size.device.type == "cuda")
    objective = objective_of(recipe.trm.resolved)
    x, y = batch_of(size, batch)
    pieces = list(zip(x.split(micro), y.split(micro), strict=True))
    work = Supervision(model, objective, 1 / y.numel(), Replay(CudaRecorder() if graphs else None))

    def step() -> None:
        work.step(pieces)
        optimizer.step(Scalars(1.0, 0.95, 0.0))

    return step


def plain_step(size: Size, batch: int) -> Callable[[], None]:
    """A whole training step of the plain GPT of the same shape, in one micro-batch."""
    from windtunnel.train.optimizer import MuonAdamW, Scalars

    recipe = size.recipe()
    cuda = size.device.type == "cuda"
    model = build_model(gpt_shape(recipe.gpt, size.vocab), device=size.device, compute=size.compute, seed=1)
    if cuda:
        model.compile()
    optimizer = MuonAdamW(model, derive(recipe, size.vocab), compiled=cuda)
    x, y = batch_of(size, batch)

    def step() -> None:
        (model(x, y, reduction="sum") * (1 / y.numel())).backward()
        optimizer.step(Scalars(1.0, 0.95, 0.0))

    return step


def steps(size: Size, rounds: int, keep: Keep) -> None:
    """Part `steps`."""
    batch, graphs = size.micro[-1], size.device.type == "cuda"
    recipe = size.recipe()
    once = gpt_shape(recipe.gpt, size.vocab).flops_per_token * batch * size.sequence
    whole = recipe_shape(recipe, size.vocab).flops_per_token * batch * size.sequence
    sides = {"plain": (plain_step(size, batch), once, 8)}
    for preset in ("aggressive", "honest"):
        sides[preset] = (our_step(size, batch, batch, graphs=graphs, preset=preset), whole, 1)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for step, _, _ in sides.values():
        timed(step, size.device, 4)
    for _ in range(rounds):
        for name, (step, _, times) in sides.items():
            seconds[name].append(timed(step, size.device, times))
    rates = {name: flops / statistics.median(seconds[name]) / 1e12 for name, (_, flops, _) in sides.items()}
    ratios = {name: rate / rates["plain"] for name, rate in rates.items() if name != "plain"}
    keep({"micro_batch": batch, "seconds": seconds, "tflops": rates, "ratios": ratios})


def passes(size: Size, micro: int) -> dict[str, tuple[Callable[[], None], float]]:
    """Forward and backward of the plain and the recursive model: (function, FLOPs)."""
    recipe = size.recipe()
    x, y = batch_of(size, micro)
    shapes = {"plain": gpt_shape(recipe.gpt, size.vocab), "recursive": recipe_shape(recipe, size.vocab)}
    count = recipe.trm.supervision
    # Nothing is rewarded and every step detached: what is timed is the recursion itself.
    objective = Objective(tuple([1 / count] * count), 0.0, 0, "once")

    def run(model: GPT) -> Callable[[], None]:
        if isinstance(model, RecursiveGPT):
            return lambda: void(train_supervised(model, [(x, y)], objective, scale=1 / y.numel()))
        return lambda: (model(x, y, reduction="sum") * (1 / y.numel())).backward()

    def void(_: object) -> None:
        return None

    made = {}
    for name, shape in shapes.items():
        model = build_model(shape, device=size.device, compute=size.compute, seed=1)
        made[name] = (run(model), shape.flops_per_token * x.numel())
    return made


def timed(function: Callable[[], None], device: torch.device, times: int) -> float:
    """Seconds of one of `times` calls, from idle to idle."""
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        function()
    wait(device)
    return (time.perf_counter() - began) / times


def speed(size: Size, rounds: int, keep: Keep) -> None:
    """Part `speed`."""
    for micro in size.micro:
        sides = passes(size, micro)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for function, _ in sides.values():
            timed(function, size.device, 2)
        for _ in range(rounds):
            for name, (function, _) in sides.items():
                # About as long a look at each: the recursive pass does an order of magnitude more.
                seconds[name].append(timed(function, size.device, 2 if name == "recursive" else 16))
        rates = {name: flops / statistics.median(seconds[name]) / 1e12 for name, (_, flops) in sides.items()}
        entry = {"micro_batch": micro, "seconds": seconds, "tflops": rates, "ratio": rates["recursive"] / rates["plain"]}
        keep(entry)


def measure(step: Callable[[], None], size: Size, batch: int, steps: int) -> dict[str, Any]:
    """Tokens a second and peak memory of a step, or that it runs out of memory."""
    cuda = size.device.type == "cuda"
    try:
        began = time.perf_counter()
        step()
        wait(size.device)
        first = time.perf_counter() - began
        step()
        step()  # by now what is recorded is
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        seconds = [timed(step, size.device, 1) for _ in range(steps)]
    except torch.OutOfMemoryError as error:
        return {"batch": batch, "out_of_memory": str(error).splitlines()[0][:200]}
    tokens = batch * size.sequence
    peaks = (
        {"peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()} if cuda else {}
    )
    rate = tokens / statistics.median(seconds)
    return {"batch": batch, "first_step_seconds": first, "seconds": seconds, "tokens_per_second": rate, **peaks}


def child(size: Size, what: dict[str, Any], tiny: bool, clock: Time) -> dict[str, Any]:
    """`measure` in a process of its own: running out of memory or time leaves nothing behind."""
    if clock.left < LEAST_SECONDS:
        return {**what, "left_out": f"{max(0.0, clock.left):.0f} s were left"}
    command = [sys.executable, __file__, "--child", json.dumps(what), *(["--tiny"] if tiny else [])]
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    limit = min(CHILD_SECONDS, clock.left)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {**what, "timed_out_after": round(limit)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        return {**what, **json.loads(lines[-1])}
    print(done.stderr[-3000:], file=sys.stderr, flush=True)
    return {**what, "exit_code": done.returncode, "last_words": " | ".join(done.stderr.strip().splitlines()[-2:])[-300:]}


def run_child(size: Size, what: dict[str, Any]) -> dict[str, Any]:
    """What `child` asks for."""
    if what["side"] == "ours":
        settings = {name: what[name] for name in ("micro", "recompute", "graphs", "precision") if name in what}
        return measure(our_step(size, what["batch"], **settings), size, what["batch"], 9)
    recipe = size.recipe()
    try:
        model = fork_model(Path(os.environ["PEER"]), recipe_shape(recipe, size.vocab), "aggressive", size.device)
        runs = torch.compile(model, dynamic=False) if what["compiled"] else model
        optimizers = model.setup_optimizers()
    except torch.OutOfMemoryError as error:
        return {"out_of_memory": str(error).splitlines()[0][:200]}
    x, y = batch_of(size, what["batch"])

    def step() -> None:
        with torch.autocast(size.device.type, torch.bfloat16, enabled=size.device.type == "cuda"):
            loss, _ = runs(x, y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return measure(step, size, what["batch"], 3)


def memory(size: Size, tiny: bool, clock: Time, keep: Keep) -> None:
    """Part `memory`."""
    for graphs in (False, True) if size.device.type == "cuda" else (False,):
        for micro, recompute in ((size.batch, "step"), (size.micro[0], "none"), (size.batch, "block")):
            what = {"side": "ours", "batch": size.batch, "micro": micro, "recompute": recompute, "graphs": graphs}
            keep(child(size, what, tiny, clock))


def fork(size: Size, args: argparse.Namespace, clock: Time, keep: Keep) -> None:
    """Part `fork`: from the guide's batch down to one that the fork can run; then ours at that batch."""
    ran = set()
    for mode in args.modes:
        batch = args.from_batch or size.batch
        while batch:
            found = child(size, {"side": "fork", "batch": batch, "compiled": mode == "compiled"}, args.tiny, clock)
            keep(found)
            if "tokens_per_second" in found:
                ran.add(batch)
                break
            if "out_of_memory" not in found:
                break  # a smaller batch would not mend it
            batch //= 2
    for batch in sorted(ran):
        for row in OURS if size.device.type == "cuda" else OURS[:2]:
            keep(child(size, {"side": "ours", "batch": batch, "micro": batch, **row}, args.tiny, clock))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["speed", "memory"], choices=["speed", "steps", "memory", "fork", "losses"])
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"], help="of the fork")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--sequence", type=int, help="for `losses`: shorter than the guide's 1,024")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS), help="for `losses`")
    parser.add_argument("--rounds", type=int, default=9, help="of `speed`: turns of either model")
    parser.add_argument("--from-batch", type=int, help="of the fork: the first that is tried, instead of the guide's")
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size = Size(args.tiny, args.sequence)
    if size.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    if args.child:
        print(json.dumps(run_child(size, args.child)), flush=True)
        return
    report: dict[str, Any] = {
        "what": __doc__.split("\n")[0] if __doc__ else "",
        "date": datetime.date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if size.device.type == "cuda" else f"CPU, {platform.machine()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda},
        "shape": {"depth": size.depth, "sequence": size.sequence, "vocab": size.vocab, "settings": size.settings},
    }
    clock = Time(args.seconds)
    parts: dict[str, Callable[[Keep], None]] = {
        "speed": lambda keep: speed(size, args.rounds, keep),
        "steps": lambda keep: steps(size, args.rounds, keep),
        "memory": lambda keep: memory(size, args.tiny, clock, keep),
        "fork": lambda keep: fork(size, args, clock, keep),
        "losses": lambda keep: losses(size, 3 if args.tiny else 1, args.presets, keep),
    }
    broken = False
    for part in args.parts:
        try:
            parts[part](partial(write, args.out, report, part))
        except Exception as error:  # one part that breaks must not cost the others theirs
            traceback.print_exc()
            write(args.out, report, part, {"error": f"{type(error).__name__}: {error}"[:400]})
            broken = True
        if size.device.type == "cuda":
            torch.cuda.empty_cache()
    sys.exit(1 if broken else 0)


def write(path: Path | None, report: dict[str, Any], part: str, entry: dict[str, Any]) -> None:
    """Add a measurement to the report, on disk too."""
    report.setdefault(part, []).append(entry)
    print(f"{part}: {json.dumps(entry)}", flush=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
