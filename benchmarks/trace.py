"""Traces beside measurements: every measured configuration of planning_configs.yaml, traced without a GPU.

    python benchmarks/trace.py [--only NAME ...] [--again]

Compares memory in use at the peak (what PyTorch's allocator had handed out, not what it reserved) as traced, as planned and
as measured. What was traced before stays, unless --again; planned figures are always those of the planner as it is now.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planning import Config, load_configs

from windtunnel.launch import trace_plan
from windtunnel.plan import Plan, second_opinion
from windtunnel.recipe import UserError

HERE = Path(__file__).parent
MEASURED = HERE / "results" / "planning-h200.json"
RESULTS = HERE / "results" / "trace-accuracy.json"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", help="names of configurations")
    parser.add_argument("--again", action="store_true", help="trace also what is traced already")
    args = parser.parse_args()
    trials = {e["name"]: e["trial"] for e in _read(args.measured).get("configs", []) if e["trial"]["failure"] is None}
    before = {row["name"]: row for row in _read(args.out).get("configs", [])}
    rows = []
    for config in load_configs():
        if config.name not in trials:
            continue
        wanted = not args.only or config.name in args.only
        known = before.get(config.name)
        if wanted and (args.again or known is None or "trace" not in known):
            row = _compare(config, _traced(config), trials[config.name])
        elif known is not None:
            row = _compare(config, known.get("trace") or known.get("failure", ""), trials[config.name])
        else:
            continue
        rows.append(row)
        print(_line(row), flush=True)
        _write(args.out, rows + [old for name, old in before.items() if name not in {r["name"] for r in rows}])
    print(json.dumps(summarise(rows)))


def _traced(config: Config) -> dict[str, Any] | str:
    """The trace, or why there is none."""
    try:
        return trace_plan(config.recipe(), config.plan()).trace
    except UserError as error:
        return error.message


def _compare(config: Config, trace: dict[str, Any] | str, trial: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": config.name,
        "split": config.split,
        "gpus": config.gpus,
        "measured_gib": trial["allocated_gib"],
    }
    if isinstance(trace, str):
        return row | {"failure": trace}
    plan: Plan = config.plan()
    opinion = second_opinion(plan, trace)
    measured = trial["allocated_gib"]
    # Workspaces are handed out by the allocator too.
    planned = opinion.planned_gib + plan.components.get("workspaces", 0.0)
    return row | {
        "traced_gib": opinion.traced_gib, "planned_gib": planned, "trace_error": opinion.traced_gib / measured - 1,
        "plan_error": planned / measured - 1, "traced_moment": opinion.traced_moment, "planned_moment": opinion.planned_moment,
        "measured_moment": max(trial["phases"], key=lambda name: trial["phases"][name]["peak_gib"]),
        "agrees": opinion.agrees, "why": list(opinion.why), "trace": trace,
    }  # fmt: skip


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst absolute errors of trace and plan."""
    good = [row for row in rows if "trace_error" in row]
    found: dict[str, Any] = {"configs": len(rows), "traced": len(good)}
    for what in ("trace_error", "plan_error"):
        errors = [abs(row[what]) for row in good]
        found[what] = {"median": statistics.median(errors), "worst": max(errors)} if errors else None
    return found


def _line(row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{row['name']:36} not traced: {row['failure']}"
    return (
        f"{row['name']:36} measured {row['measured_gib']:6.2f}  traced {row['traced_gib']:6.2f} {row['trace_error']:+6.1%}  "
        f"planned {row['planned_gib']:6.2f} {row['plan_error']:+6.1%}  {row['traced_moment']}"
    )


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    order = [config.name for config in load_configs()]
    kept = sorted((row for row in rows if row["name"] in order), key=lambda row: order.index(row["name"]))
    halves = {split: summarise([row for row in kept if row["split"] == split]) for split in ("calibrate", "held_out")}
    what = (
        "GiB in use on a rank at the peak of a step: traced without a GPU, planned, and measured (torch's allocated memory); "
        "errors are relative, + where more is said than measured. The trace is fitted to nothing; it leaves out cuBLAS's "
        "workspaces, about 0.07 GiB."
    )
    part = path.with_suffix(".part")
    part.write_text(
        json.dumps({"what": what, "date": datetime.date.today().isoformat(), **halves, "configs": kept}, indent=1) + "\n"
    )
    part.rename(path)


if __name__ == "__main__":
    main()
