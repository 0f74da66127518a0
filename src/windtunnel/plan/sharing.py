"""How learners and engines share a rig's GPUs for rounds of GRPO: apart, or all of them in turn, whichever is fastest.

vLLM has GPUs of its own; on a rig with a single one it keeps a part of its memory beside the learner's (`Round.beside`).

Of many ways to share, most cannot be the fastest: what learners must compute and engines take says so before any layout
of the learners is searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from windtunnel.recipe import GRPO, Answers, HuggingFaceModel, Recipe, UserError
from windtunnel.rig import Rig

from .constants import HFConstants
from .engine_fsdp import least_gib, static_bytes
from .hf_layouts import HFTraining
from .hf_steptime import forward_seconds, least_seconds
from .hf_work import Totals, Workload, totals, workload_of
from .judging import ANYTHING, Asked, Judging, asked_of, judge_answers, judges_gib
from .memory import GIB
from .rollout import FEW, EnginePlan, plan_engines, require_divided, sync_seconds
from .search import Candidate, Found

# What an engine that waits for its turn keeps on the GPU beside its CUDA context.
ASLEEP_GIB = 1.0
# Cache beyond what all answers of a round need at their longest: it is kept in blocks.
SPARE_CACHE = 0.1


@dataclass(frozen=True)
class Round:
    """Learners and engines with a round's seconds by term.

    Attributes:
        in_turn: learners and engines share all GPUs, one after the other.
        memory: share of its GPU that an engine takes for weights and KV cache where a learner keeps its own memory on it too;
            None: it has the GPU to itself while it answers.
        hidden: seconds that pass beside others: where rounds overlap, and of judging while answers are written.
    """

    learner: Candidate
    learners: int
    engine: EnginePlan
    in_turn: bool
    terms: dict[str, float]
    hidden: float
    judging: Judging
    memory: float | None = None

    @property
    def fits(self) -> bool:
        """Whether both do."""
        return self.learner.fits and self.engine.fits

    @property
    def seconds(self) -> float:
        """Wall time of a round."""
        return sum(self.terms.values()) - self.hidden


def grpo_workload(recipe: Recipe, c: HFConstants) -> Workload:
    """Return what learners do in one optimizer step.

    Raises:
        UserError: the longest sample does not fit a packed sequence; model.config cannot be read.
    """
    stage, model = recipe.rl, recipe.model
    assert isinstance(stage, GRPO)
    assert isinstance(model, HuggingFaceModel)
    # Answers are not split over rows: what does not fit one would be cut, and learned from as if it had ended.
    longest = stage.prompt_tokens + stage.answer_tokens
    if longest > model.sequence:
        raise UserError(
            f"model.sequence: {model.sequence:,} tokens, and a prompt of {stage.prompt_tokens:,} with an answer of"
            f" {stage.answer_tokens:,} takes {longest:,}: it would be cut",
            f"--set model.sequence={longest}",
        )
    # Rows are never quite full: so many more tokens pass through the model than are learned from.
    tokens = stage.round_tokens / stage.updates / c.packing
    work = workload_of(stage, "stages.rl", model, recipe.layout, tokens, "bf16")
    # Without engines learners write all answers, those of rounds too, with a copy of the weights. How many sequences a round's
    # answers fill is known when they are there.
    written = held_out_of(stage) or Answers(prompts=stage.prompts * stage.samples, tokens=stage.answer_tokens)
    frozen_copy = stage.reference and model.adapter is None
    answers = None if engines_beside(stage) else written
    return replace(work, frozen_copy=frozen_copy, answers=answers, answers_kept=1, uneven=True, own_engine=True)


def engines_beside(stage: GRPO) -> bool:
    """Return whether there are engines, which hold the weights and answer held-out prompts too; else learners answer."""
    return stage.engine != "in-turn" or bool(stage.learners or stage.engines or stage.overlap)


def held_out_of(stage: GRPO) -> Answers | None:
    """Return the held-out prompts that are answered each time; None: there are none."""
    asked = stage.answers
    return None if asked is None else Answers(prompts=asked.prompts, tokens=asked.tokens or stage.answer_tokens)


def search_round(recipe: Recipe, rig: Rig, c: HFConstants) -> tuple[Round, Totals]:
    """Find the fastest way to share the rig's GPUs that fits, else the one that is nearest to fitting.

    Raises:
        UserError: the GPUs asked for are not there, or a layout contradicts itself.
    """
    stage = recipe.rl
    assert stage is not None
    work = grpo_workload(recipe, c)
    if rig.gpu is None:
        raise UserError(f"rig {rig.name} has no GPU; GRPO of {work.shape.name} is planned for GPUs", "for example --on 8xH100")
    if stage.engine_tensor is not None:
        require_divided(work.shape, stage.engine_tensor)
    sums = totals(work)
    training = HFTraining(sums, c)
    best: tuple[tuple[float, float], int, Round] | None = None
    # Sorted by what each could reach at best, so that the first whose best is behind what was found ends the search.
    for least, place, learners, engines in _promising(sums, stage, rig, c):
        if best is not None and least > best[0]:
            break  # nor can any after it be before the best
        try:
            found = plan_round(training, stage, rig, learners, engines, asked=asked_of(recipe))
        except UserError:
            # Of many ways to share only some divide evenly; what the recipe itself asks for is said.
            if stage.learners or stage.engines or rig.gpus == 1:
                raise
            continue
        # Of equals the first in the order of splits: a plan must not depend on how promising they looked.
        if best is None or (_order(found), place) < best[:2]:
            best = _order(found), place, found
    if best is None:
        raise UserError(
            f"no way to share the {rig.gpus} GPUs of {rig.name} divides this recipe evenly",
            f"--set stages.rl.learners={max(1, rig.gpus // 2)} --set stages.rl.engines={max(1, rig.gpus // 2)}",
        )
    return best[2], sums


def _promising(sums: Totals, stage: GRPO, rig: Rig, c: HFConstants) -> list[tuple[tuple[float, float], int, int, int]]:
    """Return (the best order it could have, place, learners, engines) of each way to share, the most promising first."""
    found = []
    for place, (learners, engines) in enumerate(_splits(stage, rig)):
        try:
            found.append((_promise(sums, stage, rig, learners, engines, c), place, learners, engines))
        except UserError:
            found.append(((0.0, 0.0), place, learners, engines))  # said, or passed over, where it is weighed
    return sorted(found)


def _promise(sums: Totals, stage: GRPO, rig: Rig, learners: int, engines: int, c: HFConstants) -> tuple[float, float]:
    """Return an order (see _order) that this way to share cannot be before, whatever the learners' layout."""
    assert rig.gpu is not None
    limit = HFTraining(sums, c).limit_gib(rig) - _others_keep(sums, stage, rig, c, in_turn=learners == rig.gpus)
    missing = max(0.0, least_gib(sums.work) / learners / limit)
    # A bound: no layout of the learners takes less.
    learning = stage.updates * least_seconds(sums, learners, rig.gpu, c)
    if learners == rig.gpus:  # what engines have depends on the learners' layout
        return (0.0, learning) if missing <= 1 else (1.0, missing)
    most = largest_share(stage, learners, engines)
    engine = plan_engines(sums.work.shape, stage, rig, engines, c, ahead=stage.overlap, most=most)
    if missing > 1 or not engine.fits:
        return (1.0, missing + (0.0 if engine.fits else 1.0))
    return (0.0, max(engine.seconds, learning) if stage.overlap else engine.seconds + learning)


