"""A plan as rows of text; the CLI lays them out."""

from __future__ import annotations

from collections.abc import Sequence

from .types import Plan, Size

METHODS = {
    "pretrain": "training from random weights",
    "full": "fine-tuning of every weight",
    "lora": "low-rank adapters on frozen bf16 weights",
    "qlora": "low-rank adapters on frozen 4- or 8-bit weights",
    "fp8-lora": "low-rank adapters on frozen fp8 weights",
    "fp8-experts-lora": "low-rank adapters beside experts frozen in fp8",
    "grpo": "reinforcement learning (GRPO)",
}

OF_STAGE = ", stage "
"""Between the name of a recipe or a rig and a stage's, where a plan is of one of several."""
OF_A_RUN = ("length", "ends", "time", "cost", "epochs")


def lines(plan: Plan) -> list[tuple[str, str, str]]:
    """Return (label, value, source) of everything worth printing, in reading order."""
    remarks = [("next best", text, "") for text in _options(plan)]
    remarks += [(label, text, "") for label, text in size_remarks(plan)]
    remarks += [("does not fit", reason, "") for reason in plan.reasons]
    remarks += [("instead", a.change, a.why) for a in plan.alternatives]
    remarks += [("warning", text, "") for text in plan.warnings]
    remarks += [("note", text, "") for text in plan.notes]
    # What cannot be run takes no time and costs nothing; its step tells how far off it is.
    keeping = _keeping(plan) if plan.fits else [row for row in _keeping(plan) if row[0] != "disk"]
    pace = _pace(plan) if plan.fits else [row for row in _pace(plan) if row[0] not in OF_A_RUN]
    return _what(plan) + _memory(plan) + _roles(plan) + pace + keeping + remarks


def size_remarks(plan: Plan) -> list[tuple[str, str]]:
    """Return (label, text): the fewest GPUs of the rig's kind that fit, and how many to take, with why; none of other plans."""
    if plan.sizes is None:
        return []
    if not plan.sizes:
        return [("least that fits", "no number of GPUs of this kind: the recipe has to change, or the GPU")]
    least = next(size for size in plan.sizes if size.least)
    take = next(size for size in plan.sizes if size.recommended)
    if take is least:
        return [("least that fits", f"{_size(take)}"), ("recommended", f"the same: {_why(take, plan.sizes)}")]
    return [("least that fits", _size(least)), ("recommended", f"{_size(take)}; {_why(take, plan.sizes)}")]


def _size(size: Size) -> str:
    """Write so many GPUs, how they are shared, and what that needs and takes."""
    held = f"{size.peak_gib:.1f} of {size.limit_gib:.1f} GiB a learner{'' if size.roomy else ', tight'}"
    return f"{size.rig}: {size.shared}{size.layout.describe()}; {held}; {seconds_text(size.step_seconds)} a round"


def _why(take: Size, sizes: Sequence[Size]) -> str:
    """Say why this number of GPUs is the one to take, beside what the others cost."""
    if len(sizes) == 1:
        return "nothing smaller fits, and nothing larger was asked for"
    error = f"the memory's stated error of {take.error:.0%}"
    among = f"those with room for {error}" if take.roomy else f"those that fit (none has room for {error})"
    costs = ", ".join(f"{size.gpus}: {_rounded(size.gpu_seconds)}" for size in sizes)
    return f"of {among} a round takes the fewest GPU-seconds (by GPUs {costs})"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _options(plan: Plan) -> list[str]:
    """Write the layouts that come after the chosen one, at most three."""
    others = [option for option in plan.options if option.layout != plan.layout][:3]
    return [
        f"{option.layout.describe()}: {option.peak_gib:.1f} GiB, {seconds_text(option.step_seconds)} a step"
        + ("" if option.dollars is None else f", ${option.dollars:,.2f}")
        for option in others
    ]


def _what(plan: Plan) -> list[tuple[str, str, str]]:
    """Model and rig."""
    s = plan.sources
    parts = {name: number for name, number in plan.parameters.items() if name in ("matrices", "trained")}
    shares = ", ".join(f"{count_text(n)} {'trained' if name == 'trained' else 'in matrices'}" for name, n in parts.items())
    rows = [("rig", f"{plan.rig}: {plan.machine}", "rig")]
    if plan.depth is not None:
        rows.append(("depth", str(plan.depth), s["depth"]))
    else:
        rows += [("model", plan.model, s["model"]), ("method", METHODS[plan.method], "recipe")]
    rows += [
        ("parameters", f"{count_text(plan.params)} ({shares})", s["params"]),
        ("vocabulary", f"{plan.vocab:,}", s["vocab"]),
        ("layout", plan.layout.describe(), s["layout"]),
    ]
    return rows


