"""make_plan: recipe x rig -> a plan, or a refusal with the nearest plans that work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from windtunnel.recipe import HuggingFaceModel, Recipe, SudokuCorpus, UserError
from windtunnel.rig import Rig

from .alternatives import memory_alternatives
from .calibration import correction_of
from .constants import Constants, load_constants
from .corpus import estimate_corpus_tokens, vocabulary
from .cost import EPOCHS_ASK, Length, Pace, budget_notes, pace, run_length
from .depth import Sized, at_depth, pick_depth, size_up
from .disk import checkpoint_gib, run_disk_gib
from .limits import money_and_disk
from .memory import SOURCES as MEMORY_SOURCES
from .search import Candidate, check_own_layout
from .steptime import LAUNCHES
from .types import Alternative, Moment, Plan
from .words import epoch_warnings

if TYPE_CHECKING:
    from .causal import HFConstants


def make_plan(
    recipe: Recipe,
    rig: Rig,
    vocab: int | None = None,
    calibration: Constants | HFConstants | None = None,
    corpus_tokens: float | None = None,
    suggest: bool = True,
) -> Plan:
    """Plan a recipe on a rig in milliseconds, without torch.

    Args:
        vocab: tokens of the prepared vocabulary, BOS included; None: as far as the recipe tells.
        calibration: constants measured on this kind of GPU; None: those that ship.
        corpus_tokens: training tokens of one epoch once they are known; None: estimated from the recipe.
        suggest: where the plan does not fit, look for the nearest that do; False saves that time.

    Raises:
        UserError: the recipe cannot mean anything on this rig (fp8 without the hardware, a micro-batch
            that divides nothing, a layout that contradicts itself). A plan that is merely too big comes
            back with fits=False.
    """
    if isinstance(recipe.model, HuggingFaceModel):
        from .causal import HFConstants, plan_hf  # the GPT's plans need none of it

        assert calibration is None or isinstance(calibration, HFConstants)
        return plan_hf(recipe, rig, calibration, corpus_tokens, suggest)
    assert calibration is None or isinstance(calibration, Constants)
    check_own_layout(recipe, rig)
    constants = calibration or load_constants(rig.gpu.name if rig.gpu else None)
    vocab, vocab_source = (vocab, "prepared data") if vocab is not None else vocabulary(recipe)
    corpus, corpus_source = (corpus_tokens, "prepared data") if corpus_tokens is not None else estimate_corpus_tokens(recipe)
    notes = []
    auto = recipe.gpt.depth == "auto"
    if auto:
        depth, reason = pick_depth(recipe, rig, vocab, constants, corpus)
        recipe = at_depth(recipe, depth)
        depth_source = f"auto: {reason}"
        notes.append(depth_source)
    else:
        depth_source = "recipe"
    sized = size_up(recipe, rig, vocab, constants)
    speed = pace(recipe, sized.candidate, constants, corpus)
    batch = sized.candidate.layout.batch_tokens
    length = run_length(recipe, rig, batch, sized.hyper.tokens.value, speed, corpus)
    notes += [*sized.notes, *_length_notes(recipe, rig, sized, length, corpus, auto), *rig.notes]
    sources = _sources(rig, sized, constants, length, vocab_source, corpus_source) | {"depth": depth_source}
    return _assemble(recipe, rig, vocab, corpus, sized, speed, length, constants, notes, sources, suggest)


def resolve(
    recipe: Recipe,
    rig: Rig,
    vocab: int | None = None,
    calibration: Constants | None = None,
    corpus_tokens: float | None = None,
) -> Recipe:
    """The recipe with depth 'auto' made a number for this rig; make_plan says why in its notes."""
    if isinstance(recipe.model, HuggingFaceModel) or recipe.gpt.depth != "auto":
        return recipe
    constants = calibration or load_constants(rig.gpu.name if rig.gpu else None)
    corpus = corpus_tokens if corpus_tokens is not None else estimate_corpus_tokens(recipe)[0]
    depth, _ = pick_depth(recipe, rig, vocab if vocab is not None else vocabulary(recipe)[0], constants, corpus)
    return at_depth(recipe, depth)


def refuse(plan: Plan) -> UserError:
    """The error to raise where a run was to begin whose plan does not fit."""
    assert not plan.fits
    message = f"{plan.recipe} does not fit rig {plan.rig}: " + "; ".join(plan.reasons)
    # A run is on this machine: what needs another rig is no option of the command that is refused.
    options = [f"{a.change} ({a.why})" for a in plan.alternatives if not a.elsewhere]
    if len(options) < len(plan.alternatives):
        options.append("another rig: windtunnel plan names those that do")
    return UserError(message, "; or ".join(options) if options else "choose a smaller model or a larger rig")


def _assemble(
    recipe: Recipe,
    rig: Rig,
    vocab: int,
    corpus: float | None,
    sized: Sized,
    speed: Pace,
    length: Length,
    constants: Constants,
    notes: list[str],
    sources: dict[str, str],
    suggest: bool,
) -> Plan:
    shape, candidate, layout = sized.shape, sized.candidate, sized.candidate.layout
    checkpoint = checkpoint_gib(shape, sized.passes.averaged)
    disk = run_disk_gib(shape, recipe.checkpoints, length.hours, corpus, sized.passes.averaged)
    reasons, alternatives = _refusal(recipe, rig, vocab, sized, speed, length, constants, disk, suggest)
    tokens_per_second = layout.batch_tokens / candidate.time.seconds
    epochs = length.epochs
    # A puzzle is another one every epoch: under a symmetry drawn anew.
    repeated = None if isinstance(recipe.data.corpus, SudokuCorpus) else epochs
    return Plan(
        recipe=recipe.name,
        rig=rig.name,
        machine=rig.describe(),
        fits=not reasons,
        needs_yes=repeated is not None and repeated > EPOCHS_ASK,
        model=_model(sized),
        method="pretrain",
        depth=sized.depth,
        params=shape.parameters,
        parameters={"matrices": shape.matrix_parameters, "tables": shape.table_parameters, "head": shape.head_parameters},
        vocab=vocab,
        layout=layout,
        peak_gib=candidate.peak_gib,
        limit_gib=candidate.limit_gib,
        components=candidate.components,
        timeline=_timeline(candidate),
        peak_moment=candidate.memory.peak.name,
        step_seconds=candidate.time.seconds,
        step_terms=candidate.time.terms,
        hidden_seconds=sum(candidate.time.terms.values()) - candidate.time.seconds,
        bound=candidate.time.bound,
        tokens_per_second=tokens_per_second,
        mfu=shape.flops_per_token * tokens_per_second / (candidate.time.peak_flops * layout.ranks),
        steps=length.steps,
        tokens=length.tokens,
        derived_tokens=sized.hyper.tokens.value,
        startup={"start, compile, last checkpoint": speed.startup_seconds},
        hours=length.hours,
        dollars=length.dollars,
        dollars_per_hour=rig.dollars_per_hour,
        epochs=epochs,
        corpus_tokens=corpus,
        ended_by=length.ended_by,
        checkpoint_gib=checkpoint,
        disk_gib=disk,
        disk_free_gib=rig.disk_free_gib,
        hyper={name: value for name, value, _ in sized.hyper.rows()},
        roles={},
        options=(),
        reasons=tuple(reasons),
        alternatives=tuple(alternatives),
        warnings=tuple(epoch_warnings(repeated)),
        notes=tuple(notes),
        error={"memory": _memory_error(constants, candidate), "time": _time_error(constants, sized)},
        sources=sources,
        correction=correction_of(candidate.components, constants.time_factor),
    )


def _timeline(candidate: Candidate) -> tuple[Moment, ...]:
    """The moments with their seconds after the step's beginning: a backward pass takes about twice as long as a forward pass."""
    passes = candidate.time.seconds - candidate.time.terms.get("optimizer", 0.0)
    moments = zip(candidate.memory.moments, candidate.memory.done, strict=True)
    return tuple(replace(m, seconds=passes * (forward + 2 * backward) / 3) for m, (forward, backward) in moments)


