"""Plan fine-tuning of a Hugging Face model; what its plans share with those of RL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from windtunnel.model import HFShape
from windtunnel.recipe import ANSWERS_AT_END, MEGATRON, Budget, Layout, Recipe
from windtunnel.rig import Rig

from . import hf_changes
from .alternatives import Change
from .constants import UNSEEN_MEMORY_ERROR, Constants, HFConstants, load_hf_constants
from .cost import Length, Pace, held_out_tokens, new_tokens, steps_between
from .cpu import DEFAULT_GFLOPS, CPUTraining
from .cpu import EFFICIENCY as CPU_EFFICIENCY
from .cpu import ERRORS as CPU_ERRORS
from .engine_fsdp import SOURCES, least_gib, static_bytes
from .hf_layouts import HFTraining, share_of
from .hf_work import PROMPT_TOKENS, Totals, Workload, fine_tuning, totals
from .judging import TUNING_WORKERS, judge_metric, judges_gib
from .plan import Case, Draft, StagePlanner, parts_text
from .search import Candidate

NAMES = {"fp8-experts": "bf16 and, of experts, fp8"}
# Rigs that are this machine, with its GPUs or without.
HERE = ("here", "cpu")
# Share of a conversation's tokens that is learned, until the data are there.
LEARNED = 0.3
# What a token that is only scored costs of one that is trained on, as of GPTs.
FORWARD = 0.36
CPU_BANDWIDTH_GBS = 10.0
RATES = {"full": 1e-5, "adapter": 2e-4}
# Families whose attention no flash kernel computes, and what is special in it.
UNUSUAL_SCORES = {"gpt_oss": "sinks", "gemma2": "capped scores"}
# What others have published for models of a family, to hold a plan against.
PUBLISHED = {
    "deepseek_v3": "NVIDIA's own recipes for this model, nodes of 8 x H100: LoRA on 5 (tensor 8, pipeline 5), all weights on 56"
}
GB = 1e9
TB = 1e12


def is_here(rig: Rig) -> bool:
    """Return whether a rig is this machine's CPU."""
    return rig.gpu is None and rig.name in HERE


class FineTuning(StagePlanner):
    """The planner of `sft` stages."""

    def changes(self, recipe: Recipe, rig: Rig) -> list[Iterator[Change]]:
        """See StagePlanner."""
        return hf_changes.changes(recipe)

    def elsewhere(self, recipe: Recipe) -> list[Change]:
        """See StagePlanner."""
        return hf_changes.elsewhere(recipe)

    def stand_ins(self, recipe: Recipe, rig: Rig) -> list[Iterator[Change]]:
        """See StagePlanner."""
        return hf_changes.stand_ins(recipe)

    def hopeless(self, recipe: Recipe) -> Callable[[Rig], bool]:
        """See StagePlanner."""
        least = least_gib(fine_tuning(recipe))
        return lambda rig: rig.gpu is not None and least > rig.gpus * rig.gpu.memory_gib

    def draft(self, case: Case) -> Draft:
        """See StagePlanner."""
        recipe, rig = case.recipe, case.rig
        work, c = fine_tuning(recipe), hf_constants(rig, case.constants)
        corpus, corpus_source = case.corpus
        never = impossible(work)
        # What cannot be trained in fewer bits is weighed as it would be in bf16.
        sums = totals(work if never is None else replace(work, weights="bf16"))
        here = is_here(rig)
        judges = judges_gib([] if work.answers is None else [work.answers.metric], rig, TUNING_WORKERS)
        found = CPUTraining(sums, c).search(rig, rig.gpus) if here else HFTraining(sums, c).search(rig, rig.gpus, judges)
        best = found.best
        startup, step = startup_seconds(sums, rig, c), best.timed.seconds
        answers = answer_seconds(sums, best.layout, rig, c)
        if answers:
            startup[ANSWERS_AT_END] = answers
        pace = Pace(sum(startup.values()), step + _between_steps(recipe, best, corpus, answers))
        given = recipe.sft.learning_rate if recipe.sft is not None else None
        fits = [] if best.fits else [memory_reason(sums, best, rig)]

        def notes(length: Length, fits: bool) -> list[str]:
            return layout_notes(work, best.layout, fits) + added_notes(recipe)

        def sources(length: Length) -> dict[str, str]:
            return hf_sources(rig, corpus_source) | {
                "epochs": f"tokens / corpus ({corpus_source})",
                "vocab": "config.json" + (f", {work.new_rows} tokens added" if work.new_rows else ""),
                "hyper.batch_tokens": "stages.sft.batch_tokens, in whole sequences",
                "hyper.learning_rate": "recipe" if given else "usual for this method",
            }

        return replace(
            hf_draft(work, sums, c, best, startup),
            pace=pace,
            derived_tokens=corpus or 0.0,
            derived_by="one epoch, as the budget names no limit" if corpus else "one step, as the data are not here",
            warnings=[] if corpus else _unknown_length(recipe.budget),
            corpus=corpus,
            epoch_tokens=corpus,
            hyper={
                "batch_tokens": float(best.layout.batch_tokens),
                "learning_rate": given or RATES["adapter" if work.adapter else "full"],
            },
            error=CPU_ERRORS if here else stated_errors(c, best.layout, rig),
            ranked=found.ranked,
            reasons=fits if never is None else [never],
            notes=notes,
            sources=sources,
        )