def _memory(plan: Plan) -> list[tuple[str, str, str]]:
    who = "a learner" if plan.roles else "a rank"
    total = f"{plan.peak_gib:.2f} of {plan.limit_gib:.1f} GiB (±{plan.error['memory']:.0%}): {plan.memory_verdict}"
    return [(f"memory {who}", total, plan.sources["peak_gib"]), *_components(plan, plan.components)]


def _components(plan: Plan, components: dict[str, float]) -> list[tuple[str, str, str]]:
    return [
        (f"  {name.replace('_', ' ')}", f"{gib:.2f} GiB", plan.sources.get(f"components.{name}", ""))
        for name, gib in components.items()
        if abs(gib) >= 0.005
    ]


def _roles(plan: Plan) -> list[tuple[str, str, str]]:
    """Of reinforcement learning: who has which GPUs, an engine's memory and what it holds."""
    rows = []
    for name, role in plan.roles.items():
        spent = ", ".join(f"{term} {seconds_text(seconds)}" for term, seconds in role.seconds.items())
        rows.append((f"{name}s", f"{role.gpus} GPU{'s' if role.gpus > 1 else ''}", spent))
        if name == "engine":
            rows.append(("memory an engine's GPU", f"{role.peak_gib:.2f} of {role.limit_gib:.1f} GiB", "stages.rl.engine_memory"))
            rows += _components(plan, role.components)
            held = role.facts.get("sequences_at_once")
            if held is not None:
                longest = role.facts.get("longest_sequences_at_once", held)
                at_once = f"{held:,.0f} of mean length, {longest:,.0f} of full length"
                rows.append(("  answers at once", at_once, "KV cache / bytes of a sequence"))
    return rows


def _pace(plan: Plan) -> list[tuple[str, str, str]]:
    s = plan.sources
    step = "round" if plan.roles else "step"
    took = f"{seconds_text(plan.step_seconds)} (±{plan.error['time']:.0%}), most of it {plan.bound}"
    each = plan.tokens_per_second
    rate = f"{each:,.0f}" if each >= 10 else f"{each:.2g}"
    rate = f"{rate} tokens/s, {plan.mfu:.0%} MFU"
    rows = [
        (step, took, s["step_seconds"]),
        ("speed", rate, s["mfu"]),
        ("batch", f"{plan.layout.batch_tokens:,} tokens", s["hyper.batch_tokens"]),
        ("length", f"{counted(plan.steps, step)}, {count_text(plan.tokens)} tokens", s["steps"]),
        ("ends", plan.ends, "the first limit that is reached"),
        ("time", hours_text(plan.hours), s["hours"]),
        ("cost", "no price known" if plan.dollars is None else f"${plan.dollars:,.2f}", s["dollars"]),
    ]
    if plan.epochs is not None:
        shown = f"{plan.epochs:.2f}" if plan.epochs >= 0.1 else f"{plan.epochs:.2g}"
        rows.append(("epochs", f"{shown} over {count_text(plan.corpus_tokens or 0)} tokens", s["epochs"]))
    return rows


def _keeping(plan: Plan) -> list[tuple[str, str, str]]:
    s = plan.sources
    free = "" if plan.disk_free_gib is None else f", {gib_text(plan.disk_free_gib)} free"
    rows = [
        ("checkpoint", gib_text(plan.checkpoint_gib), s["checkpoint_gib"]),
        ("disk", f"{gib_text(plan.disk_gib)} at the peak{free}", s["disk_gib"]),
    ]
    return rows + [
        (name.replace("_", " "), f"{value:.4g}", s[f"hyper.{name}"])
        for name, value in plan.hyper.items()
        if name != "batch_tokens"
    ]


def counted(number: int, what: str) -> str:
    """Write a number of things: '1 step', '1,200 steps'."""
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def count_text(number: float) -> str:
    """1234567 -> 1.23 M; what three digits round to 1,000 of a unit is 1 of the next."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{number:.3g}") >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f}"


def seconds_text(seconds: float) -> str:
    """Write a short duration: 0.0123 -> 12.3 ms; minutes from two of them."""
    if seconds >= 120:
        return hours_text(seconds / 3600)
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def hours_text(hours: float) -> str:
    """Write a duration of hours: minutes below one, days from 48."""
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:.2f} h" if hours >= 1 else f"{hours * 60:.1f} min"


def gib_text(gib: float) -> str:
    """Write an amount of memory or disk: MiB below a tenth of a GiB; of thousands no hundredths."""
    return f"{gib:,.{0 if gib >= 1000 else 2}f} GiB" if gib >= 0.1 else f"{gib * 1024:,.1f} MiB"


def dollars_text(dollars: float | None) -> str:
    """Write an amount of dollars, or that no price is known."""
    return "no price" if dollars is None else f"${dollars:,.2f}"