def _others_keep(sums: Totals, stage: GRPO, rig: Rig, c: HFConstants, *, in_turn: bool) -> float:
    """Return the GiB that judges, and engines that take turns with learners, keep on a learner's GPU while that has its turn."""
    engines = _engines_keep(sums, stage, rig, c) if in_turn else 0.0
    return engines + judges_gib([source.kind for source in stage.sources], rig)


def _engines_keep(sums: Totals, stage: GRPO, rig: Rig, c: HFConstants) -> float:
    """Return the GiB that an engine keeps on a learner's GPU while that has its turn: vLLM all that it has."""
    if stage.engine != "vllm":
        return c.context_gib + ASLEEP_GIB
    engine = plan_engines(sums.work.shape, _single(stage), rig, rig.gpus, c)
    fixed = sum(gib for name, gib in engine.components.items() if name != "kv_cache")
    # A cache for all answers of a round, unless it takes more than the learner is left with; for a few in any case.
    half = (engine.limit_gib - fixed) / 2
    return fixed + max(FEW * engine.longest_gib, min(_full_cache(engine, stage), half))


def _full_cache(engine: EnginePlan, stage: GRPO) -> float:
    """Return the GiB of cache that all answers of a round fill at their longest."""
    return (1 + SPARE_CACHE) * math.ceil(stage.prompts * stage.samples / engine.gpus) * engine.longest_gib