def _refusal(
    recipe: Recipe,
    rig: Rig,
    vocab: int,
    sized: Sized,
    speed: Pace,
    length: Length,
    constants: Constants,
    disk: float,
    suggest: bool,
) -> tuple[list[str], list[Alternative]]:
    candidate = sized.candidate
    reasons: list[str] = []
    alternatives: list[Alternative] = []
    if not candidate.fits:
        reasons.append(_memory_reason(sized, recipe.pretrain.micro_batch))
        if suggest:
            alternatives += memory_alternatives(recipe, rig, vocab, constants)
    more_reasons, more_alternatives = money_and_disk(recipe.budget, rig, speed, length, disk)
    # While it does not fit, no room in the budget or on the disk makes it a plan that works.
    return reasons + more_reasons, alternatives + (more_alternatives if candidate.fits else [])


def _memory_reason(sized: Sized, given: int | None) -> str:
    shape, candidate = sized.shape, sized.candidate
    parts = sorted(candidate.components.items(), key=lambda item: -item[1])
    again = f", {_applications(sized)}" if sized.passes.recursive else ""
    listed = " + ".join(f"{name.replace('_', ' ')} {gib:.1f}" for name, gib in parts if gib >= 0.05)
    count = f"{shape.parameters / 1e9:.1f} B" if shape.parameters >= 1e9 else f"{shape.parameters / 1e6:.0f} M"
    size = f"depth {sized.depth} has {count} parameters, {4 * shape.parameters / 1e9:.1f} GB of fp32 weights alone{again}"
    at = f"at the recipe's micro-batch {given}" if given else f"even at micro-batch {candidate.layout.micro_batch}"
    needs = f"each rank needs {candidate.peak_gib:.1f} GiB ({listed}) {at}"
    return f"{size}; {needs}; the limit is {candidate.limit_gib:.1f} GiB"


