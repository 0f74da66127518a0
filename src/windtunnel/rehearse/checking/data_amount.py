"""Whether there is enough: tokens for a step and an epoch, and held-out tokens for a validation loss that means something."""

from __future__ import annotations

from typing import Any

from windtunnel.recipe import ArithmeticCorpus, StdlibCorpus, UserError

from .context import Context
from .types import Check, Evidence, Findings, Say

NOISY_TOKENS, USELESS_TOKENS = 20_000, 1_000
"""The standard error of a mean over n tokens, about 1 / sqrt(n) nats: 0.007 and 0.03."""
LOPSIDED = 5.0


def _tokenized(context: Context) -> bool:
    return context.has_text and context.is_gpt


def amount(context: Context, say: Say) -> Evidence:
    """Tokens of both splits against sequence, step and run."""
    found = Findings()
    train, held_out, how = _tokens(context)
    sequence, share = context.recipe.gpt.sequence, context.recipe.data.validation
    if train < sequence:
        found.problem(
            f"the training split has {train:,} tokens, one sequence takes {sequence:,}",
            "give more text or shorten model.sequence",
        )
    if held_out < max(USELESS_TOKENS, min(sequence, NOISY_TOKENS)):
        what = f"the validation split has {held_out:,} tokens: its loss would be chance"
        found.problem(what, "raise data.validation or give more text", shows="first validation")
    elif held_out < NOISY_TOKENS:
        found.warn(
            f"the validation split has {held_out:,} tokens, its loss will vary by {held_out**-0.5:.1%}: raise data.validation"
        )
    if context.facts["data"].get("whole") and max(held_out / train / share, share * train / max(held_out, 1)) > LOPSIDED:
        found.warn(f"{held_out / (train + held_out):.2%} of the text is held out, not {share:.2%}: split the few long documents")
    text = f"{train / 1e6:,.2f} M tokens to train on, {held_out:,} held out ({how})"
    facts: dict[str, Any] = {"train_tokens": train, "validation_tokens": held_out, "epochs": None}
    try:
        plan = context.plan()
    except UserError:
        return found.evidence(text, facts)  # the check of the plan says why there is none
    step = plan.layout.batch_tokens
    if step > train:
        found.problem(
            f"one step takes {step:,} tokens, the whole training split has {train:,}: every step would repeat it",
            "give more text or lower stages.pretrain.batch_tokens", shows="first steps",
        )  # fmt: skip
    else:
        text += f"; an epoch is {train / step:,.0f} steps of {step:,} tokens"
    facts["epochs"] = plan.epochs
    return found.evidence(text, facts)


def _tokens(context: Context) -> tuple[int, int, str]:
    """(training tokens, held-out tokens, how they are known)."""
    facts, recipe = context.facts["data"], context.recipe
    if whole := facts.get("whole"):
        return whole["train_tokens"], whole["validation_tokens"], "counted"
    seen, per_token = facts["profile"], facts["scale"]["bytes_per_token"]
    corpus = recipe.data.corpus
    if isinstance(corpus, ArithmeticCorpus):
        total = corpus.documents * (seen["bytes"] / seen["documents"] + 1)
    elif isinstance(corpus, StdlibCorpus):
        total = min(corpus.megabytes * 1e6, seen["bytes"]) / per_token
    else:
        total = context.facts["data-files"]["bytes"] / per_token
    return round(total * (1 - recipe.data.validation)), round(total * recipe.data.validation), "estimated from a sample"


CHECKS = (
    Check(
        "data-amount", "there are tokens enough for a step, and held-out ones for a validation loss", "give more text", amount,
        shows="first validation", needs=("recipe", "rig", "data"), applies=_tokenized, apart=False,
    ),
)  # fmt: skip
