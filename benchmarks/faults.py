"""Plants every fault of the catalogue, records which check names it and how long that takes, and writes docs/faults.md.

    python benchmarks/faults.py run    --out benchmarks/results/faults.json   # plants; 4 minutes on 2 cores
    python benchmarks/faults.py run --kind weights                             # those again, the rest as it stands in the file
    python benchmarks/faults.py write                                          # docs/faults.md from that file

The catalogue stands in tests/rehearse/faults, whose tests plant the same faults.
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
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CATALOGUE = HERE.parent / "tests" / "rehearse" / "faults"
RESULTS = HERE / "results" / "faults.json"
DOCUMENT = HERE.parent / "docs" / "faults.md"
KINDS = {
    "recipe": "Recipes",
    "data": "Data",
    "environment": "Environment",
    "plug-in": "A user's reward",
    "rig": "Rigs, batch scripts, runs to be resumed",
    "weights": "Weights between learner and engine",
}
WORDS = {
    "recipe": "recipes",
    "data": "data",
    "environment": "the environment",
    "plug-in": "a user's reward",
    "rig": "rigs and launchers",
    "weights": "weights between learner and engine",
}


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--kind", choices=tuple(KINDS), help="plant only these again; the others' rows stay as they are")
    arguments = parser.parse_args()
    if arguments.what == "run":
        before = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.kind else None
        results = run(arguments.kind, before)
        arguments.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(
            f"{results['caught']} of {results['planted']} planted faults are named; {results['seconds']:.0f} s; {arguments.out}"
        )
        return 0 if results["caught"] == results["planted"] and not results["false_alarms"] else 1
    DOCUMENT.write_text(document(json.loads(arguments.out.read_text(encoding="utf-8"))), encoding="utf-8")
    print(DOCUMENT)
    return 0


def run(kind: str | None = None, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Plant every fault, or those of one kind beside the results that there are of the others."""
    sys.path.insert(0, str(CATALOGUE))
    from catalogue import LATER, PLANTED
    from planting import attempt, caught, falsely, said

    import windtunnel

    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    alarms: list[str] = []
    healthy: dict[Any, Any] = {}
    with tempfile.TemporaryDirectory(prefix="windtunnel-faults-") as name:
        os.environ["WINDTUNNEL_CACHE"] = f"{name}/cache"
        for number, fault in enumerate(fault for fault in PLANTED if kind in (None, fault.kind)):
            folder, key = Path(name) / str(number), (fault.base, fault.check)
            if key not in healthy:
                healthy[key] = attempt(folder / "healthy", fault.check, fault.base)[0]
            if falsely(fault, healthy[key]):
                alarms.append(fault.name)
            outcome, seconds = attempt(folder / "faulty", fault.check, fault.base, fault.plant)
            row = _row(fault) | {"caught": caught(fault, outcome), "seconds": round(seconds, 2)}
            row |= {
                "status": outcome.status if outcome else None,
                "said": said(outcome)[:300].replace(name, "").replace(f"{HERE.parent}/", "") if outcome else "",
            }
            rows.append(row)
            print(f"{'ok ' if row['caught'] else 'MISSED'} {seconds:6.2f} s  {fault.check:18} {fault.name}", flush=True)
    seconds = time.monotonic() - began
    if before is not None:
        known = {row["name"]: row for row in (*before["faults"], *rows) if "seconds" in row}
        missing = [fault.name for fault in PLANTED if fault.name not in known]
        assert not missing, f"never planted: {missing}"
        again = {row["name"] for row in rows}
        seconds += before["seconds"] - sum(row["seconds"] for row in before["faults"] if row["name"] in again)
        alarms += [name for name in before["false_alarms"] if name not in again]
        rows = [known[fault.name] for fault in PLANTED]
    rows += [_row(fault) | {"caught": False} for fault in LATER]
    found = sum(row["caught"] for row in rows)
    return {
        "what": "faults planted one at a time, and the check that names each",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, {platform.system()}",
        "versions": {"windtunnel": windtunnel.__version__, "python": platform.python_version()},
        "seconds": round(seconds, 1),
        "planted": len(PLANTED),
        "listed": len(LATER),
        "caught": found,
        "share_caught_on_cpu": found / len(rows),
        "false_alarms": alarms,
        "faults": rows,
    }


def _row(fault: Any) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in ("name", "kind", "source", "check", "rung")}


def document(results: dict[str, Any]) -> str:
    """The page."""
    rows = results["faults"]
    kinds = Counter(row["kind"] for row in rows if "seconds" in row)
    lines = [
        "# Faults that `windtunnel check` names",
        "",
        "Written by `python benchmarks/faults.py write`; the numbers are those of `benchmarks/results/faults.json`.",
        "",
        f"{results['planted']} faults are planted one at a time: {', '.join(f'{n} in {WORDS[k]}' for k, n in kinds.items())}.",
        f"The check that should name each does so in {results['caught']} cases, and complains of it in "
        f"{len(results['false_alarms'])} where it is not there.",
        f"{results['listed']} more need a GPU or a cluster to show: they stand here with the rung that catches them, and count",
        f"as missed. So {results['share_caught_on_cpu']:.1%} are caught without a GPU. All of it took",
        f"{results['seconds']:.0f} s on {results['machine']} ({results['date'][:10]}).",
        "What a healthy machine cannot be given, such as a full disk or a wrong clock, is simulated where the system is asked.",
        "",
        "They are drawn from guides and projects of people who trained on rented GPUs: how to debug on a cheap node before",
        "8 x H100 (debugging guide), a recursive GPT on 8 x H100 (8xH100 guide), a character model for a budget ($1,000 guide),",
        "fine-tuning a 671 B model (DeepSeek-V3 guide), reinforcement learning of 32 B on Slurm (GRPO guide); and from studies",
        "of failed jobs: Zhang et al. 2020 (Microsoft), Alibaba's GPU pods, Acme's language models, Llama 3, ByteRobust.",
    ]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", "", "| fault | drawn from | check | rung | seconds |", "| --- | --- | --- | --- | ---: |"]
        for row in (row for row in rows if row["kind"] == kind):
            seconds = f"{row['seconds']:.2f}" if "seconds" in row else "not planted"
            missed = "" if row["caught"] or row["rung"] != "cpu" else " (missed)"
            lines.append(f"| {row['name']} | {row['source']} | `{row['check']}`{missed} | {row['rung']} | {seconds} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
