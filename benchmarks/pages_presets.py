"""The results of `presets.py` as they stand in docs/trm.md."""

from __future__ import annotations

from typing import Any

from pages_table import table


def presets(report: dict[str, Any]) -> str:
    """A row a candidate, best first; who wins by the rule."""
    size, verdict = report["size"], report["verdict"]
    seeds = sorted({run["seed"] for found in report["results"].values() for run in found["runs"]})
    where = report["machine"]["gpu"] or "one core"
    equal = report["results"]["equal"]
    what = (
        f"{where}, {report['date'][:10]}: {equal['model']}, sequences of {size['sequence']}, {equal['steps']:,} batches of "
        f"{size['rows'] * size['sequence']:,} tokens, {equal['flops']:.3g} FLOPs each; rates by the rule x {size['rates']:g}. "
        "Held-out cross-entropy of the last supervision step, in nats:"
    )
    rows = []
    for name, found in sorted(report["results"].items(), key=lambda item: float(item[1]["loss"])):
        losses = {run["seed"]: f"{run['loss']:.3f}" for run in found["runs"]}
        rows.append([f"`{name}`", found["words"], f"{found['updates']:,}", *(losses.get(seed, "–") for seed in seeds)])
    head = ["candidate", "trained with", "updates", *(f"seed {seed}" for seed in seeds)]
    return "\n\n".join([what, table(head, rows), winner(verdict), left_out(report)]).strip()


def winner(verdict: dict[str, Any]) -> str:
    """What the rule says."""
    lowest = f"lowest of what a preset can be: `{verdict['lowest']}`"
    if verdict["lowest"] == "equal":
        words = f"{lowest}, which `honest` is."
    elif verdict["decided"]:
        words = f"{lowest}, clearly by the rule in `benchmarks/presets_rule.py`: it beats {', '.join(verdict['beats'])}."
    else:
        lost = [name for name, beaten in verdict["beats"].items() if not beaten]
        words = (
            f"{lowest}, not clearly: by the rule it does not beat {', '.join(f'`{name}`' for name in lost)}, so `equal` stays."
        )
    plain = f" Lowest of the plain models: `{verdict['lowest_plain']}`." if verdict["lowest_plain"] else ""
    return f"By the rule the winner is `{verdict['winner']}`; {words}{plain}"


def left_out(report: dict[str, Any]) -> str:
    """What there was no time for."""
    return f"No time for: {'; '.join(report['left_out'])}." if report["left_out"] else ""
