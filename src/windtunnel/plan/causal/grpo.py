"""make_plan for reinforcement learning (GRPO) of a Hugging Face model: engines answer, learners update."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.recipe import GRPO, Layout, Recipe
from windtunnel.rig import Rig

from ..corpus import estimate_corpus_tokens
from ..cost import Length, Pace, run_length
from ..limits import money_and_disk
from ..types import Alternative, Plan, Role
from .assemble import Sized, Weighed, common_sources, notes, plan_of, timeline
from .constants import HFConstants, load_hf_constants
from .disk import checkpoint_gib, disk_gib
from .memory import SOURCES, least_gib
from .refusal import impossible, memory_reason
from .rollout import FEW, WEIGHT_BYTES
from .round import Round, grpo_workload, part_of, round_tokens, search_round
from .startup import startup_seconds, stored_bytes
from .totals import Totals
from .variants import Scales, alternatives

DEFAULT_ROUNDS = 100
ENGINE = "vllm"


def weigh_round(recipe: Recipe, rig: Rig) -> Weighed:
    """Whether the recipe's learners and engines fit the rig. Raises UserError as `plan_grpo` does."""
    found, sums = search_round(recipe, rig, load_hf_constants(rig.gpu.name if rig.gpu else ""))
    learner = found.learner
    fits = found.fits and impossible(sums.work) is None
    return Weighed(fits, learner.peak_gib, learner.limit_gib, f"{_shared(found)}; {learner.layout.describe()}")


def _least_gib(recipe: Recipe) -> float:
    return least_gib(grpo_workload(recipe, HFConstants()))


def plan_grpo(
    recipe: Recipe, rig: Rig, constants: HFConstants | None = None, corpus_tokens: float | None = None, suggest: bool = True
) -> Plan:
    """Plan `stages.rl` on a rig without torch. A step is a round; layout, memory and timeline are the learners'.

    Without `learners` or `engines` the fastest sharing that fits is taken: GPUs apart, or all of them in turn.

    Args:
        constants: measured on this kind of GPU; None: those that ship.
        corpus_tokens: tokens of all prompts once they are known.
        suggest: look for alternatives where the plan does not fit.

    Raises:
        UserError: model, layout or GPUs asked for cannot be, or the rig has no GPU.
    """
    stage = recipe.rl
    assert isinstance(stage, GRPO)
    c = constants or load_hf_constants(rig.gpu.name if rig.gpu else "")
    found, sums = search_round(recipe, rig, c)
    prompts, corpus_source = (corpus_tokens, "prepared data") if corpus_tokens is not None else estimate_corpus_tokens(recipe)
    tokens = round_tokens(stage)
    # An epoch is every prompt once; learners see it with its answers.
    corpus = None if prompts is None else prompts / stage.prompt_tokens * tokens / stage.prompts
    saved = checkpoint_gib(sums)
    startup = _startup(found, sums, rig, c, saved)
    speed = Pace(sum(startup.values()), found.seconds)
    length = run_length(recipe, rig, int(tokens), DEFAULT_ROUNDS * tokens, speed, corpus, f"{DEFAULT_ROUNDS} rounds by default")
    disk = disk_gib(sums, recipe.checkpoints, length.hours, prompts)
    reasons, options = _refusal(recipe, rig, found, sums, speed, length, disk, suggest)
    work, learner = sums.work, found.learner
    assert learner.time is not None
    per_second = tokens / found.seconds
    learning = plan_of(recipe, rig, c, work, learner, Sized(length, startup, prompts, saved, disk, reasons, options))
    return replace(
        learning,
        method="grpo",
        timeline=timeline(learner, 0.0 if stage.overlap else found.engine.seconds),
        step_seconds=found.seconds,
        step_terms=found.terms,
        hidden_seconds=found.hidden,
        bound=max(found.terms, key=lambda name: found.terms[name]),
        tokens_per_second=per_second,
        mfu=work.flops_per_token * per_second / (learner.time.peak_flops * rig.gpus),
        derived_tokens=DEFAULT_ROUNDS * tokens,
        hyper={"batch_tokens": tokens / stage.updates, "learning_rate": stage.learning_rate, "updates": float(stage.updates)},
        roles=_roles(found, stage),
        warnings=(*learning.warnings, *_warnings(found, stage)),
        notes=(
            _shared(found),
            *notes(recipe, rig, work, learner.layout, not reasons, None),
            *_notes(found, stage, rig),
            *rig.notes,
        ),
        error=learning.error | {"time": max(0.4, c.time_error)},
        sources=_sources(rig, c, found, length, corpus_source, stage),
    )