def _model(sized: Sized) -> str:
    name = f"GPT of depth {sized.depth}"
    return f"recursive {name} ({_applications(sized)})" if sized.passes.recursive else name


def _applications(sized: Sized) -> str:
    """'12 blocks x 3 passes x 4 supervision steps = 144 applications'."""
    recursion = sized.shape.recursion
    assert recursion is not None
    counts = f"{sized.shape.layers} blocks x {recursion.passes} passes x {recursion.supervision} supervision steps"
    return f"{counts} = {sized.shape.applications:,} applications"


def _length_notes(recipe: Recipe, rig: Rig, sized: Sized, length: Length, corpus: float | None, auto: bool) -> list[str]:
    notes = budget_notes(recipe.budget, rig, sized.candidate.layout.batch_tokens, corpus)
    if recipe.budget.epochs is not None and not corpus:
        notes.append("budget.epochs is applied once the corpus has been read")
    ratio = length.tokens / sized.hyper.tokens.value
    # A depth that auto chose needs no advice on depth.
    if ratio < 0.9:
        advice = "" if auto else "; a smaller one may do better"
        notes.append(f"{length.ended_by} ends the run at {ratio:.0%} of the tokens this depth is best trained with{advice}")
    elif ratio > 1.5:
        advice = "" if auto else "; a deeper one may do better"
        notes.append(f"the budget reaches {ratio:.1f} times the tokens this depth is best trained with{advice}")
    return notes


def _memory_error(constants: Constants, candidate: Candidate) -> float:
    """What is said of a rank's memory."""
    if not candidate.layout.recorded or constants.extra_gib != 0:
        return constants.memory_error
    return max(constants.memory_error, constants.recorded_memory_error)


def _time_error(constants: Constants, sized: Sized) -> float:
    """What is said of the step's seconds: less is known of the host and of recursion, unless the user has measured them."""
    candidate, errors = sized.candidate, [constants.time_error]
    if candidate.layout.device != "cuda" or constants.time_factor != 1.0:
        return constants.time_error
    if candidate.time.bound == LAUNCHES:
        errors.append(constants.launch_error)
    elif candidate.layout.recorded:
        errors.append(constants.recorded_error)
    if candidate.layout.precision == "fp8" and sized.passes.recursive:
        errors.append(constants.fp8_error)
    return max(errors)


def _sources(rig: Rig, sized: Sized, constants: Constants, length: Length, vocab: str, corpus: str) -> dict[str, str]:
    peak = (
        f"{rig.gpu.name}: {rig.gpu.source}" if rig.gpu else "measured fp32 products" if rig.cpu_gflops else "assumed speed a core"
    )
    memory = {f"components.{name}": source for name, source in MEMORY_SOURCES.items()}
    hyper = {f"hyper.{name}": rule for name, _, rule in sized.hyper.rows()}
    limit = f"{constants.usable_share:.0%} of the GPU" if rig.gpu else f"{constants.cpu_usable_share:.0%} of RAM"
    return {
        "params": "shape arithmetic",
        "vocab": vocab,
        "corpus_tokens": corpus,
        "layout": "fastest layout that fits",
        "peak_gib": f"sum of the components, ±{_memory_error(constants, sized.candidate):.0%} ({constants.source})",
        "limit_gib": limit,
        "step_seconds": f"sum of the terms, ±{_time_error(constants, sized):.0%} ({constants.source})",
        "tokens_per_second": "batch tokens / step time",
        "mfu": f"training FLOPs (PaLM, appendix B) against the dense peak; {peak}",
        "steps": f"ended by {length.ended_by}",
        "tokens": "steps x batch tokens",
        "hours": "starting up, steps, validations, last checkpoint",
        "dollars": rig.price_note,
        "epochs": f"tokens / corpus ({corpus})",
        "checkpoint_gib": "fp32 weights and optimizer states",
        "disk_gib": "newest checkpoint whole, the one being written, kept weights, tokens",
        **memory,
        **hyper,
    }