def _single(stage: GRPO) -> GRPO:
    """Return the stage with engines of one GPU each: those that share it with a learner."""
    return stage.model_copy(update={"engine_tensor": 1})


def _beside(engine: EnginePlan, stage: GRPO, rig: Rig) -> tuple[EnginePlan, float]:
    """Return an engine on a learner's GPU with no more cache than a round can fill, and its share of the GPU's memory."""
    assert rig.gpu is not None
    # More than a round fills would lie idle.
    cache = min(engine.components["kv_cache"], _full_cache(engine, stage))
    left = cache / max(engine.components["kv_cache"], 1e-9)
    engine = replace(
        engine, components=engine.components | {"kv_cache": cache},
        at_once=left * engine.at_once, longest_at_once=left * engine.longest_at_once,
    )  # fmt: skip
    own = sum(gib for name, gib in engine.components.items() if name not in ("learner", "context"))
    return engine, own / rig.gpu.memory_gib


def _order(found: Round) -> tuple[float, float]:
    """Those that fit by their time, then the others by what is missing."""
    if found.fits:
        return (0.0, found.seconds)
    return (1.0, found.learner.peak_gib / found.learner.limit_gib + (0.0 if found.engine.fits else 1.0))


def largest_share(stage: GRPO, learners: int, engines: int) -> int | None:
    """Return the most GPUs that an engine may have so that each learner has one of its own; None: that is not asked.

    Raises:
        UserError: there are too few.
    """
    if stage.engine == "in-turn":
        return None  # engines are only planned
    if engines < learners:
        raise UserError(
            f"stages.{stage.name}.engines: {engines} GPU(s) for the engines of {learners} learners, of which each has its own",
            f"--set stages.{stage.name}.engines={learners}, or --set stages.{stage.name}.learners={engines}",
        )
    return engines // learners if stage.engine == "vllm" else 1


def _splits(stage: GRPO, rig: Rig) -> Iterator[tuple[int, int]]:
    """(learners, engines); (all, all) where they take turns.

    Raises:
        UserError: more GPUs than the rig has, or none left; learners that cannot share the prompts of a round.
    """
    total = rig.gpus
    if stage.learners or stage.engines:
        learners = stage.learners or total - (stage.engines or 0)
        engines = stage.engines or total - learners
        if learners < 1 or engines < 1 or learners + engines > total:
            asked = ", ".join(f"stages.rl.{key}={value}" for key in ("learners", "engines") if (value := getattr(stage, key)))
            fix = f"--set stages.rl.learners={max(1, total // 2)} --set stages.rl.engines={max(1, total - total // 2)}"
            if total == 1:
                fix = "--set stages.rl.learners=null --set stages.rl.engines=null (they take turns on one GPU)"
            raise UserError(f"{asked}: rig {rig.name} has {total} GPUs for learners and engines together", fix)
        require_shared(stage, learners)
        yield learners, engines
        return
    beside = stage.overlap or stage.engine != "in-turn"
    if not beside or (total == 1 and _may_share(stage)):
        if stage.prompts % total == 0:  # learners share a round's prompts evenly
            yield total, total
        beside = beside and total > 1
    per_node = rig.gpus_per_node
    for learners in range(1, total):
        # Learners fill whole nodes, or an even part of one: `part_of` refuses what does not spread evenly.
        whole = learners % per_node == 0 if learners > per_node else per_node % learners == 0
        if (whole or learners == total - 1) and stage.prompts % learners == 0:
            yield learners, total - learners
    if beside and total == 1:
        key, fix = ("overlap", "0") if stage.overlap else ("engine", "in-turn")
        raise UserError(
            f"stages.rl.{key}: {getattr(stage, key)} needs GPUs for engines beside those of learners, and the rig has one",
            f"--set stages.rl.{key}={fix}",
        )


def require_shared(stage: GRPO, learners: int) -> None:
    """Refuse learners that cannot share the prompts of a round. Raises UserError."""
    if stage.prompts % learners:
        near = max(n for n in range(1, learners + 1) if stage.prompts % n == 0)
        raise UserError(
            f"stages.rl.learners: {learners} cannot share the {stage.prompts} prompts of a round evenly",
            f"--set stages.rl.learners={near}, or --set stages.rl.prompts={-(-stage.prompts // learners) * learners}",
        )


