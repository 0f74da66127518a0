"""Plans beside measurements: every configuration of planning_configs.yaml, run for a few full-size steps and planned.

    python benchmarks/planning.py measure
    python benchmarks/planning.py report

planning_recorded.yaml (--configs) has the recursive GPTs, and planning_recursive.yaml the same without recorded passes;
planning_recorded_plain.yaml has models without recursion, recorded. Results and report are then files of their own.
`measure` runs as many configurations side by side as the machine has GPUs for, and writes what it
has after each; one that stands in --out (or --have) already is not run again. A row's `before` names
what the engine did not do yet when it was measured (`changes` says it in words). `report` never changes
the planner: its constants were fitted to the `calibrate` half by fit_planning.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from windtunnel.launch import try_steps
from windtunnel.plan import Layout, Plan, make_plan
from windtunnel.recipe import Recipe, UserError, load_recipe, stage_recipe
from windtunnel.rig import parse_rig

HERE = Path(__file__).parent
CONFIGS = HERE / "planning_configs.yaml"
RESULTS = HERE / "results" / "planning-h200.json"
RECURSIVE = HERE / "planning_recursive.yaml"
RECURSIVE_RESULTS = HERE / "results" / "planning-recursive-h200.json"
RECORDED = HERE / "planning_recorded.yaml"
RECORDED_RESULTS = HERE / "results" / "planning-recorded-h200.json"
NEEDED_SECONDS = 45.0  # left in the call, or nothing more is begun


@dataclass(frozen=True)
class Config:
    """A recipe with its layout; see planning_configs.yaml."""

    name: str
    base: str
    split: str
    gpus: int
    micro_batch: int
    accumulation: int
    keys: dict[str, Any]

    @property
    def rig(self) -> str:
        """As `--on` names it."""
        return self.on("H200")

    def on(self, gpu: str) -> str:
        """Name so many of a GPU."""
        return gpu if self.gpus == 1 else f"{self.gpus}x{gpu}"

    @property
    def overrides(self) -> list[str]:
        """For `--set`."""
        return [f"{key}={_text(value)}" for key, value in self.keys.items()]

    def recipe(self) -> Recipe:
        """The recipe with every key set."""
        recipe = load_recipe(self.base, self.overrides)
        return stage_recipe(recipe, recipe.training[0].name) if recipe.staged else recipe

    def layout(self) -> Layout:
        """The layout that is measured; the plan of this recipe on this rig must choose the same."""
        recipe = self.recipe()
        gpt, stage = recipe.model.kind == "gpt", recipe.pretrain
        graphs = stage.graphs if gpt else recipe.training[0].graphs
        precision = stage.precision if gpt else "auto"
        return Layout(
            ranks=self.gpus, micro_batch=self.micro_batch, accumulation=self.accumulation, sequence=recipe.model.sequence,
            precision="bf16" if precision == "auto" else precision, compile=True, device="cuda",
            shard="optimizer" if gpt else recipe.layout.shard or "full", recompute=recipe.layout.recompute or "none",
            recorded=recipe.trm is not None if graphs == "auto" else graphs,
        )  # fmt: skip

    def plan(self, gpu: str = "H200") -> Plan:
        """What the planner says for so many of a GPU."""
        return make_plan(self.recipe(), parse_rig(self.on(gpu)))


def load_configs(path: Path = CONFIGS) -> list[Config]:
    """All configurations, in the file's order."""
    data = yaml.safe_load(path.read_text())
    return [_config(entry, data["common"], path.parent) for entry in data["configs"]]


def _config(entry: dict[str, Any], common: dict[str, Any], folder: Path) -> Config:
    keys = {**common[entry["recipe"]], **entry["set"]}
    if str(keys.get("model.config", "")).endswith(".json"):
        keys["model.config"] = str(folder / keys["model.config"])
    stage = "sft" if entry["recipe"] == "sft" else "pretrain"
    sequences = entry["gpus"] * entry["micro_batch"] * entry["accumulation"]
    keys[f"stages.{stage}.micro_batch"] = entry["micro_batch"]
    keys[f"stages.{stage}.batch_tokens"] = sequences * keys["model.sequence"]
    keys |= {f"layout.{name}": entry[name] for name in ("shard", "recompute") if name in entry}
    if entry["recipe"] == "sft":
        keys["layout.kept_blocks"] = 0  # as measured
    return Config(
        entry["name"], entry["recipe"], entry["split"], entry["gpus"], entry["micro_batch"], entry["accumulation"], keys
    )


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


