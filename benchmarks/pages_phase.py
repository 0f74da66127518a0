"""The results of `phase_one.py` as they stand in docs/trm.md."""

from __future__ import annotations

from typing import Any

from pages_table import table

SHOWN = 5


def phase_one(report: dict[str, Any]) -> str:
    """Losses by supervision step along the run, then what the guide's gates say of its end."""
    size = sum(report["parameters"].values())
    what = (
        f"{report['gpu']}, {report['date']}: preset `{report['preset']}`, {size / 1e6:.1f} M parameters, "
        f"{report['steps']:,} steps of {report['batch_tokens']:,} tokens of the standard library. Held-out cross-entropy in nats:"
    )
    curves = {name: dict(map(tuple, points)) for name, points in report["curves"].items()}
    by_step = [name for name in sorted(curves) if name.startswith("validation_loss_step_")]
    at = sorted(curves[by_step[0]])
    shown = sorted({at[round(number * (len(at) - 1) / (SHOWN - 1))] for number in range(SHOWN)})
    rows = [[f"{step:,}", *(f"{curves[name][step]:.3f}" for name in by_step), refined(curves, by_step, step)] for step in shown]
    head = ["trained", *(f"step {number}" for number in range(len(by_step))), "refinement"]
    gates = [
        [f"`{gate['name']}`", gate["measured"], gate["limit"], "yes" if gate["held"] else "no"]
        for gate in report["gates_by_the_guide"]
    ]
    return "\n\n".join(
        [what, table(head, rows), "By the guide's gates:", table(["gate", "measured", "asked for", "held"], gates)]
    )


def refined(curves: dict[str, dict[int, float]], names: list[str], step: int) -> str:
    """Of the held-out losses, in percent."""
    first, last = curves[names[0]][step], curves[names[-1]][step]
    return f"{100 * (first - last) / first:.1f} %"