PLANNER = FineTuning()


def _unknown_length(budget: Budget) -> list[str]:
    """Warn of a plan of one step: where the data are not here only their epochs would say how many there are."""
    if any(limit is not None for limit in (budget.steps, budget.tokens, budget.hours, budget.dollars)):
        return []
    what = f"how many steps {budget.epochs:g} epochs are" if budget.epochs is not None else "how many steps an epoch is"
    return [
        f"the data are not here, so that {what} is not known: steps, time and cost are those of one step; bring the files, or "
        "--set budget.steps=N",
    ]


def _between_steps(recipe: Recipe, best: Candidate, corpus: float | None, answers: float) -> float:
    """Return the seconds of validations and held-out answers that fall on one step."""
    stage, step = recipe.sft, best.timed.seconds
    assert stage is not None
    # Of conversations only answers are targets, and all tokens are computed.
    corpora = getattr(recipe.data.corpus, "sources", None)
    kind = corpora[0].corpus.kind if corpora else recipe.data.corpus.kind
    asked_for = stage.validation_tokens / (LEARNED if kind in ("conversations", "theses") else 1.0)
    tokens = held_out_tokens(recipe, asked_for, corpus)
    seconds = FORWARD * step * tokens / best.layout.batch_tokens
    total = seconds / steps_between(stage.validate_every, step)
    asked = stage.answers
    return total + (answers + seconds) / steps_between(asked.every, step) if asked is not None and asked.every else total


