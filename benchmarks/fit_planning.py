"""The planner's time constants, fitted to the `calibrate` half of what `planning.py measure` measured.

    python benchmarks/fit_planning.py
    python benchmarks/fit_planning.py --out src/windtunnel/plan/calibration/H200.json

The host's time to launch kernels is fitted to planning_recursive.yaml, whose small steps are bound by it; all else stays as
plain GPTs have it. To planning_recorded.yaml nothing is fitted: what plans miss there is the error that they state.
Only measurements whose configuration says `split: calibrate` are read. Each constant is drawn to its prior
(the dataclass's default) with a stated looseness, so that what the measurements do not determine stays where it
was. Memory's constants are counted, not fitted; their errors are printed too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from planning import RECORDED, RECORDED_RESULTS, RECURSIVE, RECURSIVE_RESULTS, RESULTS, Config, load_configs

from windtunnel.model import recipe_shape
from windtunnel.plan import GPTConstants, HFConstants, engine_fsdp, engine_gpt, gpt_steptime
from windtunnel.plan.cost import vocabulary
from windtunnel.plan.engine_fsdp import gradient_bytes
from windtunnel.plan.gpt_work import passes_of
from windtunnel.plan.hf_steptime import step_seconds
from windtunnel.plan.hf_work import fine_tuning, totals
from windtunnel.plan.types import OUTSIDE_ALLOCATOR
from windtunnel.rig import parse_rig

OUT = Path(__file__).parent.parent / "src" / "windtunnel" / "plan" / "calibration" / "H200.json"

# Looseness: the standard deviation of a constant's logarithm around its prior.
HUGGING_FACE = {
    "matmul_efficiency": 0.15, "half_dim": 0.5, "half_tokens": 0.5, "grouped_efficiency": 0.4, "attention_forward": 0.3,
    "attention_backward": 0.3, "half_head": 0.5, "half_sequence": 0.7, "traffic_dims": 0.5, "traffic_hidden": 0.5,
    "traffic_routed": 0.5, "traffic_adapter": 0.7, "logit_traffic": 0.4, "optimizer_efficiency": 0.4, "rounding_factor": 0.4,
    "gather_slowdown": 0.7, "overlap": 0.2, "link_efficiency": 0.2,
}  # fmt: skip
GPT = {
    "matmul_efficiency": 0.15, "half_dim": 0.5, "half_tokens": 0.5, "attention_efficiency": 0.3, "fp8_efficiency": 0.3,
    "traffic_bytes": 0.4, "optimizer_bytes": 0.4, "micro_step_bytes": 0.4,
}  # fmt: skip
# What recursive GPTs add to the GPT's: their small steps are bound by it, and no plain GPT's is.
RECURSIVE_GPT = {"launch_seconds": 0.5}
# What a plan says of where its constants come from.
SOURCE = "measured on an H200: docs/accuracy.md"
# A step's seconds weigh most; those of its phases were read in one step that waited between them.
STEP_NOISE, PHASE_NOISE = 0.02, 0.06
LEAST_MEMORY_ERROR, LEAST_TIME_ERROR = 0.06, 0.10
# What rows of planning-h200.json were measured before: gradients of a rank that is alone stay where they were cast to.
ONE_BUFFER = "one buffer"


Planner = Callable[[Any], dict[str, float]]


@dataclass(frozen=True)
class Fitted:
    """Constants before and after, and the largest relative errors: of memory as counted, of time with each left out."""

    prior: Any
    constants: Any
    looseness: dict[str, float]
    memory_error: float
    time_error: float


@dataclass(frozen=True)
class Measured:
    """A configuration of the `calibrate` half with what was measured; before: what the engine did not do yet."""

    config: Config
    trial: dict[str, Any]
    before: tuple[str, ...] = ()

    def logs(self, seconds: dict[str, float]) -> list[float]:
        """log(planned / measured) over the noise, of the step and of the phases that are given."""
        rows = [math.log(seconds["step"] / self.trial["step_seconds"]) / STEP_NOISE]
        for name, phase in self.trial["phases"].items():
            if name in seconds:
                rows.append(math.log(seconds[name] / phase["seconds"]) / PHASE_NOISE)
        return rows


def read(base: str, *, recorded: bool = False) -> list[Measured]:
    """The `calibrate` half's measurements of one recipe; nothing of the other half. recorded: those with recorded passes."""
    recursive = (RECORDED, RECORDED_RESULTS) if recorded else (RECURSIVE, RECURSIVE_RESULTS)
    configs, results = (load_configs(recursive[0]), recursive[1]) if base == "trm" else (load_configs(), RESULTS)
    if not results.exists():
        return []
    wanted = [c for c in configs if c.split == "calibrate" and c.base == base]
    names = {c.name for c in wanted}
    entries = {entry["name"]: entry for entry in json.loads(results.read_text())["configs"] if entry["name"] in names}
    return [
        Measured(c, entries[c.name]["trial"], tuple(entries[c.name].get("before", ())))
        for c in wanted
        if c.name in entries and not entries[c.name]["trial"]["failure"]
    ]