# Measuring


def measure(args: argparse.Namespace) -> None:
    """Run what is not measured yet, several at once where GPUs are free."""
    deadline = time.monotonic() + args.seconds
    args.out = args.out or _results(args.configs)
    results = _read(args.out) or _read(args.have)
    # That memory runs out is an answer; a crash is not.
    answers = (e for e in results.get("configs", []) if e["trial"]["failure"] is None or e["trial"].get("out_of_memory"))
    done = {entry["name"] for entry in answers}
    waiting = [
        c for c in load_configs(args.configs) if (not args.only or c.name in args.only) and (args.again or c.name not in done)
    ]
    free = list(range(args.gpus or _visible_gpus()))
    # The largest first: a small one never keeps it waiting for the last of its GPUs.
    waiting = sorted((config for config in waiting if config.gpus <= len(free)), key=lambda config: -config.gpus)
    running: dict[str, _Running] = {}
    while waiting or running:
        for config in list(waiting):
            if config.gpus <= len(free) and deadline - time.monotonic() > NEEDED_SECONDS:
                taken, free = free[: config.gpus], free[config.gpus :]
                running[config.name] = _Running(config, taken, min(args.timeout, deadline - time.monotonic() - 5), args)
                waiting.remove(config)
        if not running:
            break
        time.sleep(0.2)
        for name in [name for name, run in running.items() if run.process.poll() is not None]:
            run = running.pop(name)
            free = sorted(free + run.gpus)
            entry = run.entry()
            results = _merged(results, entry, args.configs)
            _write(args.out, results)
            print(_line(entry), flush=True)
    for config in waiting:
        print(f"{config.name:34} not begun: the call's time is over")


class _Running:
    """A configuration under way in a process that sees its own GPUs only."""

    def __init__(self, config: Config, gpus: list[int], timeout: float, args: argparse.Namespace) -> None:
        self.config, self.gpus = config, gpus
        self._out = Path(tempfile.mkdtemp(prefix="windtunnel-planning-")) / "trial.json"
        names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(64)))).split(",")
        threads = max(1, (os.cpu_count() or 1) // max(1, args.gpus or _visible_gpus()) // 2)
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "windtunnel-inductor"),
            "OMP_NUM_THREADS": str(threads),
            **os.environ,
            "CUDA_VISIBLE_DEVICES": ",".join(names[gpu] for gpu in gpus),
        }
        command = [sys.executable, __file__, "one", config.name, "--out", str(self._out), "--timeout", str(timeout)]
        command += ["--steps", str(args.steps), "--step-seconds", str(args.step_seconds), "--configs", str(args.configs)]
        self.process = subprocess.Popen(command, env=environment)

    def entry(self) -> dict[str, Any]:
        """What is kept of it."""
        config = self.config
        trial = _read(self._out) or {"failure": f"the measuring process ended with {self.process.returncode}"}
        if log := trial.pop("log", ""):
            print(f"----- {config.name}\n{log}\n-----", file=sys.stderr)
        keys = {key: value.removeprefix(f"{HERE}/") if isinstance(value, str) else value for key, value in config.keys.items()}
        return {
            "name": config.name, "recipe": config.base, "split": config.split, "gpus": config.gpus, "overrides": keys,
            "date": datetime.date.today().isoformat(), "trial": trial,
        }  # fmt: skip


def one(args: argparse.Namespace) -> None:
    """Measure one configuration in this process's view of the machine."""
    config = next(c for c in load_configs(args.configs) if c.name == args.name)
    recipe = config.recipe()
    vocab = config.keys.get("data.tokenizer.vocab_size")
    try:
        trial = try_steps(
            recipe, config.layout(), steps=args.steps, vocab=vocab, seconds=args.step_seconds, timeout=args.timeout
        ).to_json()
    except UserError as error:
        trial = {"failure": f"{error.message}; {error.fix}", "out_of_memory": False}
    args.out.write_text(json.dumps(trial))


