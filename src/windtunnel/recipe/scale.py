"""Scale models: the same recipe made small by rule, so that every code path runs with tiny numbers."""

from __future__ import annotations

from typing import Any

from .corpora import ArithmeticCorpus, StdlibCorpus, SudokuCorpus
from .data import BPETokenizer
from .models import GPTModel
from .overlay import flatten
from .recursion import Recursion
from .schema import Notify, Recipe
from .section import Every
from .stage_base import Budget, Gates, TrainingStage
from .staged import stage_recipe
from .stages import Evaluate, Pretrain

# Enough saves and validations to compare around a kill, and still minutes on a CPU.
STEPS, RECURSIVE_STEPS = 240, 48
DEPTH, RECURSIVE_DEPTH, HEAD_DIM, HEADS = 3, 2, 32, 3
MOST_HEADS = 4  # the width grows with them
SEQUENCE, RECURSIVE_SEQUENCE = 128, 64
SEQUENCES, RECURSIVE_SEQUENCES = 32, 16
LOOPS, CYCLES, SUPERVISION = 2, 2, 3
# Presets have the rates of models many times as wide and runs many times as long: with them a scale model would not learn.
RECURSIVE_RATES = {"matrix_lr": 0.005, "embedding_lr": 0.05}
STAGE_STEPS = 24
NO_GATES: dict[str, Any] = {
    "order": False, "refinement": None, "gradient_norm": None, "decreasing": False, "utilisation": None,
}  # fmt: skip
# What a stage changes and a scale model leaves as it is; the rest is of sizes and lengths.
STRUCTURAL = ("trm.preset", "trm.weight_base", "trm.improvement_reward", "trm.detach_from", "trm.updates", "trm.ema")


def scale_model(recipe: Recipe, *, steps: int | None = None) -> Recipe:
    """Return the recipe's scale model; of a recipe with several stages that train, the last one's.

    Rules: depth 3 and heads of 32 channels (3 of them, 4 where grouped queries need them), sequence
    128, 32 sequences a step, the same kind of corpus and tokenizer but megabytes of it, checkpoints
    and validations every few steps, and a budget of steps. What is structural (kinds, value
    embeddings, windows, softcap, GQA ratio up to 4, precision) is left as it is. The user's own text
    stays what it is: a recipe has no size for it, whoever rehearses takes an excerpt.

    A recursive model has depth 2, sequence 64 and 16 sequences a step, at most 2 loops, 2 cycles and 3
    supervision steps, and rates of its own; scheme, weights and detaching stay. Sudoku becomes 4x4.

    Args:
        recipe: at full size, of any number of stages.
        steps: of the run; None: 240, of a recursive model 48.
    """
    if recipe.staged:
        recipe = stage_recipe(recipe, recipe.training[-1].name)
    if steps is None:
        steps = STEPS if recipe.trm is None else RECURSIVE_STEPS
    tokenizer = recipe.data.tokenizer
    if isinstance(tokenizer, BPETokenizer):
        tokenizer = tokenizer.model_copy(update={"vocab_size": min(tokenizer.vocab_size, 512)})
    evaluate = recipe.evaluation
    small_evaluate = evaluate.model_copy(
        update={
            "name": "evaluate",
            "gates": None,
            "bits_per_byte_tokens": 65_536 if recipe.trm is None else 8_192,
            "exact_match_problems": min(evaluate.exact_match_problems, 100),
            "samples": min(evaluate.samples, 2),
            "sample_tokens": 32,
        }
    )
    data = recipe.data.model_copy(update={"corpus": _corpus(recipe), "tokenizer": tokenizer, "validation": 0.05})
    model = _model(recipe, data.corpus)
    pretrain = _pretrain(recipe, model.sequence, steps)
    return recipe.model_copy(
        update={
            "stage": None,
            "model": model,
            "trm": _recursion(recipe.trm),
            "data": data,
            "stages": {"pretrain": pretrain, "evaluate": small_evaluate},
            "budget": recipe.budget.model_copy(
                update={"dollars": None, "hours": None, "tokens": None, "epochs": None, "steps": steps}
            ),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": Every(steps=max(1, steps // 8)), "mirror": None}),
            "notify": Notify(),
        }
    )


def scale_stages(recipe: Recipe, *, steps: int = STAGE_STEPS) -> Recipe:
    """Return the scale model with all stages that train, `steps` each; a toy's numbers mean nothing, so no gate asks for any."""
    small = scale_model(recipe, steps=steps)
    base = small.pretrain
    stages: dict[str, Any] = {}
    for stage in recipe.training:
        kept: dict[str, Any] = {key: value for key, value in flatten(stage.set).items() if key in STRUCTURAL}
        trm = stage_recipe(recipe, stage.name).trm
        if trm is not None:
            kept["trm.detach_from"] = _detach_from(trm)
        shared = {"name": stage.name, "description": stage.description, "init_from": stage.init_from, "set": kept}
        gates = None if stage.gates is None else Gates(**NO_GATES)
        stages[stage.name] = base.model_copy(update=shared | {"gates": gates})
    return small.model_copy(update={"stages": {**stages, "evaluate": small.evaluation}})


