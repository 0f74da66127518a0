"""Parts of a plan that fine-tuning and GRPO share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windtunnel.model import HFShape
from windtunnel.recipe import MEGATRON, Layout, Recipe
from windtunnel.rig import Rig

from ..calibration import correction_of
from ..cost import EPOCHS_ASK, Length, budget_notes
from ..types import Alternative, Moment, Plan
from ..words import epoch_warnings
from .constants import HFConstants
from .search import Candidate
from .workload import Workload

# What others have published for models of a family, to hold a plan against.
PUBLISHED = {
    "deepseek_v3": "NVIDIA's own recipes for this model on 8 x H100 nodes: LoRA on 5 (tensor 8, pipeline 5), all weights on 56"
}


@dataclass(frozen=True)
class Weighed:
    """A recipe on a rig, as the search for alternatives sees it."""

    fits: bool
    peak_gib: float
    limit_gib: float
    layout: str


@dataclass(frozen=True)
class Sized:
    """What has been found out about a run beside its layout.

    Attributes:
        startup: seconds by part, once a run. corpus_tokens: of one epoch, None where they are not known.
        checkpoint_gib, disk_gib: GiB. reasons: against it, with the `alternatives` that work.
    """

    length: Length
    startup: dict[str, float]
    corpus_tokens: float | None
    checkpoint_gib: float
    disk_gib: float
    reasons: list[str]
    alternatives: list[Alternative]


def plan_of(recipe: Recipe, rig: Rig, c: HFConstants, work: Workload, best: Candidate, sized: Sized) -> Plan:
    """A plan in which all GPUs train in the layout of `best`, without its `hyper`, `options` and `sources`."""
    time, layout, length, fits = best.time, best.layout, sized.length, not sized.reasons
    assert time is not None
    tokens_per_second = layout.batch_tokens / time.seconds
    return Plan(
        recipe=recipe.name,
        rig=rig.name,
        machine=rig.describe(),
        fits=fits,
        needs_yes=length.epochs is not None and length.epochs > EPOCHS_ASK,
        model=describe_model(work.shape),
        method=work.method,
        depth=None,
        params=work.shape.parameters,
        parameters=parameter_counts(work),
        vocab=work.shape.vocab,
        layout=layout,
        peak_gib=best.peak_gib,
        limit_gib=best.limit_gib,
        components=best.memory.components,
        timeline=timeline(best),
        peak_moment=best.memory.moments[best.memory.peak].name,
        step_seconds=time.seconds,
        step_terms=time.terms,
        hidden_seconds=time.hidden,
        bound=time.bound,
        tokens_per_second=tokens_per_second,
        mfu=work.flops_per_token * tokens_per_second / (time.peak_flops * layout.ranks),
        steps=length.steps,
        tokens=length.tokens,
        derived_tokens=sized.corpus_tokens or 0.0,
        startup=sized.startup,
        hours=length.hours,
        dollars=length.dollars,
        dollars_per_hour=rig.dollars_per_hour,
        epochs=length.epochs,
        corpus_tokens=sized.corpus_tokens,
        ended_by=length.ended_by,
        checkpoint_gib=sized.checkpoint_gib,
        disk_gib=sized.disk_gib,
        disk_free_gib=rig.disk_free_gib,
        hyper={},
        roles={},
        options=(),
        reasons=tuple(sized.reasons),
        alternatives=tuple(sized.alternatives),
        warnings=tuple(epoch_warnings(length.epochs)),
        notes=(*notes(recipe, rig, work, layout, fits, sized.corpus_tokens), *rig.notes),
        error=stated_errors(c, layout, rig),
        sources={},
        correction=correction_of(best.memory.components, c.time_factor),
    )


def describe_model(shape: HFShape) -> str:
    """One line: name, size and what is special."""
    parts = [f"{shape.layers} layers of {shape.dim:,}", f"{shape.heads} heads"]
    if shape.mla:
        parts.append("latent attention")
    elif shape.kv_heads < shape.heads:
        parts.append(f"{shape.kv_heads} of keys and values")
    if shape.experts:
        parts.append(f"{shape.experts.per_token} of {shape.experts.count} experts a token")
    return f"{shape.name}: {', '.join(parts)}"


def parameter_counts(work: Workload) -> dict[str, int]:
    """Parameters by what they are."""
    shape = work.shape
    counts = {
        "matrices": shape.matrix_parameters,
        "tables": shape.embedding_parameters,
        "head": shape.head_parameters,
        "trained": work.trained,
    }
    return counts | ({"experts": shape.expert_parameters, "active": shape.active_parameters} if shape.experts else {})


def stated_errors(c: HFConstants, layout: Layout, rig: Rig) -> dict[str, float]:
    """Relative errors of memory and time: more for what was never measured here, split models and networks."""
    split = layout.engine == MEGATRON
    memory = max(c.memory_error, 0.15 if split else 0.0)
    return {"memory": memory, "time": max(c.time_error, 0.4 if split else 0.3 if rig.nodes > 1 else 0.0)}


def timeline(candidate: Candidate, after: float = 0.0) -> tuple[Moment, ...]:
    """The moments with their seconds after the step's beginning; `after`: what comes before this part of it."""
    time = candidate.time
    assert time is not None
    return tuple(
        replace(moment, seconds=after + forward * time.forward + backward * time.backward)
        for moment, (forward, backward) in zip(candidate.memory.moments, candidate.memory.done, strict=True)
    )


