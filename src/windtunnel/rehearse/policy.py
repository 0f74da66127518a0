"""Rehearse reinforcement learning: a scale model of its stages, what rounds must show, judges that accept what is right."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.recipe import (
    GRPO,
    Budget,
    Every,
    FolderTokenizer,
    PromptCorpus,
    Recipe,
    RewardSource,
    Schedule,
    stage_recipe,
)

from .context import Context, Rehearsal, Stage, learns_policy, precedes_policy
from .following import series, train_to_end
from .staged import train_stages
from .training import APART
from .tuning import HELD_OUT, fewer, small_model, tuning_scale

ROUNDS, BEFORE_STEPS, BEFORE_ROUNDS = 6, 10, 2
PROMPTS, SAMPLES, BEST, ANSWER_TOKENS, ASKED = 6, 3, 2, 24, 3
LEAST_ANSWER_TOKENS = 4
# A random toy, whose weights must move visibly within six rounds; the recipe's is for a model that can already speak.
LEARNING_RATE = 1e-2
VARIETY = '''"""What a scale model is rewarded for beside the recipe's own judges: many different characters."""


def variety(prompt, answer, truth):
    return len(set(answer)) / 100
'''


def policy_scale(context: Context) -> Recipe:
    """Return the scale model of the stage of kind rl alone; it begins with the run of the stage before it, if there is one.

    Rules: a random model of the architecture with the recipe's own tokenizer where that is here; six rounds of 6 prompts with
    3 answers of at most 24 tokens, saved after each; three held-out prompts. What is structural stays: loss, advantages,
    judges, reference, adapter. One judge is added with a small weight, which likes many different characters: a random model's
    answers are all wrong, and from equal rewards nothing would be learned.
    """
    stages = context.small_stages
    small = stage_recipe(stages, stages.training[-1].name)
    before = getattr(context, "before", None)
    stage = small.rl
    assert stage is not None
    small = small.with_stages(rl=stage.model_copy(update={"init_from": None if before is None else str(before.resolve())}))
    return small.model_copy(update={"stage": None, "budget": Budget(steps=context.steps or ROUNDS)})


def policy_stages(context: Context) -> Recipe:
    """Return the scale model of all stages: of those before the last a few steps each, with the same model and tokenizer."""
    *earlier, last = context.stages
    first = context.excerpted((earlier or [last])[0])
    model, tokenizer = small_model(context, first, staged=bool(earlier))
    replaced = tokenizer != first.data.tokenizer and not (isinstance(tokenizer, FolderTokenizer) and _is_own(tokenizer, last))
    policy = _policy(context, context.excerpted(last), model, tokenizer, replaced)
    if not earlier:
        return policy
    begun = [tuning_scale(context, recipe, (model, tokenizer), BEFORE_STEPS) for recipe in earlier]
    stages: dict[str, Any] = {}
    for recipe, small in zip(earlier, begun, strict=True):
        stages[recipe.training[0].name] = small.training[0].model_copy(
            update={"name": recipe.training[0].name, "budget": Budget(steps=BEFORE_STEPS), "set": _differences(begun[0], small)}
        )
    rl = policy.rl
    assert rl is not None
    stages[last.training[0].name] = rl.model_copy(
        update={"name": last.training[0].name, "budget": Budget(steps=BEFORE_ROUNDS), "set": _differences(begun[0], policy)}
    )
    return begun[0].model_copy(
        update={"stages": {**stages, "evaluate": policy.evaluation}, "budget": Budget(), "checkpoints": policy.checkpoints}
    )


def _is_own(tokenizer: FolderTokenizer, recipe: Recipe) -> bool:
    """Return whether it is the recipe's own, found on this machine, rather than one made of a rehearsal's text."""
    from windtunnel.recipe import find_model

    wanted, own = recipe.data.tokenizer, find_model(recipe.model.config)  # type: ignore[union-attr]
    named = wanted.path if isinstance(wanted, FolderTokenizer) else None
    places = [Path(place).expanduser().resolve() for place in (named, own) if place is not None]
    return tokenizer.path is not None and Path(tokenizer.path) in places


def _differences(base: Recipe, recipe: Recipe) -> dict[str, Any]:
    """Return what a stage has to set so that the base becomes its own recipe: data, and length of a sequence."""
    if recipe is base:
        return {}
    return {"data": recipe.data.model_dump(mode="json"), "model.sequence": recipe.model.sequence}


def _policy(context: Context, recipe: Recipe, model: Any, tokenizer: Any, replaced: bool) -> Recipe:
    """Return the scale model of the stage of kind rl."""
    stage, corpus = recipe.rl, recipe.data.corpus
    assert stage is not None
    assert isinstance(corpus, PromptCorpus)
    changed: dict[str, Any] = {}
    if replaced:  # another tokenizer takes other numbers of tokens, and has no template of its own
        changed = {"prompt_tokens": None} | ({"template": "chatml"} if corpus.template in ("auto", "model") else {})
    data = recipe.data.model_copy(
        update={"corpus": fewer(corpus).model_copy(update=changed), "tokenizer": tokenizer, "validation": HELD_OUT}
    )
    recipe = recipe.model_copy(update={"model": model, "data": data})
    longest = _longest(recipe)
    tokens = max(LEAST_ANSWER_TOKENS, min(stage.answer_tokens, ANSWER_TOKENS))
    rounds = context.steps or ROUNDS
    answers = stage.answers and stage.answers.model_copy(
        update={"every": Every(steps=max(1, rounds // 2)), "prompts": min(stage.answers.prompts, ASKED), "tokens": tokens}
    )
    samples = min(stage.samples, SAMPLES)
    small: dict[str, Any] = {
        "gates": None, "set": {}, "budget": Budget(steps=rounds), "share": None, "init_from": None, "overridden": {},
        "prompts": min(stage.prompts, PROMPTS), "samples": samples, "prompt_tokens": longest, "answer_tokens": tokens,
        "updates": min(stage.updates, 2), "best": stage.best and min(stage.best, BEST), "micro_batch": 2, "compile": False,
        "learning_rate": LEARNING_RATE, "schedule": Schedule(warmup_steps=1, warmdown=0.0, final=1.0), "answers": answers,
        "rewards": [*stage.sources, _variety(context)], "reward": None, "learners": None, "engines": None, "overlap": False,
        "in_flight": False, "placement": "local", "engine": _engine_here(stage), "engine_tensor": None,
        # Answers of 24 tokens are nearly all cut, and nothing would be learned.
        "mask_truncated": False, "resamples": 1, "keep_rollouts": rounds,
        "cross_check": 1.0 if stage.cross_check else 0.0,
    }  # fmt: skip
    evaluate = recipe.evaluation.model_copy(
        update={"name": "evaluate", "gates": None, "exact_match_problems": ASKED, "samples": 1, "sample_tokens": tokens}
    )
    return recipe.model_copy(
        update={
            "stage": None,
            "model": model.model_copy(update={"sequence": longest + tokens}),
            "stages": {stage.name: stage.model_copy(update=small), "evaluate": evaluate},
            "budget": Budget(steps=rounds),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": Every(steps=1)}),
        }
    )


def _engine_here(stage: GRPO) -> str:
    """Return what answers in a rehearsal: the recipe's engine, or transformers beside the learner where vLLM is not here."""
    from windtunnel.rl import has_vllm

    return stage.engine if stage.engine != "vllm" or has_vllm() else "transformers"


def _longest(recipe: Recipe) -> int:
    """Return the tokens of the longest prompt."""
    import numpy as np

    from windtunnel.data import PromptFile, prepare

    prepared = prepare(recipe)
    files = [file for file in (prepared.train, prepared.validation) if isinstance(file, PromptFile)]
    return max(int(np.diff(file.starts).max()) for file in files)


def _variety(context: Context) -> RewardSource:
    path = (context.folder / "variety.py").resolve()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(VARIETY, encoding="utf-8")
    return RewardSource(kind="function", function=f"{path}:variety", weight=0.05)


def stages(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Train a few steps of each stage by one command; the last begins with what the one before it made."""
    small = rehearsal.small_stages
    runs = train_stages(rehearsal, small, say)
    names = list(runs)
    rehearsal.before = runs[names[-2]]
    rehearsal.__dict__.pop("scale", None)  # it begins with that run from now on
    lengths = ", ".join(f"{name} {stage_recipe(small, name).budget.steps} steps" for name in names)
    return Evidence(f"{' then '.join(names)} by one command: {lengths}", {"stages": names})


def learning(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Look at the rounds: every answer judged, weights that moved, and a sampler that computes what the learner does."""
    assert rehearsal.run is not None
    run = rehearsal.run
    reward, norms, apart = (series(run, name) for name in ("reward", "gradient_norm", "mismatch_largest"))
    unknown, asked = series(run, "unknown"), series(run, "answers_reward")
    if unknown and max(unknown.values()) > 0:
        raise CheckFailed(f"of {max(unknown.values()):.0%} of a round's answers nothing is known: {_words(run, known=False)}")
    if not norms or not any(value > 0 and math.isfinite(value) for value in norms.values()):
        raise CheckFailed("no round changed the weights: every gradient is 0 or not a number")
    if max(apart.values()) > APART:
        raise CheckFailed(f"sampler and learner are {max(apart.values()):.2g} nats apart on a token; {APART:g} is allowed")
    stage = rehearsal.scale.rl
    assert stage is not None
    if stage.answers is not None and 0 not in asked:
        raise CheckFailed("the policy that the stage begins with was not asked the held-out prompts")
    steps = sorted(reward)
    text = (
        f"{len(steps)} rounds of {stage.prompts} prompts with {stage.samples} answers, each judged by {len(stage.sources) - 1} "
        f"of the recipe's judges: mean reward {reward[steps[0]]:.3f} to {reward[steps[-1]]:.3f}; sampler and learner at most "
        f"{max(apart.values()):.0e} nats apart; most often: {_words(run, known=True)}"
    )
    if asked:
        text += "; held-out reward " + ", ".join(f"{value:.3f} (step {step})" for step, value in sorted(asked.items()))
    return Evidence(text, {"rewards": list(reward.values()), "held_out": asked, "largest_mismatch": max(apart.values())})


def vllm(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Let vLLM answer two rounds: it takes the learner's weights, and samples as the learner computes.

    The recipe does not ask for it: what fails is told, and stops nothing.
    """
    small = rehearsal.scale
    stage = small.rl
    assert stage is not None
    stage = stage.model_copy(update={"engine": "vllm", "answers": None, "budget": Budget(steps=BEFORE_ROUNDS)})
    recipe = small.with_stages(rl=stage).model_copy(update={"budget": Budget(steps=BEFORE_ROUNDS)})
    did = f"{BEFORE_ROUNDS} rounds answered by vLLM {vllm_here()}"
    try:
        root = train_to_end(rehearsal, recipe, "vllm", say, of="rounds that vLLM answers")
    except CheckFailed as error:
        engine = rehearsal.recipe.rl.engine  # type: ignore[union-attr]
        return Evidence(f"vLLM {vllm_here()} did not answer", warnings=[f"{error}; the recipe itself uses engine: {engine}"])
    run = next(root.glob("*/manifest.json")).parent
    canary, apart = (max(series(run, name).values()) for name in ("canary", "mismatch_largest"))
    text = f"{did}: the canary by each version of the weights {canary:.0e} and sampled tokens at most {apart:.0e} nats apart"
    warnings = [] if apart <= APART else [f"sampler and learner are {apart:.2g} nats apart on a token; {APART:g} is allowed"]
    return Evidence(text, {"canary": canary, "largest_mismatch": apart}, warnings)


def vllm_here() -> str | None:
    """Return the version of vLLM that a rehearsal can use, or None."""
    from windtunnel.rl import has_vllm, known_vllm, vllm_version

    version = vllm_version() if has_vllm() else None
    return version if version and known_vllm(version) else None


def _could_use_vllm(context: Context) -> bool:
    """Return whether vLLM is there for a recipe that does not ask for it; on a GPU it may not have room beside the learner."""
    stage = context.recipe.rl
    return learns_policy(context) and stage is not None and stage.engine != "vllm" and not context.here.gpus and bool(vllm_here())


def _words(run: Path, *, known: bool) -> str:
    """Return what the first judge says of most answers."""
    counts: Counter[str] = Counter()
    for path in sorted((run / "rollouts").glob("round-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if (row["reward"] is not None) is known:
                # The first line alone: what follows differs from answer to answer.
                counts[str(row["why"]).splitlines()[0][:100] if row["why"] else "no words"] += 1
    most = counts.most_common(1)
    return f"'{most[0][0]}' ({most[0][1]} of {sum(counts.values())})" if most else "no answer"


BEFORE = (
    Stage(
        "stages", "one command trains all stages, the last from what the one before it made", "read stages.log in the "
        "rehearsal's folder", stages, shows="end", needs=("recipe", "rig", "torch", "disk", "data", "model"),
        applies=precedes_policy,
    ),
)  # fmt: skip
"""Before the others: the run that is killed begins with what it made."""
CHECKS = (
    Stage(
        "learning", "answers are judged, weights move, and the sampler computes what the learner does", "read rollouts/ in the "
        "run's folder, then the judges in the recipe", learning, shows="end", needs=("resume",), applies=learns_policy,
    ),
    Stage(
        "vllm", "vLLM, which is here, takes the learner's weights and samples as it computes", "read logs/engine-0-0.log in "
        "the folder of its run", vllm, shows="end", needs=("resume",), applies=_could_use_vllm,
    ),
)  # fmt: skip