def _roles(found: Round, stage: GRPO) -> dict[str, Role]:
    learner, engine = found.learner, found.engine
    assert learner.time is not None
    answers = stage.prompts * stage.samples
    generated = answers * stage.mean_answer * stage.answer_tokens
    layout = Layout(
        engine.gpus, 1, 1, stage.prompt_tokens + stage.answer_tokens, stage.engine_weights, True, "cuda",
        shard="none", tensor=engine.tensor, engine=ENGINE,
    )  # fmt: skip
    learning = {name: found.terms[name] for name in found.terms if name not in ("generation", "weight sync")}
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
                "stale_rounds": 1.0 if stage.overlap and not found.in_turn else 0.0,
            },
        ),
    }  # fmt: skip


def _shared(found: Round) -> str:
    each = f"{found.engine.gpus // found.engine.tensor} engine(s) over {found.engine.tensor} GPU(s) each"
    if found.in_turn:
        return f"learners and engines take turns on all {found.learners} GPUs; {each}"
    return f"{found.learners} GPUs learn, {found.engine.gpus} generate: {each}"


def _startup(found: Round, sums: Totals, rig: Rig, c: HFConstants, saved: float) -> dict[str, float]:
    """Engines start beside the learners: what they take longer counts."""
    parts = startup_seconds(sums, part_of(rig, found.learners), c, saved)
    engines = c.engine_start_seconds + stored_bytes(sums.work) / (c.load_gbs * 1e9)
    beside = sum(parts.values()) - parts["last checkpoint"]
    return parts | {"engines, beyond the learners": max(0.0, engines - beside)}


def _warnings(found: Round, stage: GRPO) -> list[str]:
    engine = found.engine
    if engine.fits and engine.longest_at_once < FEW:
        return [
            f"an engine's KV cache holds {engine.longest_at_once:.1f} of the longest sequences at once: generation will be slow;"
            " raise stages.rl.engine_memory or stages.rl.engine_tensor"
        ]
    return []


def _notes(found: Round, stage: GRPO, rig: Rig) -> list[str]:
    idle = 0 if found.in_turn else rig.gpus - found.learners - found.engine.gpus
    said = ["the reward's own time is not counted"]
    if stage.overlap:
        said.append("engines answer with weights that are one round old")
    if idle:
        said.append(f"{idle} GPUs of {rig.name} are not used")
    return said


def _sources(rig: Rig, c: HFConstants, found: Round, length: Length, corpus: str, stage: GRPO) -> dict[str, str]:
    overlap = "less what overlaps" if found.hidden else "one after the other"
    return common_sources(rig, c, found.learner, length, corpus) | {
        "step_seconds": f"a round: answers, updates, new weights; {overlap}, ±40% (vLLM's speed on one H200, published syncs)",
        "tokens_per_second": "prompts and answers of a round / its seconds",
        "tokens": "rounds x prompts and answers of mean length",
        "hours": "starting up, rounds, last checkpoint",
        "epochs": f"prompts seen / prompts there are ({corpus})",
        "hyper.batch_tokens": f"prompts and answers of a round / updates, packed to {c.packing:.0%}",
        "hyper.learning_rate": "recipe",
        "hyper.updates": "recipe",
        "components.engine_weights": f"{stage.engine_weights}, this GPU's share of an engine",
        "components.engine_workspaces": "activations of prefill, CUDA graphs",
        "components.kv_cache": f"what is left of {stage.engine_memory:.0%} of the GPU (stages.rl.engine_memory)",
        "components.learner": "the learner's weights and states, which stay while engines have their turn",
        **{f"components.{name}": source for name, source in SOURCES.items()},
    }


def _refusal(
    recipe: Recipe, rig: Rig, found: Round, sums: Totals, speed: Pace, length: Length, disk: float, suggest: bool
) -> tuple[list[str], list[Alternative]]:
    reasons: list[str] = []
    never = impossible(sums.work)
    if never:
        reasons.append(never)
    elif not found.learner.fits:
        part = replace(rig, name=f"{found.learners} of {rig.gpus} GPUs of {rig.name}")
        reasons.append(f"learners: {memory_reason(sums, found.learner, part)}")
    if not found.engine.fits:
        reasons.append(_engine_reason(found, recipe, sums))
    options = list(alternatives(recipe, rig, Scales(weigh_round, _least_gib))) if reasons and suggest else []
    more, further = money_and_disk(recipe.budget, rig, speed, length, disk)
    return reasons + more, options + further


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
