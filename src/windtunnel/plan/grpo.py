"""Plan reinforcement learning (GRPO) of a Hugging Face model: engines answer, learners update, new weights go back.

A step is a round: answers, log-probabilities, updates, new weights to the engines. Without `learners` or `engines` the
fastest sharing of the GPUs that fits is taken: apart, or all of them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from windtunnel.recipe import ANSWERS_AT_END, GRPO, Answers, Layout, Recipe
from windtunnel.rig import Rig

from .constants import HFConstants
from .cost import Length, Pace, steps_between
from .cpu import ERRORS as CPU_ERRORS
from .cpu import CPUTraining
from .engine_fsdp import least_gib
from .finetune import (
    FineTuning,
    answer_seconds,
    hf_constants,
    hf_draft,
    hf_sources,
    impossible,
    is_here,
    layout_notes,
    memory_reason,
    startup_seconds,
    stated_errors,
)
from .hf_work import Totals, Workload, totals
from .judging import asked_of, judge_answers
from .memory import BF16, GIB
from .plan import Case, Draft
from .rollout import FEW, WEIGHT_BYTES, largest_engine, plan_engines
from .sharing import Round, engines_beside, grpo_workload, held_out_of, part_of, require_shared, search_round
from .sizes import sizes_of
from .types import Role, Size

DEFAULT_ROUNDS = 100
ANSWERS_AT_FIRST = "held-out answers before the first round"
ENGINE = "vllm"


class RoundPlanning(FineTuning):
    """The planner of `rl` stages. Layout, memory and timeline are the learners'."""

    def hopeless(self, recipe: Recipe) -> Callable[[Rig], bool]:
        """See StagePlanner: learners' states on all GPUs, or weights on the most GPUs that an engine may have."""
        stage, work = recipe.rl, grpo_workload(recipe, HFConstants())
        assert stage is not None
        least, whole = least_gib(work), WEIGHT_BYTES[stage.engine_weights] * work.shape.parameters / GIB

        def of(rig: Rig) -> bool:
            if rig.gpu is None:
                return False
            # Even spread over the most GPUs that an engine may have the weights take so much of each.
            each = whole / largest_engine(work.shape, stage, rig)
            return least > rig.gpus * rig.gpu.memory_gib or each > stage.engine_memory * rig.gpu.memory_gib

        return of

    def sizes(self, case: Case) -> tuple[Size, ...] | None:
        """See StagePlanner."""
        if case.rig.gpu is None:
            return None
        hopeless = self.hopeless(case.recipe)
        return sizes_of(case.rig, lambda rig: None if hopeless(rig) else self.draft(replace(case, rig=rig)))

    def draft(self, case: Case) -> Draft:
        """See StagePlanner; corpus_tokens: of all prompts."""
        recipe, rig = case.recipe, case.rig
        stage, c = recipe.rl, hf_constants(rig, case.constants)
        assert isinstance(stage, GRPO)
        if is_here(rig):
            return draft_here(case, stage, c)
        found, sums = search_round(recipe, rig, c)
        prompts, corpus_source = case.corpus
        tokens = stage.round_tokens
        work, learner = sums.work, found.learner
        startup, error = _startup(found, sums, rig, c), stated_errors(c, learner.layout, rig)
        asked = _by_engines(found, recipe, sums, rig, c) if engines_beside(stage) else None
        asked = held_out_seconds(recipe, sums, learner.layout, rig, c) if asked is None else asked
        between = _ask(stage, startup, found.seconds, asked)

        def notes(length: Length, fits: bool) -> list[str]:
            own = _answering(work, learner.layout, learner.limit_gib)
            return [_shared(found), *layout_notes(work, learner.layout, fits), *own, *_notes(found, stage, rig)]

        return replace(
            hf_draft(work, sums, c, learner, startup),
            method="grpo",
            tokens=tokens,
            step_seconds=found.seconds,
            terms=found.terms,
            hidden=found.hidden,
            gpus=rig.gpus,
            pace=Pace(sum(startup.values()), found.seconds + between),
            derived_tokens=DEFAULT_ROUNDS * tokens,
            derived_by=f"{DEFAULT_ROUNDS} rounds by default",
            corpus=prompts,
            epoch_tokens=_epoch_tokens(case, stage),
            hyper=_hyper(stage),
            error=error | {"time": max(0.4, c.time_error)},
            shared=f"{_shared(found)}; ",
            after=0.0 if stage.overlap else found.engine.seconds,
            roles=_roles(found, stage),
            reasons=_reasons(found, recipe, sums, rig),
            warnings=_warnings(found, stage),
            notes=notes,
            sources=lambda length: _sources(rig, c, corpus_source, found, stage) | _asked_source(stage, asked),
        )