def answer_seconds(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> float:
    """Return the seconds of answering the held-out questions once; 0 where there are none.

    Each token of all answers reads the weights, or computes, or waits for the host to launch the layers, unless its steps are
    recorded, whichever is longest.
    """
    work = sums.work
    if work.answers is None:
        return 0.0
    shape, (batch, times) = work.shape, work.answering(layout.ranks)
    judging = judge_metric(work.answers.metric, work.answers.prompts, rig)
    if rig.gpu is None:
        peak = CPU_EFFICIENCY * (rig.cpu_gflops or DEFAULT_GFLOPS) * 1e9
        token = max(2.0 * shape.active_parameters * batch / peak, 4.0 * shape.parameters / (CPU_BANDWIDTH_GBS * 1e9))
        prompts = 2.0 * shape.active_parameters * batch * PROMPT_TOKENS / 4 / peak
        return judging + times * (prompts + work.answers.tokens * token)
    reading = 2.0 * shape.parameters / (rig.gpu.bandwidth_gbs * 1e9 * c.decode_bandwidth)
    launching = 0.0 if shape.same_steps else shape.layers * c.eager_launch_seconds / 2
    token = max(reading, launching) + c.decode_overhead_seconds
    copying = 6.0 * shape.parameters / (rig.gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency)
    return judging + copying + times * work.answers.tokens * token


def hf_constants(rig: Rig, given: Constants | None) -> HFConstants:
    """Return the constants that were given, else those of the rig's GPU."""
    assert given is None or isinstance(given, HFConstants)
    return given or load_hf_constants(rig.gpu.name if rig.gpu else "")


def hf_draft(work: Workload, sums: Totals, c: HFConstants, best: Candidate, startup: dict[str, float]) -> Draft:
    """Return what drafts of all stages on Hugging Face models have in common; a stage fills in the rest."""
    time, shape = best.timed, work.shape
    return Draft(
        c=c,
        best=best,
        model=describe_model(shape),
        method=work.method,
        params=shape.parameters,
        parameters=parameter_counts(work),
        vocab=shape.vocab,
        tokens=float(best.layout.batch_tokens),
        step_seconds=time.seconds,
        terms=time.terms,
        hidden=time.hidden,
        flops=work.flops_per_token,
        masked=shape.masked_flops_per_token(work.sequence),
        gpus=best.layout.ranks,
        startup=startup,
        pace=Pace(sum(startup.values()), time.seconds),
        derived_tokens=0.0,
        derived_by="",
        corpus=None,
        epoch_tokens=None,
        checkpoint_gib=checkpoint_gib(sums),
        kept_gib=2.0 * sums.trained / 2**30,  # trained weights alone, in bf16
        base_gib=work.shape.published_bytes / 2**30,
        token_bytes=4,
        hyper={},
        error={},
        notes=lambda length, fits: [],
        sources=lambda length: {},
    )


def describe_model(shape: HFShape) -> str:
    """Return one line: name, size and what is special."""
    parts = [f"{shape.layers} layers of {shape.dim:,}", f"{shape.heads} heads"]
    if shape.mla:
        parts.append("latent attention")
    elif shape.kv_heads < shape.heads:
        parts.append(f"{shape.kv_heads} of keys and values")
    if shape.experts:
        parts.append(f"{shape.experts.per_token} of {shape.experts.count} experts a token")
    return f"{shape.name}: {', '.join(parts)}"


def parameter_counts(work: Workload) -> dict[str, int]:
    """Count parameters by what they are."""
    shape = work.shape
    counts = {
        "matrices": shape.matrix_parameters,
        "tables": shape.embedding_parameters,
        "head": shape.head_parameters,
        "trained": work.trained,
    }
    return counts | ({"experts": shape.expert_parameters, "active": shape.active_parameters} if shape.experts else {})


def stated_errors(c: HFConstants, layout: Layout, rig: Rig) -> dict[str, float]:
    """Return the relative errors of memory and time: more for what was never measured here, split models and networks."""
    split = layout.engine == MEGATRON or layout.expert > 1
    memory = max(c.memory_error, UNSEEN_MEMORY_ERROR if split or layout.recorded else 0.0)
    return {"memory": memory, "time": max(c.time_error, 0.4 if split else 0.3 if rig.nodes > 1 or layout.recorded else 0.0)}


def layout_notes(work: Workload, layout: Layout, fits: bool) -> list[str]:
    """Say what was adjusted, and what to know about the layout."""
    found = []
    if work.uneven:
        found += _last_micro_batch(work, layout)
    elif layout.batch_tokens != work.batch_tokens:
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
            own = "; model.weights=fp8-experts is what this package's own engine runs" if work.shape.experts else ""
            found.append(f"no public recipe runs frozen {work.weights} weights there: rehearse this layout first{own}")
    if layout.engine != MEGATRON and layout.expert > 1:
        found.append(
            f"each rank holds {work.shape.experts.count // layout.expert} of {work.shape.experts.count} experts a layer,"  # type: ignore[union-attr]
            " and tokens travel to them: measured with up to 8 layers of DeepSeek-V3 on 2 H200s alone"
            " (benchmarks/results/moe-fp8-h200.json)"
        )
    elif work.weights in ("int8", "int4") and work.adapter is not None:
        found.append(f"frozen {work.weights} weights need bitsandbytes' kernels; the package's own engine holds bf16 or fp8")
    if layout.engine != MEGATRON and work.shape.family in UNUSUAL_SCORES:
        found.append(
            f"attention with {UNUSUAL_SCORES[work.shape.family]} runs on FlexAttention, for which its time is arithmetic, not"
            " measured yet"
        )
    if work.shape.family in PUBLISHED and (layout.engine == MEGATRON or not fits):
        found.append(PUBLISHED[work.shape.family])
    return found


def _last_micro_batch(work: Workload, layout: Layout) -> list[str]:
    """Say that the last micro-batch of an update is not like the others, if it is not."""
    share = share_of(work, layout.data)
    lacking = layout.accumulation * layout.micro_batch - share
    if not lacking:
        return []
    how = "filled up with padding" if layout.compile else "short"
    return [
        f"about {share} sequences an update on each rank, in {layout.accumulation} micro-batches of {layout.micro_batch}: "
        f"the last one is {how}"
    ]


def added_notes(recipe: Recipe) -> list[str]:
    """Say what is not known of added tokens as long as the model's tokenizer is not here."""
    new, ids = new_tokens(recipe)
    if not new or ids is not None:
        return []
    named = getattr(recipe.model, "config", "")
    return [
        f"whether the {new} added tokens fit spare rows of the tables shows once the tokenizer is here, which takes megabytes: "
        f"windtunnel fetch {named} --only tokenizer"
    ]


def hf_sources(rig: Rig, corpus: str) -> dict[str, str]:
    """Say where the numbers come from that all plans for Hugging Face models have."""
    peak = f"against the dense peak; {rig.gpu.name}: {rig.gpu.source}" if rig.gpu else "against measured fp32 products"
    return {
        "model": "its config.json, as arithmetic",
        "params": "shape arithmetic, equal to what transformers builds",
        "vocab": "config.json",
        "corpus_tokens": corpus,
        "mfu": f"FLOPs that training needs (PaLM, appendix B) {peak}",
        "checkpoint_gib": "trained weights and optimizer states",
        "disk_gib": "the model as downloaded, two checkpoints, kept weights, tokens",
        **{f"components.{name}": source for name, source in SOURCES.items()},
    }


def checkpoint_gib(sums: Totals) -> float:
    """Return the GiB that a checkpoint must hold to resume: trained weights and optimizer states, but no frozen weights."""
    held = static_bytes(sums, 1)
    if sums.work.adapter is not None:
        held = {name: size for name, size in held.items() if name not in ("weights", "experts")}
    return sum(held.values()) / 2**30


def startup_seconds(sums: Totals, rig: Rig, c: HFConstants) -> dict[str, float]:
    """Return the seconds around the steps by part: processes, weights, compilation, and the last checkpoint."""
    work = sums.work
    parts = {
        "processes and communicators": c.process_seconds * (1 + 0.1 * (rig.nodes - 1) ** 0.5),
        "weights from disk": work.shape.published_bytes / (c.load_gbs * 1e9),
        "last checkpoint": checkpoint_gib(sums) * 2**30 / (c.save_gbs * 1e9 * rig.nodes),
    }
    if work.compile:
        parts["compiling"] = c.compile_seconds * len(sums.kinds)
    return parts


def impossible(work: Workload) -> str | None:
    """Return what no rig can do: train weights that are held in less than 16 bits."""
    if work.adapter is not None or work.weights == "bf16":
        return None
    step = {
        "fp8": "1/16 of a weight",
        "fp8-experts": "1/16 of a weight",
        "int8": "1/127 of a row's largest",
        "int4": "1/7 of a group's largest",
    }[work.weights]
    return (
        f"model.weights: {work.weights} with model.adapter: null asks for all weights to be trained in {work.weights}, which is"
        f" not a thing: neighbouring {work.weights} values lie about {step} apart, an update at a fine-tuning learning rate is a"
        " thousandth of that and is rounded away. 8- and 4-bit weights are for frozen models under an adapter;"
        " optimizer states can be int8 (states: int8)"
    )


def memory_reason(sums: Totals, candidate: Candidate, rig: Rig) -> str:
    """Hold the states against the rig's memory, then the rank that needs most, component by component."""
    work = sums.work
    ranks, limit = candidate.layout.ranks, candidate.limit_gib
    count = f"{work.shape.name} has {work.shape.parameters / 1e9:,.1f} B parameters"
    if work.adapter is None:
        held = static_bytes(sums, 1)
        each = sum(held.values()) / sums.trained
        states = f"full fine-tuning holds {_bytes(sum(held.values()))} of weights and optimizer states ({each:.3g} B each)"
    else:
        states = f"its frozen weights in {NAMES.get(work.weights, work.weights)} are {_bytes(sums.frozen + sums.resident)}"
    # Rounded down: a rig never has more than is said.
    usable = f"{rig.name} {'have' if ' of ' in rig.name else 'has'} {_bytes(ranks * limit * 2**30, down=True)} that may be used"
    needs = (
        f"each rank needs {candidate.peak_gib:,.1f} GiB ({parts_text(candidate.memory.components, ',.1f')}) in the leanest layout"
    )
    reason = f"{count}; {states}, {usable}; {needs}; the limit is {limit:.1f} GiB"
    if candidate.host_gib > candidate.host_limit_gib:
        reason += f"; states in CPU memory need {candidate.host_gib:,.0f} GiB a node, {candidate.host_limit_gib:,.0f} may be used"
    return reason


def _bytes(size: float, down: bool = False) -> str:
    number, unit = (size / TB, "TB") if size >= TB / 2 else (size / GB, "GB")
    digits = 2 if unit == "TB" else 1
    if down:
        number = math.floor(number * 10**digits) / 10**digits
    return f"{number:,.{digits}f} {unit}"