def smoke_recipe(recipe: Recipe, count: int) -> Recipe:
    """Return the recipe at its full size for a few steps: so many of each stage that trains, and as many answers judged.

    Its data, model and batch stay what they are; it is saved twice and validated once. No gate asks for anything: numbers of a
    few steps mean nothing. It has a name of its own, so that its runs are not taken for the recipe's.
    """
    steps = Budget(steps=count)
    stages: dict[str, Any] = {}
    for name, stage in recipe.stages.items():
        changed: dict[str, Any] = {}
        if isinstance(stage, TrainingStage):
            changed = {"budget": steps, "share": None}
            changed |= {} if stage.gates is None else {"gates": Gates(**NO_GATES)}
            answers = getattr(stage, "answers", None)
            if hasattr(stage, "validate_every"):
                changed |= {"validate_every": Every(steps=count)}
            if answers is not None:
                changed["answers"] = answers.model_copy(
                    update={"prompts": min(answers.prompts, count), "every": answers.every and Every(steps=count)}
                )
        elif isinstance(stage, Evaluate):
            fewer = {"exact_match_problems": min(stage.exact_match_problems, count), "samples": min(stage.samples, 1)}
            changed = {"gates": None, **fewer}
        stages[name] = stage.model_copy(update=changed)
    if not any(isinstance(stage, Evaluate) for stage in stages.values()):
        stages["evaluate"] = Evaluate(name="evaluate", exact_match_problems=count, samples=1)
    length = {"tokens": None, "epochs": None, "steps": None if recipe.staged else count}
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-smoke{count}",
            "stages": stages,
            "budget": recipe.budget.model_copy(update=length),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": Every(steps=max(1, count // 2)), "mirror": None}),
            "notify": Notify(),
        }
    )


def _corpus(recipe: Recipe) -> Any:
    corpus = recipe.data.corpus
    if isinstance(corpus, ArithmeticCorpus):
        return corpus.model_copy(update={"documents": 60_000, "digits": 2, "decimals": min(corpus.decimals, 1), "terms": 2})
    if isinstance(corpus, StdlibCorpus):
        return corpus.model_copy(update={"megabytes": min(corpus.megabytes, 2.0)})
    if isinstance(corpus, SudokuCorpus):
        return corpus.model_copy(update={"box": 2, "puzzles": min(corpus.puzzles, 600), "grade": "easy"})
    return corpus


def _model(recipe: Recipe, corpus: Any) -> GPTModel:
    heads, kv_heads = _heads(recipe.gpt)
    plain = recipe.trm is None
    depth, sequence = (DEPTH, SEQUENCE) if plain else (RECURSIVE_DEPTH, RECURSIVE_SEQUENCE)
    if isinstance(corpus, SudokuCorpus):
        sequence = corpus.box**4
    size = {"depth": depth, "aspect": heads * HEAD_DIM // depth, "head_dim": HEAD_DIM, "kv_heads": kv_heads, "sequence": sequence}
    return recipe.gpt.model_copy(update=size)


def _pretrain(recipe: Recipe, sequence: int, steps: int) -> Pretrain:
    pretrain, plain = recipe.pretrain, recipe.trm is None
    sequences = SEQUENCES if plain else RECURSIVE_SEQUENCES
    rates = {} if plain else RECURSIVE_RATES
    return pretrain.model_copy(
        update={
            "name": "pretrain",
            "gates": None,
            "set": {},
            "budget": Budget(),
            "share": None,
            "init_from": None,
            "overridden": {},
            "batch_tokens": sequences * sequence,
            "micro_batch": sequences // 2,
            "validate_every": Every(steps=max(1, steps // 6)),
            "validation_tokens": 65_536 if plain else 4_096,
            "optimizer": pretrain.optimizer.model_copy(update=rates),
            "schedule": pretrain.schedule.model_copy(update={"warmup_steps": max(1, steps // 20)}),
        }
    )


def _recursion(trm: Recursion | None) -> Recursion | None:
    if trm is None:
        return None
    given = trm.inference_supervision
    return trm.model_copy(
        update={
            "loops": min(trm.loops, LOOPS),
            "cycles": min(trm.cycles, CYCLES),
            "supervision": min(trm.supervision, SUPERVISION),
            "detach_from": _detach_from(trm),
            "inference_supervision": None if given is None else min(given, SUPERVISION + 1),
        }
    )


def _detach_from(trm: Recursion) -> int | None:
    """Return `detach_from` for fewer supervision steps: gradients still end before the last one where they do in the recipe."""
    # Where gradients end is structural: a recipe that detaches before its last step must do so as a toy too.
    whole, small = trm.resolved.detach_from, min(trm.supervision, SUPERVISION)
    return min(whole, max(0, small - 2)) if whole < trm.supervision - 1 else trm.detach_from


def _heads(model: GPTModel) -> tuple[int, int | None]:
    """Return (heads, key/value heads) of the scale model: as many queries share a key as in the recipe, up to 4."""
    if model.kv_heads is None:
        return HEADS, None
    if model.depth == "auto":  # the number of heads is not known yet
        return HEADS, 1
    # Rounded up, as `model.rules` derives the width.
    heads = -(-model.aspect * model.depth // model.head_dim)
    ratio = max(1, heads // model.kv_heads)
    if ratio == 1:
        return HEADS, HEADS
    return (4, 2) if ratio == 2 else (min(ratio, MOST_HEADS), 1)