def _visible_gpus() -> int:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([name for name in named.split(",") if name])
    import torch

    return torch.cuda.device_count()


def _read(path: Path | None) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path is not None and path.exists() else {}


def _results(configs: Path, what: str = "h200") -> Path:
    """Where the measurements of a file of configurations are; with `what` 'accuracy', their report."""
    part = configs.stem.removeprefix("planning").removesuffix("_configs").replace("_", "-")
    return HERE / "results" / f"planning{part}-{what}.json"  # of an H100: --out names another


def _merged(results: dict[str, Any], entry: dict[str, Any], configs: Path) -> dict[str, Any]:
    order = [config.name for config in load_configs(configs)]
    kept = [old for old in results.get("configs", []) if old["name"] != entry["name"]]
    changes = {"changes": results["changes"]} if "changes" in results else {}
    return {
        "what": "full-size steps on random tokens: seconds of a step, memory of the rank that had most; "
        "GPTs with cuDNN's attention (stages.pretrain.deterministic=false), as FlashAttention-4 was not installed",
        **changes,
        "configs": sorted([*kept, entry], key=lambda e: order.index(e["name"])),
    }


def _write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.rename(path)


def _line(entry: dict[str, Any]) -> str:
    trial = entry["trial"]
    if trial["failure"] is not None:
        return f"{entry['name']:34} FAILED ({trial.get('stage', '')}): {trial['failure'][:600]}"
    phases = " ".join(f"{name[:3]} {phase['peak_gib']:.1f}/{phase['seconds']:.2f}s" for name, phase in trial["phases"].items())
    return (
        f"{entry['name']:34} {trial['step_seconds']:7.4f} s {trial['reserved_gib']:6.1f} reserved {trial['allocated_gib']:6.1f} "
        f"allocated {trial['static_gib']:5.1f} static {trial['context_gib']:4.2f} context  {phases}  "
        f"loss {trial['losses'][0]:.3f} -> {trial['losses'][-1]:.3f}  retries {trial['allocation_retries']} "
        f"build {trial['build_seconds']:.0f} first {trial['first_step_seconds']:.0f} wall {trial['wall_seconds']:.0f} s"
    )


# Reporting

# Changes of the engine (see a result's `changes`) before which steps held other memory than is planned now.
OTHER_ENGINE = ("gathered", "in place")


def again(entry: dict[str, Any]) -> bool:
    """Whether a measurement is of an engine that held other memory, and has to be made again."""
    return not set(OTHER_ENGINE).isdisjoint(entry.get("before", ()))


