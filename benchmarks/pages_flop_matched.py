"""The results of `flop_matched.py` as they stand in docs/flop-matched.md, and in a sentence in docs/trm.md."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pages_table import table

from windtunnel.run import apart

PLAIN = {
    "same-parameters": "of the same parameters",
    "between": "in between",
    "same-flops-whole-batches": "of the same FLOPs with whole batches",
}
PICTURE = "![Held-out loss over training FLOPs of each model, and what earlier supervision steps lose](flop-matched.svg)"


def flop_matched(result: dict[str, Any]) -> str:
    """A row a model, the verdict, each plain model against the run, the exponent and what limits the comparison."""
    report = result["report"]
    own = report["models"][0]
    rows = []
    for row in sorted(report["models"], key=lambda row: float(row["loss"]["value"])):
        behind = row["behind"]
        above = "–" if row is own else "{value:+.3f} ({low:+.3f} to {high:+.3f})".format(**behind)
        rows.append(
            [
                row["role"],
                f"{row['layers']} x {row['dim']}",
                f"{row['parameters'] / 1e6:.1f} M",
                f"{row['flops']:.2f}",
                seconds(row),
                f"{row['loss']['value']:.3f}",
                f"{row['bits_per_byte']:.4f}",
                above,
            ]
        )
    head = ["model", "size", "parameters", "FLOPs", "seconds", "nats", "bits/byte", "above this run (95 %)"]
    left = report.get("left_out") or []
    losses = own["step_losses"]
    steps = (" > " if all(b < a for a, b in pairwise(losses)) else ", ").join(apart(losses))
    parts = [
        training(result),
        table(head, rows),
        PICTURE if result.get("curves") else "",
        report["verdict"],
        " ".join(against(row) for row in report["models"] if row.get("kind") == "plain" and row["name"] != "same-flops"),
        phi(report["phi"]),
        f"By supervision step: {steps} nats." if steps else "",
        f"There was no time for: {', '.join(left)}." if left else "",
        "\n".join(f"- {note}" for note in report["notes"]),
    ]
    return "\n\n".join(part for part in parts if part)


def training(result: dict[str, Any]) -> str:
    """What was trained: where, on how much, for how long."""
    report, settings = result["report"], result["settings"]
    own, where = report["models"][0], result["machine"]["gpu"] or "a CPU"
    tokens = report["steps"] * report["batch_tokens"]
    parts = [
        f"`benchmarks/results/flop-matched-h200.json`, {where}, {result['date'][:10]}: {own['layers']} layers of {own['dim']}, "
        f"preset `{settings['preset']}`, {report['steps']:,} steps of {report['batch_tokens']:,} tokens, "
        f"{tokens / 1e6:.1f} M in all: {tokens / result['data']['train_tokens']:.1f} times over the standard library."
    ]
    if (took := seconds(own)) != "–":
        parts.append(f"The recursive model's training took {took} seconds, validation and starting up included: a short one.")
        if settings.get("shared"):
            parts.append("Other work was on the GPU, so seconds compare nothing.")
    return " ".join(parts)


def seconds(row: dict[str, Any]) -> str:
    """Of its training, starting up included."""
    taken = (row.get("trained") or {}).get("seconds")
    return "–" if taken is None else f"{taken:.0f}"


def against(row: dict[str, Any]) -> str:
    """A plain model against the run, in a sentence."""
    d = row["behind"]
    size = " to ".join(f"{value:.3f}" for value in sorted((abs(d["low"]), abs(d["high"]))))
    what = f"The plain model {PLAIN.get(row['name'], row['role'])}, at {row['flops']:.2f} of the FLOPs"
    if d["low"] <= 0 <= d["high"]:
        return f"{what}, cannot be told from the recursive one ({d['low']:+.3f} to {d['high']:+.3f})."
    return f"{what}, is {'worse' if d['low'] > 0 else 'better'} by {abs(d['value']):.3f} nats (95 % {size})."


def phi(found: dict[str, Any]) -> str:
    """The exponent in words."""
    if found["value"] is None:
        return f"phi is not known: {found['words']}."
    sign = {"=": "=", "<=": "≤", ">=": "≥"}[found["bound"]]
    ends = ["?" if found[end] is None else f"{found[end]:.2f}" for end in ("low", "high")]
    interval = f" (95 % {ends[0]} to {ends[1]})" if found["bound"] == "=" else ""
    return f"phi {sign} {found['value']:.2f}{interval}" + (f": {found['words']}." if found["words"] else ".")


def in_short(result: dict[str, Any]) -> str:
    """The verdict for another page."""
    report = result["report"]
    own, tokens = report["models"][0], report["steps"] * report["batch_tokens"]
    where = result["machine"]["gpu"] or "a CPU"
    what = f"{own['parameters'] / 1e6:.0f} M parameters, {tokens / 1e6:.1f} M tokens, {where}"
    return f"On text, {what} (docs/flop-matched.md): {report['verdict']}"
