"""The results of `worth.py` as they stand in docs/worth.md."""

from __future__ import annotations

from typing import Any

from pages_table import table


def worth(result: dict[str, Any]) -> str:
    """A row a model, the verdict, the exponent and what limits the comparison."""
    report = result["report"]
    where, settings = result["machine"]["gpu"] or "a CPU", result["settings"]
    own = report["models"][0]
    what = (
        f"`benchmarks/results/worth-h200.json`, {where}, {result['date'][:10]}: {own['layers']} layers of {own['dim']}, preset "
        f"`{settings['preset']}`, {report['steps']:,} steps of {report['batch_tokens']:,} tokens: "
        f"{report['steps'] * report['batch_tokens'] / result['data']['train_tokens']:.1f} times over the standard library."
    )
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
                f"{row['loss']['value']:.3f}",
                f"{row['bits_per_byte']:.4f}",
                above,
            ]
        )
    head = ["model", "size", "parameters", "FLOPs", "nats", "bits/byte", "above this run (95 %)"]
    left = report.get("left_out") or []
    steps = " > ".join(f"{loss:.3f}" for loss in own["step_losses"])
    parts = [
        what,
        table(head, rows),
        report["verdict"],
        phi(report["phi"]),
        f"By supervision step: {steps} nats." if steps else "",
        f"There was no time for: {', '.join(left)}." if left else "",
        "\n".join(f"- {note}" for note in report["notes"]),
    ]
    return "\n\n".join(part for part in parts if part)


def phi(found: dict[str, Any]) -> str:
    """The exponent in words."""
    if found["value"] is None:
        return f"phi is not known: {found['words']}."
    sign = {"=": "=", "<=": "≤", ">=": "≥"}[found["bound"]]
    ends = ["?" if found[end] is None else f"{found[end]:.2f}" for end in ("low", "high")]
    interval = f" (95 % {ends[0]} to {ends[1]})" if found["bound"] == "=" else ""
    return f"phi {sign} {found['value']:.2f}{interval}" + (f": {found['words']}." if found["words"] else ".")