PLANNER = RoundPlanning()


def _reasons(found: Round, recipe: Recipe, sums: Totals, rig: Rig) -> list[str]:
    """Tell what is against a round on this rig."""
    never, reasons = impossible(sums.work), []
    if never:
        reasons.append(never)
    elif not found.learner.fits:
        # The message counts GPUs of the rig; those that generate hold none of the learners' states.
        part = replace(rig, name=f"{found.learners} of {rig.gpus} GPUs of {rig.name}")
        reasons.append(f"learners: {memory_reason(sums, found.learner, part)}")
    return reasons if found.engine.fits else [*reasons, _engine_reason(found, recipe, sums)]


def draft_here(case: Case, stage: GRPO, c: HFConstants) -> Draft:
    """Return the draft of a round on this machine's CPU, where sampler and learner take turns; rough, in fp32."""
    recipe, rig, corpus = case.recipe, case.rig, case.corpus
    # All answers of a round as if they were held-out questions: on a CPU both are written the same way.
    every = Answers(prompts=stage.prompts * stage.samples, tokens=stage.answer_tokens)
    work = grpo_workload(recipe, c)
    sums = totals(replace(work, answers=every, answers_kept=every.prompts))
    learner = CPUTraining(sums, c).search(rig, 1).best
    if stage.engine != "in-turn" and stage.learners is not None:  # processes that share the prompts of a round
        require_shared(stage, stage.learners)
        learner = replace(learner, layout=replace(learner.layout, ranks=stage.learners))
    # Answers end at different times, and the last of them are few.
    generation = (0.5 + stage.mean_answer / 2) * answer_seconds(sums, learner.layout, rig, c)
    judging = judge_answers(stage, rig, 1, asked=asked_of(recipe))
    terms = {
        "generation": generation,
        "judging": max(0.0, judging.seconds - judging.hidden * generation),
        "log-probabilities": stage.scorings * stage.updates * learner.timed.seconds / 3,
        **{name: stage.updates * seconds for name, seconds in learner.timed.terms.items()},
    }
    startup, seconds = startup_seconds(sums, rig, c), sum(terms.values())
    asked = held_out_seconds(recipe, replace(sums, work=replace(work, answers=held_out_of(stage))), learner.layout, rig, c)
    between = _ask(stage, startup, seconds, asked)
    return replace(
        hf_draft(sums.work, sums, c, learner, startup),
        method="grpo",
        tokens=stage.round_tokens,
        step_seconds=seconds,
        terms={name: value for name, value in terms.items() if value > 0},
        hidden=0.0,
        pace=Pace(sum(startup.values()), seconds + between),
        derived_tokens=DEFAULT_ROUNDS * stage.round_tokens,
        derived_by=f"{DEFAULT_ROUNDS} rounds by default",
        corpus=corpus[0],
        epoch_tokens=_epoch_tokens(case, stage),
        hyper=_hyper(stage),
        error=CPU_ERRORS,
        shared="sampler and learner take turns; ",
        after=generation,
        reasons=[] if learner.fits else [memory_reason(sums, learner, rig)],
        warnings=inert(stage),
        notes=lambda length, fits: [f"judging: {judging.source}"],
        sources=lambda length: hf_sources(rig, corpus[1]) | _round_sources(c, corpus[1]) | _asked_source(stage, asked),
    )


