"""What `windtunnel evaluate RUN --flop-matched` found, for the run's page: read from RUN/flop_matched.json."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.run import apart

from .curves import Curve, chart_of


@dataclass(frozen=True)
class FlopMatchedPart:
    """Texts for the page.

    Attributes:
        spoilt: sentences on refinement that is bought. columns, rows: the table. remarks: (label, text).
        chart: see `curves.chart_of`.
    """

    verdict: str
    spoilt: list[str]
    columns: list[str]
    rows: list[list[str]]
    remarks: list[tuple[str, str]]
    chart: dict[str, Any]


def flop_matched_part(folder: Path) -> FlopMatchedPart | None:
    """Return the comparison of a run's folder; None where there is none, or none that can be read."""
    found = None
    # As of an evaluation: what an older version wrote may lack something.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        found = _part(json.loads((folder / "flop_matched.json").read_text(encoding="utf-8")))
    return found


def _part(report: dict[str, Any]) -> FlopMatchedPart:
    models, own = report["models"], report["models"][0]
    puzzles = own["solved"] is not None
    columns = ["model", "parameters", "FLOPs", "nats", "solved" if puzzles else "bits/byte", "above this run (95 %)"]
    remarks = [("phi", _phi(report["phi"]))]
    if own["refinement"] is not None:
        steps = ", ".join(apart(own["step_losses"]))
        remarks.insert(0, ("refinement", f"{own['refinement']:.1f} %: {steps}; knowing nothing {report['uniform']:.3f}"))
    held_out = report["held_out"]
    remarks.append(("held out", f"{held_out['targets']:,} targets in {held_out['unit_count']:,} {held_out['units']}"))
    return FlopMatchedPart(
        verdict=report["verdict"],
        spoilt=[item["words"] for item in report["spoilt"]],
        columns=columns,
        rows=[_row(model, puzzles) for model in models],
        remarks=remarks + [("note", note) for note in report["notes"]],
        chart=_chart(models, puzzles),
    )


def _row(model: dict[str, Any], puzzles: bool) -> list[str]:
    bits, behind = model["bits_per_byte"], model["behind"]
    measure = f"{model['solved']['value']:.1%}" if puzzles else "-" if bits is None else f"{bits:.4f}"
    return [
        f"{model['role']} ({model['layers']} x {model['dim']})",
        f"{model['parameters'] / 1e6:,.2f} M",
        f"{model['flops']:.2f}",
        f"{model['loss']['value']:.4f}",
        measure,
        "" if model["kind"] == "run" else f"{behind['value']:+.3f} ({behind['low']:+.3f} to {behind['high']:+.3f})",
    ]


def _phi(phi: dict[str, Any]) -> str:
    if phi["value"] is None:
        return f"not known: {phi['words']}"
    if phi["bound"] != "=":
        return f"{'at most' if phi['bound'] == '<=' else 'at least'} {phi['value']:.2f}; {phi['words']}"
    ends = ["?" if phi[end] is None else f"{phi[end]:.2f}" for end in ("low", "high")]
    return f"{phi['value']:.2f} (95 % {ends[0]} to {ends[1]}); 1: a recurrence is as good as more blocks, 0: worth nothing"


def _chart(models: list[dict[str, Any]], puzzles: bool) -> dict[str, Any]:
    def curve(name: str, kinds: tuple[str, ...]) -> Curve:
        chosen = sorted((m for m in models if m["kind"] in kinds), key=lambda m: m["flops"])
        return Curve(name, [(m["flops"], 100 * m["solved"]["value"] if puzzles else m["loss"]["value"]) for m in chosen])

    curves = [curve("plain models", ("plain",)), curve("this run's recursion", ("run", "recurrent"))]
    title, unit = ("Held-out puzzles solved", "percent") if puzzles else ("Held-out loss", "nats per token")
    return chart_of(title, curves, x="training FLOPs, of this run's", unit=unit, place="flop-matched")
