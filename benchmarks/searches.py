"""CPU seconds of plans: every shipped model on rigs small and large, whole commands among them.

    python benchmarks/searches.py

A plan here is all that `windtunnel plan` works out for a rig: the layout search, what would fit instead where it does not, and
stand-ins for the model. CPU seconds are of one core, system time included; start-up of the interpreter counts in whole commands.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from windtunnel.model import known_models
from windtunnel.plan import climb
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rig import parse_rig

REPORT = Path(__file__).parent / "results" / "searches-cpu.json"
RIGS = ("H100", "8xH100", "32x(8xH100)")
LORA = "model.adapter.rank=16"
COMMANDS = (("rl", "deepseek-v3", "H100"), ("rl", "deepseek-v3", "32x(8xH100)"), ("sft", "deepseek-v3", "H100"))
REPEATS = 3


def cpu(who: int = resource.RUSAGE_SELF) -> float:
    """CPU seconds so far."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def planned(kind: str, model: str, rig: str, sets: tuple[str, ...]) -> dict[str, Any]:
    """One plan's CPU seconds and whether it fits."""
    before = cpu()
    try:
        fits = climb(load_recipe(kind, [f"model.config={model}", *sets]), [parse_rig(rig)]).plan.fits
    except UserError as error:
        return {"refused": error.message, "cpu_seconds": round(cpu() - before, 3)}
    return {"fits": fits, "cpu_seconds": round(cpu() - before, 3)}


def command(kind: str, model: str, rig: str) -> dict[str, Any]:
    """The same as a command, start-up included."""
    words = [sys.executable, "-m", "windtunnel", "plan", kind, "--set", f"model.config={model}", "--on", rig]
    seconds = []
    for _ in range(REPEATS):
        before = cpu(resource.RUSAGE_CHILDREN)
        subprocess.run(words, stdout=subprocess.DEVNULL, check=False, timeout=600)
        seconds.append(cpu(resource.RUSAGE_CHILDREN) - before)
    shown = f"windtunnel plan {kind} --set model.config={model} --on '{rig}'"
    return {"command": shown, "cpu_seconds": round(statistics.median(seconds), 2), "runs": [round(s, 2) for s in seconds]}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPORT)
    args = parser.parse_args()
    rows = []
    for model in known_models():
        for kind in ("sft", "rl"):
            for sets in ((), (LORA,)):
                facts = {"model": model, "kind": kind, "method": "lora" if sets else "full"}
                rows += [facts | {"rig": rig} | planned(kind, model, rig, sets) for rig in RIGS]
    by_rig = {rig: [row["cpu_seconds"] for row in rows if row["rig"] == rig] for rig in RIGS}
    report = {
        "what": "CPU seconds of windtunnel plan: every built-in model, sft and rl, all weights and LoRA",
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, Python {platform.python_version()}",
        "commands": [command(*words) for words in COMMANDS],
        "summary": {
            rig: {"plans": len(taken), "median": statistics.median(taken), "most": max(taken)} for rig, taken in by_rig.items()
        },
        "rows": rows,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in ("commands", "summary")}, indent=1))
    for row in sorted(rows, key=lambda row: -row["cpu_seconds"])[:10]:
        print(row)


if __name__ == "__main__":
    main()