def held_out_seconds(recipe: Recipe, sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> float:
    """Return the seconds of answering and judging the held-out prompts once; 0 where there are none.

    Learners answer them, as they are, to the last token; the first one's judges begin when all answers are there.
    """
    stage = recipe.rl
    assert stage is not None
    if stage.answers is None:
        return 0.0
    judging = judge_answers(stage, rig, 1, answers=stage.answers.prompts, asked=asked_of(recipe))
    return answer_seconds(sums, layout, rig, c) + judging.seconds


def _by_engines(found: Round, recipe: Recipe, sums: Totals, rig: Rig, c: HFConstants) -> float | None:
    """Return the seconds of held-out prompts where engines answer them: new weights, answers to the last token, judging.

    None: there are no such prompts.
    """
    stage = recipe.rl
    assert stage is not None
    held_out = held_out_of(stage)
    if held_out is None:
        return None
    once = stage.model_copy(
        update={"prompts": held_out.prompts, "samples": 1, "answer_tokens": held_out.tokens, "mean_answer": 1.0,
                "engine_tensor": found.engine.tensor}
    )  # fmt: skip
    # What a learner keeps on the same GPUs leaves as much less for keys and values.
    held = found.engine.components.get("learner", 0.0)
    engine = plan_engines(sums.work.shape, once, rig, found.engine.gpus, c, held)
    judging = judge_answers(stage, rig, 1, answers=held_out.prompts, asked=asked_of(recipe))
    return found.terms.get("weight sync", 0.0) + engine.seconds + judging.seconds


def _ask(stage: GRPO, startup: dict[str, float], round_seconds: float, asked: float) -> float:
    """Count held-out prompts before the first round and at the end, `asked` seconds each; return what a round has of them."""
    if stage.answers is None:
        return 0.0
    startup |= {ANSWERS_AT_FIRST: asked, ANSWERS_AT_END: asked}
    return asked / steps_between(stage.answers.every, round_seconds)


def _asked_source(stage: GRPO, asked: float) -> dict[str, str]:
    if stage.answers is None:
        return {}
    told = f"{asked:,.1f} s of held-out prompts before the first round, every {stage.answers.every} and at the end"
    return {"hours": f"starting up, rounds, {told}, last checkpoint"}


def inert(stage: GRPO) -> list[str]:
    """Return what is asked for and does nothing."""
    if stage.updates == 1 and stage.clip_higher is not None:
        return [
            f"stages.{stage.name}.clip_higher={stage.clip_higher:g} does nothing: with one update a round no ratio leaves 1; "
            f"raise stages.{stage.name}.updates, or set clip_higher to null"
        ]
    if stage.updates == 1 and stage.loss == "gspo":
        return [f"stages.{stage.name}.loss=gspo is grpo with one update a round, where every ratio is 1"]
    return []


def _epoch_tokens(case: Case, stage: GRPO) -> float | None:
    """Return an epoch as steps count it: every prompt once, with its answers."""
    if case.corpus_tokens is not None:
        return case.corpus_tokens  # of prepared prompts they are counted
    prompts = case.corpus[0]
    return None if prompts is None else prompts / stage.prompt_tokens * stage.round_tokens / stage.prompts


def _hyper(stage: GRPO) -> dict[str, float]:
    tokens = stage.round_tokens / stage.updates
    return {"batch_tokens": tokens, "learning_rate": stage.learning_rate, "updates": float(stage.updates)}


def _roles(found: Round, stage: GRPO) -> dict[str, Role]:
    learner, engine = found.learner, found.engine
    answers = stage.prompts * stage.samples
    generated = answers * stage.mean_answer * stage.answer_tokens
    layout = Layout(
        engine.gpus, 1, 1, stage.prompt_tokens + stage.answer_tokens, stage.engine_weights, True, "cuda",
        shard="none", tensor=engine.tensor, engine=ENGINE,
    )  # fmt: skip
    learning = {name: found.terms[name] for name in found.terms if name not in ("generation", "judging", "weight sync")}
    return {
        "learner": Role(
            found.learners, learner.layout, learner.memory.components, learner.peak_gib, learner.limit_gib, learning,
            {"updates": float(stage.updates)},
        ),
        "engine": Role(
            engine.gpus, layout, engine.components, sum(engine.components.values()), engine.limit_gib,
            {"prefill": engine.prefill, "decode": engine.decode, "weight sync": found.terms["weight sync"]},
            {
                "engines": engine.gpus / engine.tensor,
                "sequences_at_once": engine.at_once,
                "longest_sequences_at_once": engine.longest_at_once,
                "answers": float(answers),
                "tokens_per_second": generated / engine.seconds,
                "stale_rounds": float(stage.overlap) if not found.in_turn else 0.0,
                **({} if found.memory is None else {"memory_share": found.memory}),
            },
        ),
    }  # fmt: skip


def _shared(found: Round) -> str:
    if found.memory is not None:
        return f"the learner and vLLM share the GPU, {found.memory:.0%} of its memory vLLM's; they take turns"
    tensor, engines = found.engine.tensor, found.engine.gpus // found.engine.tensor
    if found.in_turn and found.learners == 1:
        return "the learner and an engine take turns on the GPU"
    each = f"{engines} engine{'s' if engines > 1 else ''} of {tensor} GPU{'s' if tensor > 1 else ''}"
    if found.in_turn:
        return f"learners and engines take turns on all {found.learners} GPUs, {each}"
    return f"{found.learners} GPU{'s' if found.learners > 1 else ''} learn{'' if found.learners > 1 else 's'}, {each}"


def _startup(found: Round, sums: Totals, rig: Rig, c: HFConstants) -> dict[str, float]:
    """Return the seconds of starting up: engines start beside the learners, what they take longer counts."""
    parts = startup_seconds(sums, part_of(rig, found.learners), c)
    engines = c.engine_start_seconds + sums.work.shape.published_bytes / (c.load_gbs * 1e9)
    # Engines start while learners load and compile: only what they take longer is waited for.
    beside = sum(parts.values()) - parts["last checkpoint"]
    return parts | {"engines, beyond the learners": max(0.0, engines - beside)}


def _warnings(found: Round, stage: GRPO) -> list[str]:
    engine = found.engine
    if engine.fits and engine.longest_at_once < FEW:
        return [
            *inert(stage),
            f"an engine's KV cache holds {engine.longest_at_once:.1f} of the longest sequences at once: generation will be slow;"
            " raise stages.rl.engine_memory or stages.rl.engine_tensor",
        ]
    return inert(stage)


def _answering(work: Workload, layout: Layout, limit_gib: float) -> list[str]:
    """Say where a good part of a learner's memory must be free for the copy that answers."""
    gib = sum(work.answering_bytes(layout.ranks, BF16).values()) / GIB
    if gib < limit_gib / 4:
        return []
    return [
        f"answers are written by a copy of all weights on every learner, which needs {gib:,.1f} GiB beside its states;"
        f" --set {work.stage}.engine=vllm has engines of their own write them"
    ]


def _notes(found: Round, stage: GRPO, rig: Rig) -> list[str]:
    idle = 0 if found.in_turn else rig.gpus - found.learners - found.engine.gpus
    said = [f"judging: {found.judging.source}"]
    if stage.overlap:
        old = "one round" if stage.overlap == 1 else f"{stage.overlap} rounds"
        said.append(f"engines answer with weights that are {old} old")
    if found.engine.tensor > rig.gpus_per_node:
        nodes = found.engine.tensor // rig.gpus_per_node
        said.append(f"an engine spans {nodes} nodes: every token waits for its GPUs' sums to cross the network")
    if idle:
        said.append(f"{idle} GPUs of {rig.name} are not used")
    return said


def _sources(rig: Rig, c: HFConstants, corpus: str, found: Round, stage: GRPO) -> dict[str, str]:
    overlap = "less what overlaps" if found.hidden else "one after the other"
    return (
        hf_sources(rig, corpus)
        | _round_sources(c, corpus)
        | {
            "step_seconds": f"a round: answers, updates, weights; {overlap}, ±40% (vLLM's speed on one H200, published syncs)",
            "components.engine_weights": f"{stage.engine_weights}, this GPU's share of an engine",
            "components.engine_workspaces": "activations of prefill, CUDA graphs",
            "components.kv_cache": f"what is left of {stage.engine_memory:.0%} of the GPU (stages.rl.engine_memory)",
            "limit_gib": f"{c.usable_share:.0%} of the GPU, less what judges{' and engines' if found.in_turn else ''} keep of it",
            "components.learner": "the learner's weights and states, which stay while engines have their turn; beside vLLM all",
        }
    )


def _round_sources(c: HFConstants, corpus: str) -> dict[str, str]:
    """Say where the numbers come from that all plans of rounds have."""
    return {
        "step_seconds": "a round: answers, updates, one after the other; rough",
        "tokens_per_second": "prompts and answers of a round / its seconds",
        "tokens": "rounds x prompts and answers of mean length",
        "hours": "starting up, rounds, last checkpoint",
        "epochs": f"prompts seen / prompts there are ({corpus})",
        "hyper.batch_tokens": f"prompts and answers of a round / updates, packed to {c.packing:.0%}",
        "hyper.learning_rate": "recipe",
        "hyper.updates": "recipe",
    }


def _engine_reason(found: Round, recipe: Recipe, sums: Totals) -> str:
    stage, engine = recipe.rl, found.engine
    assert stage is not None
    parts = " + ".join(f"{name.replace('_', ' ')} {gib:.1f}" for name, gib in engine.components.items() if name != "kv_cache")
    whole = WEIGHT_BYTES[stage.engine_weights] * sums.work.shape.parameters / 1e9
    longest = stage.prompt_tokens + stage.answer_tokens
    return (
        f"engines: {whole:,.1f} GB of {stage.engine_weights} weights over {engine.tensor} GPU(s) leave no room for one sequence"
        f" of {longest:,} tokens: {parts} of {engine.limit_gib:.1f} GiB ({stage.engine_memory:.0%} of a GPU)"
    )