def compare(entry: dict[str, Any], config: Config) -> dict[str, Any]:
    """A measurement beside its plan; errors are relative, positive where the plan says more than was measured."""
    trial = entry["trial"]
    plan = config.plan("H100" if "H100" in trial.get("device", "") else "H200")
    assert plan.layout == config.layout(), f"{config.name}: the plan chose {plan.layout}, measured was {config.layout()}"
    row = {
        "name": config.name, "split": config.split, "gpus": config.gpus, "method": plan.method,
        "model": plan.model.removeprefix(f"{HERE}/"),
        "fits": plan.fits, "planned_gib": plan.reserved_gib, "planned_seconds": plan.step_seconds,
        "peak_moment": plan.peak_moment, "limit_gib": plan.limit_gib, "planned_peak_gib": plan.peak_gib,
    }  # fmt: skip
    if "before" in entry:
        row["before"] = entry["before"]
    if trial["failure"] is not None:
        return row | {"failure": trial["failure"], "out_of_memory": trial.get("out_of_memory", False)}
    measured = {"measured_gib": trial["reserved_gib"], "measured_seconds": trial["step_seconds"]}
    return (
        row
        | measured
        | {
            "allocated_gib": trial["allocated_gib"],
            "bound": plan.bound,
            "measured_range": [min(trial["all_step_seconds"]), max(trial["all_step_seconds"])],
            "measured_peak_moment": max(trial["phases"], key=lambda name: trial["phases"][name]["peak_gib"]),
            "memory_error": plan.reserved_gib / trial["reserved_gib"] - 1,
            "time_error": plan.step_seconds / trial["step_seconds"] - 1,
        }
    )


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst absolute errors."""
    good = [row for row in rows if "memory_error" in row]
    summary: dict[str, Any] = {"configs": len(rows), "measured": len(good)}
    for what in ("memory_error", "time_error"):
        errors = sorted(abs(row[what]) for row in good)
        summary[what] = {"median": statistics.median(errors), "worst": errors[-1]} if errors else None
    # A plan that says it fits must not run out.
    summary["said_to_fit_but_ran_out"] = [row["name"] for row in rows if row["fits"] and row.get("out_of_memory")]
    return summary


def report(args: argparse.Namespace) -> None:
    """The table, and the medians and worst of each half."""
    configs = {config.name: config for config in load_configs(args.configs)}
    results, out = args.results or _results(args.configs), args.out or _results(args.configs, "accuracy")
    entries = [entry for entry in _read(results).get("configs", []) if entry["name"] in configs]
    if not entries:
        raise SystemExit(f"{results} holds no measurement: run `measure` first")
    rows = [compare(entry, configs[entry["name"]]) for entry in entries if not again(entry)]
    halves = {split: summarise([row for row in rows if row["split"] == split]) for split in ("calibrate", "held_out")}
    gpus = sorted({entry["trial"].get("device", "") for entry in entries} - {""})
    versions = next((entry["trial"]["versions"] for entry in entries if entry["trial"].get("versions")), {})
    _write(out, {
        "what": "windtunnel plan beside measured full-size steps; errors are relative, + where the plan says more",
        "date": datetime.date.today().isoformat(), "gpu": gpus, "versions": versions,
        "changes": _read(results).get("changes", {}), **halves,
        "missing": sorted(configs.keys() - {entry["name"] for entry in entries}),
        "left_out": sorted(entry["name"] for entry in entries if again(entry)), "configs": rows,
    })  # fmt: skip
    print(f"{'':36}{'GiB planned':>12}{'measured':>10}{'error':>8}{'s planned':>12}{'measured':>10}{'error':>8}")
    for row in sorted(rows, key=lambda row: row["split"]):
        print(_row(row))
    for split, summary in halves.items():
        print(f"{split}: {json.dumps(summary)}")


def _row(row: dict[str, Any]) -> str:
    head = f"{row['split'][:3]} {row['name']:32}"
    if "memory_error" not in row:
        return f"{head}{row['planned_gib']:12.1f}  {'fits' if row['fits'] else 'does not fit'}; {row['failure'][:60]}"
    return (
        f"{head}{row['planned_gib']:12.1f}{row['measured_gib']:10.1f}{row['memory_error']:8.1%}"
        f"{row['planned_seconds']:12.4f}{row['measured_seconds']:10.4f}{row['time_error']:8.1%}"
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure")
    verb.set_defaults(do=measure)
    verb.add_argument("--out", type=Path, help="default: of --configs")
    verb.add_argument("--have", type=Path, help="earlier results to go on from where --out does not exist")
    verb.add_argument("--only", nargs="+", help="names of configurations")
    verb.add_argument("--again", action="store_true", help="measure also what is measured already")
    verb.add_argument("--gpus", type=int, help="use the first so many; default: all")
    verb.add_argument("--seconds", type=float, default=1e9, help="of the whole call")
    verb.add_argument("--timeout", type=float, default=90.0, help="seconds of one configuration")
    verb.add_argument("--steps", type=int, default=8)
    verb.add_argument("--step-seconds", type=float, default=20.0, help="begin no further timed step after so long")
    verb = verbs.add_parser("one", help="used by measure")
    verb.set_defaults(do=one)
    verb.add_argument("name")
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--timeout", type=float, required=True)
    verb.add_argument("--steps", type=int, required=True)
    verb.add_argument("--step-seconds", type=float, required=True)
    verb = verbs.add_parser("report")
    verb.set_defaults(do=report)
    verb.add_argument("--results", type=Path, help="default: of --configs")
    verb.add_argument("--out", type=Path, help="default: of --configs")
    for verb in verbs.choices.values():
        verb.add_argument("--configs", type=Path, default=CONFIGS, help="what to measure; default: planning_configs.yaml")
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