def _may_share(stage: GRPO) -> bool:
    """Return whether an engine may be on its learner's GPU."""
    return stage.engine == "vllm" and not stage.overlap and stage.engine_tensor in (None, 1)


def part_of(rig: Rig, gpus: int) -> Rig:
    """Return so many GPUs of a rig, on as few nodes as hold them.

    Raises:
        UserError: they cannot be spread evenly over whole nodes.
    """
    if gpus == rig.gpus:
        return rig
    nodes = -(-gpus // rig.gpus_per_node)
    if gpus % nodes:
        even = gpus // rig.gpus_per_node * rig.gpus_per_node
        raise UserError(f"{gpus} GPUs do not spread evenly over nodes of {rig.gpus_per_node}", f"use {even} of them")
    return replace(
        rig, nodes=nodes, gpus_per_node=gpus // nodes, network_gbs=rig.network_gbs * (gpus // nodes) / rig.gpus_per_node
    )


def _unhurried(searched: Found, seconds: float, error: float) -> Candidate:
    """Return the fastest layout that fits by the stated error too, where that takes no longer than there is time for."""
    best = searched.best
    roomy = [c for c in searched.tried if c.fits and c.peak_gib * error <= c.limit_gib and c.timed.seconds <= seconds]
    if not best.fits or best.peak_gib * error <= best.limit_gib or not roomy:
        return best
    return min(roomy, key=lambda candidate: candidate.timed.seconds)


def plan_round(
    training: HFTraining, stage: GRPO, rig: Rig, learners: int, engines: int, keeps: bool = True, asked: Asked = ANYTHING
) -> Round:
    """Plan a round on so many learners and engines; as many of both as the rig has GPUs take turns.

    keeps: whether learners that take turns with engines keep their states on the GPUs meanwhile. asked: what the prompts ask for;
    see `judge_answers`.

    Raises:
        UserError: they cannot be spread evenly, or a layout contradicts itself.
    """
    sums, c = training.sums, training.c
    in_turn = learners == rig.gpus
    vllm_beside = in_turn and stage.engine == "vllm"
    part = part_of(rig, learners)
    searched = training.search(part, learners, _others_keep(sums, stage, rig, c, in_turn=in_turn))
    learner, memory = searched.best, None
    # States that are shared out lie in parts on the learners' GPUs, and stay there while engines have their turn.
    shards = learners if learner.layout.shard != "none" else 1
    judges = judges_gib([source.kind for source in stage.sources], rig) if in_turn else 0.0
    held = judges + (sum(static_bytes(sums, shards).values()) / GIB if in_turn and keeps else 0.0)
    if vllm_beside:
        learner = _unhurried(searched, math.inf, 1 + c.memory_error)
        engine = plan_engines(sums.work.shape, _single(stage), rig, engines, c, learner.peak_gib + judges)
        engine, memory = _beside(engine, stage, rig)
    else:
        most = None if in_turn else largest_share(stage, learners, engines)
        engine = plan_engines(sums.work.shape, stage, rig, engines, c, held, 0 if in_turn else stage.overlap, most)
    if stage.overlap and not in_turn:
        # A pass that scores takes about a third of an update.
        learner = _unhurried(searched, engine.seconds / stage.updates / (1 + stage.scorings / 3), 1 + c.memory_error)
    updates = {name: stage.updates * seconds for name, seconds in learner.timed.terms.items()}
    judging = judge_answers(stage, rig, learners, asked=asked)
    terms = {
        "generation": engine.seconds,
        "judging": judging.seconds,
        "log-probabilities": stage.scorings * stage.updates * forward_seconds(sums, learner.layout, rig, c),
        **updates,
        "weight sync": sync_seconds(sums.work.shape, stage, rig, not in_turn, c),
    }
    learning = sum(updates.values()) + terms["log-probabilities"] - stage.updates * learner.timed.hidden
    hidden = (
        judging.hidden * min(engine.seconds, judging.seconds)
        + stage.updates * learner.timed.hidden
        + (min(engine.seconds, learning) if stage.overlap and not in_turn else 0.0)
    )
    return Round(learner, learners, engine, in_turn, {n: s for n, s in terms.items() if s > 0}, hidden, judging, memory)
