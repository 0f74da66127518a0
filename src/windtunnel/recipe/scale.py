"""Scale models: the same recipe made small by rule, so that every code path runs with tiny numbers."""

from __future__ import annotations

from .schema import ArithmeticCorpus, BPETokenizer, Recipe, StdlibCorpus
from .units import Every

STEPS = 240


def scale_model(recipe: Recipe, *, steps: int = STEPS) -> Recipe:
    """The recipe's scale model.

    Rules: depth 3 and heads of 32 channels (aspect 32), sequence 128, 32 sequences a step, the same
    kind of corpus and tokenizer but megabytes of it, checkpoints and validations every few steps,
    and a budget of steps. What is structural (kinds, value embeddings, windows, softcap, GQA
    ratio, precision) is left as it is.
    """
    model = recipe.model
    kv_heads = None if model.kv_heads is None else 1
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
            "model": model.model_copy(update={"depth": 3, "aspect": 32, "head_dim": 32, "kv_heads": kv_heads, "sequence": 128}),
            "data": recipe.data.model_copy(update={"corpus": corpus, "tokenizer": tokenizer, "validation": 0.05}),
            "stages": recipe.stages.model_copy(update={"pretrain": small_pretrain, "evaluate": small_evaluate}),
            "budget": recipe.budget.model_copy(
                update={"dollars": None, "hours": None, "tokens": None, "epochs": None, "steps": steps}
            ),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": Every(steps=max(1, steps // 8))}),
        }
    )
