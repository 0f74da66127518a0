"""A plan as rows of text; the CLI lays them out."""

from __future__ import annotations

from .types import Plan


def lines(plan: Plan) -> list[tuple[str, str, str]]:
    """(label, value, source) of everything worth printing, in reading order."""
    s = plan.sources
    error = plan.error
    matrices = f"{plan.parameters['matrices'] / 1e6:,.1f} M in matrices"
    rows = [
        ("rig", f"{plan.rig}: {plan.machine}", "rig"),
        ("depth", str(plan.depth), s["depth"]),
        ("parameters", f"{_count(plan.params)} ({matrices})", s["params"]),
        ("vocabulary", f"{plan.vocab:,}", s["vocab"]),
        ("layout", plan.layout.describe(), s["layout"]),
        ("memory a rank", f"{plan.peak_gib:.2f} of {plan.limit_gib:.1f} GiB (±{error['memory']:.0%})", s["peak_gib"]),
    ]
    rows += [
        (f"  {n.replace('_', ' ')}", f"{v:.2f} GiB", s.get(f"components.{n}", ""))
        for n, v in plan.components.items()
        if v >= 0.005
    ]
    rate = f"{plan.tokens_per_second:,.0f} tokens/s, {plan.mfu:.0%} MFU"
    rows += [
        ("step", f"{_seconds(plan.step_seconds)} (±{error['time']:.0%}), most of it {plan.bound}", s["step_seconds"]),
        ("speed", rate, s["mfu"]),
        ("batch", f"{plan.layout.batch_tokens:,} tokens", s["hyper.batch_tokens"]),
        ("length", f"{plan.steps:,} steps, {_count(plan.tokens)} tokens", s["steps"]),
        ("time", _hours(plan.hours), s["hours"]),
        ("cost", "no price known" if plan.dollars is None else f"${plan.dollars:,.2f}", s["dollars"]),
    ]
    if plan.epochs is not None:
        rows.append(("epochs", f"{plan.epochs:.2f} over {_count(plan.corpus_tokens or 0)} tokens", s["epochs"]))
    free = "" if plan.disk_free_gib is None else f", {plan.disk_free_gib:,.0f} GiB free"
    rows += [
        ("checkpoint", _gib(plan.checkpoint_gib), s["checkpoint_gib"]),
        ("disk", f"{_gib(plan.disk_gib)} at the peak{free}", s["disk_gib"]),
    ]
    rows += [
        (name.replace("_", " "), f"{value:.4g}", s[f"hyper.{name}"])
        for name, value in plan.hyper.items()
        if name != "batch_tokens"
    ]
    rows += [("does not fit", reason, "") for reason in plan.reasons]
    rows += [("instead", a.change, a.why) for a in plan.alternatives]
    rows += [("warning", text, "") for text in plan.warnings]
    return rows + [("note", text, "") for text in plan.notes]


def _count(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _hours(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:.2f} h" if hours >= 1 else f"{hours * 60:.1f} min"


def _gib(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 0.1 else f"{gib * 1024:.1f} MiB"