def notes(recipe: Recipe, rig: Rig, work: Workload, layout: Layout, fits: bool, corpus: float | None) -> list[str]:
    """What was adjusted, and what to know about the layout."""
    found = []
    if layout.batch_tokens != work.batch_tokens:
        found.append(
            f"batch raised from {work.batch_tokens:,} to {layout.batch_tokens:,} tokens, so that {layout.data} data-parallel"
            f" rank{'s' if layout.data > 1 else ''} get equal shares"
        )
    if layout.engine == MEGATRON:
        found.append(
            "matrices, experts, layers or states are split in a way that only Megatron-Bridge runs; these figures are arithmetic,"
            " not measured by us"
        )
        if work.weights != "bf16":
            found.append(f"no public recipe runs frozen {work.weights} weights there: rehearse this layout first")
    elif work.weights in ("int8", "int4") and work.adapter is not None:
        found.append(f"frozen {work.weights} weights need bitsandbytes' kernels; the package's own engine holds bf16 or fp8")
    if work.shape.family in PUBLISHED and (layout.engine == MEGATRON or not fits):
        found.append(PUBLISHED[work.shape.family])
    return found + budget_notes(recipe.budget, rig, layout.batch_tokens, corpus)


def common_sources(rig: Rig, c: HFConstants, best: Candidate, length: Length, corpus: str) -> dict[str, str]:
    """Where each number comes from that all plans have."""
    assert rig.gpu is not None
    error = stated_errors(c, best.layout, rig)
    return {
        "model": "its config.json, as arithmetic",
        "params": "shape arithmetic, equal to what transformers builds",
        "vocab": "config.json",
        "corpus_tokens": corpus,
        "layout": "fastest layout that fits" if best.fits else "leanest layout",
        "peak_gib": f"the moment '{best.memory.moments[best.memory.peak].name}', ±{error['memory']:.0%} ({c.source})",
        "limit_gib": f"{c.usable_share:.0%} of the GPU",
        "step_seconds": f"sum of the terms less what overlaps, ±{error['time']:.0%} ({c.source})",
        "mfu": f"FLOPs that training needs (PaLM, appendix B) against the dense peak; {rig.gpu.name}: {rig.gpu.source}",
        "steps": f"ended by {length.ended_by}",
        "dollars": rig.price_note,
        "checkpoint_gib": "trained weights and optimizer states",
        "disk_gib": "the model as downloaded, two checkpoints, kept weights, tokens",
    }