def hf_seconds(measured: Measured) -> Callable[[HFConstants], dict[str, float]]:
    """Planned seconds of a Hugging Face model's step as a function of the constants; of the engine that was measured."""
    sums, layout, rig = totals(fine_tuning(measured.config.recipe())), measured.config.layout(), parse_rig(measured.config.rig)
    assert rig.gpu is not None
    bandwidth = rig.gpu.bandwidth_gbs * 1e9
    # Gradients were read and written once more than a plan counts now.
    copied = 2 * gradient_bytes(sums.work) * sums.trained * layout.accumulation if ONE_BUFFER in measured.before else 0.0

    def seconds(c: HFConstants) -> dict[str, float]:
        time, more = step_seconds(sums, layout, rig, c), copied / (bandwidth * c.bandwidth_efficiency)
        return {"step": time.seconds + more, "forward": time.forward, "backward": time.backward + more}

    return seconds


def gpt_seconds(measured: Measured) -> Callable[[GPTConstants], dict[str, float]]:
    """The same of a GPT's."""
    recipe, layout, rig = measured.config.recipe(), measured.config.layout(), parse_rig(measured.config.rig)
    shape = recipe_shape(recipe, vocabulary(recipe)[0])
    passes = passes_of(recipe, shape)
    return lambda c: {"step": gpt_steptime.step_seconds(shape, layout, rig, c, passes).seconds}


def fit(prior: Any, looseness: dict[str, float], rows: Callable[[Any], Sequence[float]], rounds: int = 30) -> Any:
    """Constants that minimise the squared rows and their own distance from the prior (Levenberg-Marquardt, in logarithms)."""
    names = list(looseness)
    loose = np.array([looseness[name] for name in names])

    def at(x: np.ndarray) -> Any:
        return replace(prior, **{n: getattr(prior, n) * math.exp(v) for n, v in zip(names, x, strict=True)})

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.array(rows(at(x))), x / loose])

    x, damping = np.zeros(len(names)), 1e-2
    now = residuals(x)
    for _ in range(rounds):
        slope = np.stack([(residuals(x + 1e-4 * e) - now) / 1e-4 for e in np.eye(len(names))], axis=1)
        step = np.linalg.solve(slope.T @ slope + damping * np.eye(len(names)), -slope.T @ now)
        then = residuals(x + step)
        if then @ then < now @ now:
            x, now, damping = x + step, then, damping / 3
        else:
            damping *= 4
    return at(x)


def reserved(components: dict[str, float]) -> float:
    """GiB that PyTorch's allocator reserves."""
    return sum(gib for name, gib in components.items() if name not in OUTSIDE_ALLOCATOR)


