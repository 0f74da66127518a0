"""Scale models: the same recipe made small by rule, so that every code path runs with tiny numbers."""

from __future__ import annotations

from .schema import ArithmeticCorpus, BPETokenizer, GPTModel, Recipe, StdlibCorpus
from .units import Every

STEPS = 240
DEPTH, HEAD_DIM, HEADS = 3, 32, 3
MOST_HEADS = 4  # the width grows with them


def scale_model(recipe: Recipe, *, steps: int = STEPS) -> Recipe:
    """The recipe's scale model.

    Rules: depth 3 and heads of 32 channels (3 of them, 4 where grouped queries need them), sequence
    128, 32 sequences a step, the same kind of corpus and tokenizer but megabytes of it, checkpoints
    and validations every few steps, and a budget of steps. What is structural (kinds, value
    embeddings, windows, softcap, GQA ratio up to 4, precision) is left as it is. The user's own text
    stays what it is: a recipe has no size for it, whoever rehearses takes an excerpt.
    """
    heads, kv_heads = _heads(recipe.gpt)
    corpus = recipe.data.corpus
    if isinstance(corpus, ArithmeticCorpus):
        corpus = corpus.model_copy(update={"documents": 60_000, "digits": 2, "decimals": min(corpus.decimals, 1), "terms": 2})
    elif isinstance(corpus, StdlibCorpus):
        corpus = corpus.model_copy(update={"megabytes": min(corpus.megabytes, 2.0)})
    tokenizer = recipe.data.tokenizer
    if isinstance(tokenizer, BPETokenizer):
        tokenizer = tokenizer.model_copy(update={"vocab_size": min(tokenizer.vocab_size, 512)})
    pretrain = recipe.stages.pretrain
    small_pretrain = pretrain.model_copy(
        update={
            "batch_tokens": 32 * 128,
            "micro_batch": 16,
            "validate_every": Every(steps=max(1, steps // 6)),
            "validation_tokens": 65_536,
            "schedule": pretrain.schedule.model_copy(update={"warmup_steps": max(1, steps // 20)}),
        }
    )
    evaluate = recipe.stages.evaluate
    small_evaluate = evaluate.model_copy(
        update={
            "bits_per_byte_tokens": 65_536,
            "exact_match_problems": min(evaluate.exact_match_problems, 100),
            "samples": min(evaluate.samples, 2),
            "sample_tokens": 32,
        }
    )
    return recipe.model_copy(
        update={
            "model": recipe.gpt.model_copy(
                update={
                    "depth": DEPTH,
                    "aspect": heads * HEAD_DIM // DEPTH,
                    "head_dim": HEAD_DIM,
                    "kv_heads": kv_heads,
                    "sequence": 128,
                }
            ),
            "data": recipe.data.model_copy(update={"corpus": corpus, "tokenizer": tokenizer, "validation": 0.05}),
            "stages": recipe.stages.model_copy(update={"pretrain": small_pretrain, "evaluate": small_evaluate}),
            "budget": recipe.budget.model_copy(
                update={"dollars": None, "hours": None, "tokens": None, "epochs": None, "steps": steps}
            ),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": Every(steps=max(1, steps // 8))}),
        }
    )


def _heads(model: GPTModel) -> tuple[int, int | None]:
    """(heads, key/value heads) of the scale model: as many queries share a key as in the recipe, up to 4."""
    if model.kv_heads is None:
        return HEADS, None
    if model.depth == "auto":  # the number of heads is not known yet
        return HEADS, 1
    heads = -(-model.aspect * model.depth // model.head_dim)
    ratio = max(1, heads // model.kv_heads)
    if ratio == 1:
        return HEADS, HEADS
    return (4, 2) if ratio == 2 else (min(ratio, MOST_HEADS), 1)
