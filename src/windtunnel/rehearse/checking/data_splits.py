"""What is held out is held out: no validation document in training, neither whole nor in large parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .context import Context
from .types import Check, Evidence, Findings, Say

if TYPE_CHECKING:
    from windtunnel.data import PreparedData

MOST_TRAIN, MOST_HELD_OUT = 32_000_000, 4_000_000
SAME, COPIED, MOSTLY_COPIED = 0.01, 0.02, 0.2


def _tokenized(context: Context) -> bool:
    return context.has_text and context.is_gpt


def _data(context: Context) -> PreparedData:
    """All of the user's text where the check of the data read it whole, else the scale model's."""
    from windtunnel.data import prepare

    return prepare(context.recipe) if context.facts["data"].get("whole") else context.prepared


def splits(context: Context, say: Say) -> Evidence:
    """Compare the splits by hashes of documents and of windows of about 64 bytes."""
    from .data_windows import overlap

    prepared, found = _data(context), Findings()
    say("comparing the splits")
    train, held = prepared.train.array[:MOST_TRAIN], prepared.validation.array[:MOST_HELD_OUT]
    seen = overlap(train, held, prepared.tokenizer.bos, prepared.bytes_per_token)

    def example(index: int) -> str:
        first, last = seen.examples[index]
        return repr(prepared.tokenizer.decode(held[first : min(last, first + 80)])[:60])

    if seen.same:
        what = f"{seen.same:,} of {seen.documents:,} held-out documents are in training too, such as {example(0)}"
        if seen.same > SAME * seen.documents:
            found.problem(what, "remove repetitions; with data.tokenizer.unknown=skip texts may become the same", shows="end")
        else:
            found.warn(f"{what}: remove repetitions")
    if seen.copied > COPIED * seen.judged:
        share = seen.copied / seen.judged
        what = f"{share:.0%} of {seen.judged:,} held-out documents are near copies of training documents, such as {example(-1)}"
        if share > MOSTLY_COPIED:
            found.problem(what, "remove near copies before training: the validation loss would not show overfitting", shows="end")
        else:
            found.warn(f"{what}: remove near copies, the validation loss will look too good")
    text = f"{seen.documents:,} held-out documents, none of them in training"
    if seen.judged:
        text += f"; {seen.copied:,} of {seen.judged:,} long enough to tell are near copies"
    facts = {"held_out": seen.documents, "same": seen.same, "judged": seen.judged, "near_copies": seen.copied}
    return found.evidence(text, facts, blocks=False)


CHECKS = (
    Check(
        "data-splits", "no held-out document is in training, neither whole nor nearly", "look at data.corpus for repetitions",
        splits, shows="end", needs=("recipe", "data"), applies=_tokenized, limit=120.0,
    ),
)  # fmt: skip