def report(title: str, rows: list[tuple[str, float, float]]) -> tuple[float, float]:
    """Print relative errors (memory, time) by configuration; returns the largest of each."""
    print(f"{title}: {len(rows)} configurations, `calibrate` half")
    for name, memory, time in rows:
        print(f"  {name:36} memory {memory:+6.1%}  time {time:+6.1%}")
    largest = []
    for label, index in (("memory", 1), ("time", 2)):
        errors = [abs(row[index]) for row in rows]
        print(f"  {label}: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
        largest.append(max(errors))
    return largest[0], largest[1]


def left_out(prior: Any, looseness: dict[str, float], measured: list[Measured], planned: list[Planner]) -> list[float]:
    """Each configuration's relative error in time with constants fitted to the others."""
    errors = []
    for i, (m, seconds) in enumerate(zip(measured, planned, strict=True)):
        others = [pair for j, pair in enumerate(zip(measured, planned, strict=True)) if j != i]
        fitted = fit(prior, looseness, lambda c, others=others: [r for o, f in others for r in o.logs(f(c))])
        errors.append(seconds(fitted)["step"] / m.trial["step_seconds"] - 1)
    return errors


def fit_family(title: str, prior: Any, looseness: dict[str, float], measured: list[Measured], planner: Any, gib: Any) -> Fitted:
    """Fit one family's constants, print what they miss, and what they miss where each is left out in turn."""
    planned: list[Planner] = [planner(m) for m in measured]
    pairs = list(zip(measured, planned, strict=True))
    found = fit(prior, looseness, lambda c: [r for m, f in pairs for r in m.logs(f(c))])
    rows = [_errors(m, gib(m, found), seconds(found)["step"]) for m, seconds in pairs]
    memory, _ = report(title, rows)
    without = [abs(error) for error in left_out(prior, looseness, measured, planned)]
    print(f"  time, each left out of its own fit: median {statistics.median(without):.1%}, worst {max(without):.1%}")
    return Fitted(prior, found, looseness, memory, max(without))


def hf_gib(m: Measured, c: HFConstants) -> float:
    """Planned reserved GiB of a Hugging Face model."""
    return reserved(engine_fsdp.memory(totals(fine_tuning(m.config.recipe())), m.config.layout(), c).components)


def gpt_gib(m: Measured, c: GPTConstants) -> float:
    """The same of a GPT."""
    recipe = m.config.recipe()
    shape = recipe_shape(recipe, vocabulary(recipe)[0])
    return reserved(engine_gpt.memory(shape, m.config.layout(), c, passes_of(recipe, shape)).components)


def _errors(m: Measured, gib: float, seconds: float) -> tuple[str, float, float]:
    return m.config.name, gib / m.trial["reserved_gib"] - 1, seconds / m.trial["step_seconds"] - 1


def _rounded(found: Fitted) -> dict[str, float]:
    """As they are written."""
    return {name: float(f"{getattr(found.constants, name):.4g}") for name in found.looseness}


def main() -> None:
    """Fit both families; with --out, write the file that ships with the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help=f"write the constants; the package's file is {OUT}")
    args = parser.parse_args()
    fitted = {
        "gpt": fit_family("GPT", GPTConstants(), GPT, read("charlm"), gpt_seconds, gpt_gib),
        "hf": fit_family("Hugging Face models", HFConstants(), HUGGING_FACE, read("sft"), hf_seconds, hf_gib),
    }
    # With the constants as they are shipped, rounded, and nothing of them changed.
    plain = replace(GPTConstants(), **_rounded(fitted["gpt"]))
    recursive = fit_family("recursive GPT", plain, RECURSIVE_GPT, read("trm"), gpt_seconds, gpt_gib)
    constants: dict[str, dict[str, Any]] = {}
    for family, found in fitted.items():
        values = _rounded(found)
        print(family, {name: (getattr(found.prior, name), value) for name, value in values.items()})
        # What is said of a plan's error is more than was missed here: other shapes, fuller GPUs, other machines of the same kind.
        errors = {
            "memory_error": round(max(LEAST_MEMORY_ERROR, 2 * found.memory_error), 3),
            "time_error": round(max(LEAST_TIME_ERROR, 1.5 * found.time_error), 3),
        }
        constants[family] = {"source": SOURCE} | errors | values
    added = _rounded(recursive) | {"launch_error": round(1.5 * recursive.time_error, 3)}
    if again := read("trm", recorded=True):
        rows = [_errors(m, gpt_gib(m, plain), gpt_seconds(m)(plain)["step"]) for m in again]
        memory, time = report("recursive GPT, recorded, nothing fitted", rows)
        added["recorded_error"] = round(max(LEAST_TIME_ERROR, 1.5 * time), 3)
        added["recorded_memory_error"] = round(max(LEAST_MEMORY_ERROR, 2 * memory), 3)
    print("recursive GPT, added to gpt", added)
    constants["gpt"] |= added
    if args.out is None:
        return
    document = {
        "format": 1,
        "gpu": "H200",
        "date": f"{datetime.date.today():%Y-%m-%d}",
        "constants": constants,
        "observations": [],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {args.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
