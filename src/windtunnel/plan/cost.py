"""How long a run is and what it costs: tokens of the data, limits of the budget, startup, disk.

Whichever limit of the budget comes first ends the run; what the budget or the disk has against a plan is said here too.
"""

from __future__ import annotations

import glob
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import (
    ArithmeticCorpus,
    BPETokenizer,
    Budget,
    CharacterTokenizer,
    Checkpoints,
    ConversationCorpus,
    CountedCorpus,
    Every,
    FolderTokenizer,
    KernelTasks,
    MixtureCorpus,
    PromptCorpus,
    Recipe,
    StdlibCorpus,
    SudokuCorpus,
    TextCorpus,
    ThesisCorpus,
    UserCorpus,
    find_model,
    find_plugin,
)
from windtunnel.rig import Rig

from .text import gib_text, hours_text
from .types import Alternative

# English text and code: about four bytes a token with vocabularies of thousands.
BYTES_PER_BPE_TOKEN = 3.5
ASKED_SUM_TOKENS = 50  # counted with the template of SmolLM2; each number more is about 5
ASKED_KERNEL_BYTES, KERNEL_TASK_BYTES = 660, 2_000
EXERCISE_BYTES, ANSWERED_EXERCISE_BYTES = 140, 220
THESIS_TOKENS = 400


def vocabulary(recipe: Recipe) -> tuple[int, str]:
    """Return (tokens of the vocabulary with BOS, where that came from), as far as the recipe tells."""
    tokenizer, corpus = recipe.data.tokenizer, recipe.data.corpus
    if isinstance(corpus, SudokuCorpus):
        return corpus.box**2 + 1, "digits and blank"
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.vocab_size, "data.tokenizer.vocab_size"
    if isinstance(tokenizer, FolderTokenizer):
        return _folder_vocabulary(recipe, tokenizer)
    assert isinstance(tokenizer, CharacterTokenizer)
    if tokenizer.alphabet != "auto":
        return len(set(tokenizer.alphabet)) + 1, "characters of data.tokenizer.alphabet and BOS"
    if isinstance(recipe.data.corpus, ArithmeticCorpus):
        return 18, "17 characters of sums and BOS"
    return 128, "assumed until the corpus has been read"


def _folder_vocabulary(recipe: Recipe, tokenizer: FolderTokenizer) -> tuple[int, str]:
    """Count the ids of a tokenizer in a folder; of one that is not there yet, say what most models of today have."""
    file = _tokenizer_file(recipe, tokenizer)
    new, ids = new_tokens(recipe)
    added = f" and {new} added" if new else ""
    if ids is None:
        return 151_936 + new, f"assumed until there is a tokenizer in {file.parent}{added}"
    return ids, f"{file}{added}"


def new_tokens(recipe: Recipe) -> tuple[int, int | None]:
    """Return (tokens that data.tokenizer.add adds, ids with them); of a tokenizer that is not here all are new, the ids None."""
    tokenizer = recipe.data.tokenizer
    if not isinstance(tokenizer, FolderTokenizer):
        return 0, None
    try:
        content = json.loads(_tokenizer_file(recipe, tokenizer).read_text(encoding="utf-8"))
        words = content["model"]["vocab"]
        pairs = words.items() if isinstance(words, dict) else ((word[0], i) for i, word in enumerate(words))
        ids = dict(pairs) | {entry["content"]: entry["id"] for entry in content["added_tokens"]}
        new = len(set(tokenizer.add) - ids.keys())
        return new, max(ids.values()) + 1 + new
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return len(tokenizer.add), None


def _tokenizer_file(recipe: Recipe, tokenizer: FolderTokenizer) -> Path:
    named = str(tokenizer.path or getattr(recipe.model, "config", ""))
    return (find_model(named) or Path(named)) / "tokenizer.json"


def estimate_corpus_tokens(recipe: Recipe) -> tuple[float | None, str]:
    """Return (training tokens of one epoch, where that came from); None where the files are not there."""
    corpus, share = recipe.data.corpus, 1.0 - recipe.data.validation
    if isinstance(corpus, CountedCorpus):
        return float(corpus.tokens), "data.corpus.tokens"
    if isinstance(corpus, MixtureCorpus):
        parts = [_of_source(recipe, source.corpus) for source in corpus.sources]
        known = [tokens for tokens, _ in parts if tokens is not None]
        return sum(known) if len(known) == len(parts) else None, "; ".join(what for _, what in parts)
    if isinstance(corpus, ArithmeticCorpus | SudokuCorpus):
        tokens, what = _generated_tokens(corpus)
        return share * tokens, what
    if isinstance(corpus, ConversationCorpus | ThesisCorpus | PromptCorpus) and not corpus.files:
        return _talk_tokens(corpus, share)
    size, what = _text_bytes(corpus)
    if size is None:
        return None, what
    per_token = 1.0 if isinstance(recipe.data.tokenizer, CharacterTokenizer) else BYTES_PER_BPE_TOKEN
    return share * size / per_token, f"{what} at about {per_token:g} bytes a token"


def _talk_tokens(corpus: ConversationCorpus | ThesisCorpus | PromptCorpus, share: float) -> tuple[float, str]:
    """Return about how many tokens generated conversations have, with a chat template, or generated prompts."""
    if isinstance(corpus, ThesisCorpus):
        assert corpus.generated is not None
        records = corpus.generated.records
        return float(records * THESIS_TOKENS), f"{records:,} theses of about {THESIS_TOKENS} tokens, held-out ones included"
    if corpus.kernels is not None:
        return _kernel_tokens(corpus, corpus.kernels, share)
    if corpus.exercises is not None:
        size, what = (
            (EXERCISE_BYTES, "prompts") if isinstance(corpus, PromptCorpus) else (ANSWERED_EXERCISE_BYTES, "conversations")
        )
        tokens = share * corpus.exercises.count * size / BYTES_PER_BPE_TOKEN
        return tokens, f"{corpus.exercises.count:,} {what} of about {size} bytes"
    assert corpus.arithmetic is not None
    if isinstance(corpus, PromptCorpus):
        tokens, what = _generated_tokens(corpus.arithmetic)
        return share * tokens, what
    count = round(share * corpus.arithmetic.documents)
    return float(count * ASKED_SUM_TOKENS), f"{count:,} questions of about {ASKED_SUM_TOKENS} tokens with a chat template"


def _kernel_tokens(corpus: ConversationCorpus | PromptCorpus, asked: KernelTasks, share: float) -> tuple[float, str]:
    """Return about how many tokens generated kernel tasks have: prompts alone, or with their answers."""
    size, what = (ASKED_KERNEL_BYTES, "prompts") if isinstance(corpus, PromptCorpus) else (KERNEL_TASK_BYTES, "conversations")
    return share * asked.tasks * size / BYTES_PER_BPE_TOKEN, f"{asked.tasks:,} {what} of about {size:,} bytes"


def _generated_tokens(corpus: ArithmeticCorpus | SudokuCorpus) -> tuple[float, str]:
    if isinstance(corpus, SudokuCorpus):
        cells = corpus.box**4
        return float(corpus.puzzles * cells), f"{corpus.puzzles:,} puzzles of {cells} cells"
    number = (corpus.digits + 1) / 2 + (1 + corpus.decimals / 2 if corpus.decimals else 0)
    terms = (2 + corpus.terms) / 2
    # BOS H number (sign number)... B answer L newline; the answer is about a digit longer than its terms.
    length = 5 + terms * (number + 1) - 1 + number + 1
    return corpus.documents * length, f"{corpus.documents:,} sums of about {length:.0f} tokens"


def _text_bytes(
    corpus: TextCorpus | StdlibCorpus | ConversationCorpus | ThesisCorpus | PromptCorpus | UserCorpus,
) -> tuple[float | None, str]:
    if isinstance(corpus, StdlibCorpus):
        return corpus.megabytes * 1e6, f"{corpus.megabytes:g} MB of the standard library"
    if isinstance(corpus, UserCorpus):
        expected = _expected_bytes(corpus)
        if expected is None:
            return None, f"corpus {corpus.kind} tells its size only when it is made"
        return expected, f"{expected / 1e6:,.1f} MB that corpus {corpus.kind} expects"
    paths = {path for pattern in corpus.files for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)}
    size = float(sum(os.path.getsize(path) * _growth(path) for path in paths))
    if not paths or size == 0:
        return None, "no file found yet"
    return size, f"{size / 1e6:,.1f} MB in {len(paths)} files"


def _of_source(recipe: Recipe, corpus: Any) -> tuple[float | None, str]:
    part = recipe.data.model_copy(update={"corpus": corpus})
    return estimate_corpus_tokens(recipe.model_copy(update={"data": part}))


def _growth(path: str) -> float:
    """Say how many bytes of text a byte of the file stands for, roughly: compressed text is a quarter as long."""
    return 4.0 if path.endswith((".gz", ".zst", ".zstd")) else 2.5 if path.endswith(".parquet") else 1.0


def _expected_bytes(corpus: UserCorpus) -> float | None:
    """Return what a package says of its corpus. Raises UserError where its code fails."""
    try:
        return corpus.expected_bytes()
    except Exception as error:
        plugin = find_plugin("corpora", corpus.kind)
        if plugin is None:
            raise
        raise plugin.failed("expected_bytes fails", error) from None


# Repeating data up to 4 times costs almost nothing, the value is gone by about 16 (Muennighoff et al. 2023).
EPOCHS_WARN = 4.0
EPOCHS_ASK = 16.0


@dataclass(frozen=True)
class Pace:
    """Wall time of a run: what happens once, and seconds a step with its share of validation."""

    startup_seconds: float
    step_seconds: float

    def hours(self, steps: int) -> float:
        """Hours of a run of so many steps."""
        return (self.startup_seconds + steps * self.step_seconds) / 3600

    def steps(self, hours: float) -> int:
        """Whole steps within so many hours; 0 where not one fits."""
        return max(0, int((hours * 3600 - self.startup_seconds) / self.step_seconds * (1 + 1e-9)))


@dataclass(frozen=True)
class Length:
    """A run's length, the limit that ends it, and in a sentence what that leaves of the other limits."""

    steps: int
    tokens: float
    hours: float
    dollars: float | None
    epochs: float | None
    ended_by: str
    ends: str


def budget_hours(budget: Budget, rig: Rig) -> tuple[float | None, str]:
    """Return (hours that money and time allow, which of them); None where neither limits."""
    return min(time_limits(budget, rig), default=(None, ""))


def time_limits(budget: Budget, rig: Rig) -> list[tuple[float, str]]:
    """Return (hours, key of the budget) of each limit in time or money. Dollars are none where an hour costs nothing."""
    limits = [(budget.hours, "budget.hours")] if budget.hours is not None else []
    if budget.dollars is not None and rig.dollars_per_hour:
        limits.append((budget.dollars / rig.dollars_per_hour, "budget.dollars"))
    return limits


def budget_notes(budget: Budget, rig: Rig, batch_tokens: int, corpus_tokens: float | None) -> list[str]:
    """Say which limits of the budget do not limit the run on this rig, or cannot be kept to."""
    notes = []
    if budget.dollars is not None and rig.dollars_per_hour == 0:
        notes.append(f"budget.dollars does not limit the run: {rig.name} costs nothing ({rig.price_note})")
    elif budget.dollars is not None and rig.dollars_per_hour is None:
        notes.append(f"budget.dollars cannot limit the run: {rig.price_note or 'no price known'}")
    tokens, name = budget_tokens(budget, batch_tokens, corpus_tokens)
    if tokens is not None and tokens < batch_tokens:
        notes.append(f"{name} is {tokens:,.0f} tokens, less than the {batch_tokens:,} of one step: one step is done")
    return notes


def budget_tokens(budget: Budget, batch_tokens: int, corpus_tokens: float | None) -> tuple[float | None, str]:
    """Return (tokens that the budget's tokens, steps or epochs allow, which of them); None where none limits."""
    return min(token_limits(budget, batch_tokens, corpus_tokens), default=(None, ""))


def token_limits(budget: Budget, batch_tokens: int, corpus_tokens: float | None) -> list[tuple[float, str]]:
    """Return (tokens, key of the budget) of each limit in tokens, steps or epochs."""
    limits = [(float(budget.tokens), "budget.tokens")] if budget.tokens is not None else []
    if budget.steps is not None:
        limits.append((float(budget.steps) * batch_tokens, "budget.steps"))
    if budget.epochs is not None and corpus_tokens:
        limits.append((budget.epochs * corpus_tokens, "budget.epochs"))
    return limits


def run_length(
    recipe: Recipe,
    rig: Rig,
    batch_tokens: int,
    derived_tokens: float,
    speed: Pace,
    corpus: float | None,
    derived_by: str = "stages.pretrain.tokens_per_parameter",
) -> Length:
    """Count steps until the first limit of the budget, else the derived tokens, which `derived_by` names."""
    limits = [(speed.steps(hours), key) for hours, key in time_limits(recipe.budget, rig)]
    limits += [(round_steps(tokens, batch_tokens), key) for tokens, key in token_limits(recipe.budget, batch_tokens, corpus)]
    if not limits:
        limits.append((round_steps(derived_tokens, batch_tokens), derived_by))
    steps, ended_by = min(limits)
    total = speed.hours(steps)
    dollars = None if rig.dollars_per_hour is None else total * rig.dollars_per_hour
    trained = float(steps * batch_tokens)
    ends = _ends(recipe.budget, limits, speed, derived_by)
    return Length(steps, trained, total, dollars, trained / corpus if corpus else None, ended_by, ends)


def _ends(budget: Budget, limits: list[tuple[int, str]], speed: Pace, derived_by: str) -> str:
    """Say which limit ends a run, and how long the others would let it go on."""
    (steps, first), *others = sorted(limits)
    if first == derived_by:
        return f"after the {steps:,} steps that {derived_by} asks for: the budget names no limit that counts here"
    later = [limit_text(budget, key) + _allows(key, speed.hours(most)) for most, key in others]
    return f"at {limit_text(budget, first)}" + (f", before {', '.join(later)}" if later else "")


def _allows(key: str, hours: float) -> str:
    return "" if key == "budget.hours" else f", which would last {hours_text(hours)}"


def limit_text(budget: Budget, key: str) -> str:
    """Write a limit with its value: 'budget.dollars ($40.00)'."""
    value = getattr(budget, key.removeprefix("budget."))
    text = {"budget.dollars": f"${value:,.2f}", "budget.hours": hours_text(value)}.get(key, f"{value:,}")
    return f"{key} ({text})"


def round_steps(tokens: float, batch_tokens: int) -> int:
    """Whole steps within a number of tokens, at least one."""
    return max(1, int(tokens / batch_tokens * (1 + 1e-9)))


def steps_between(every: Every, step: float) -> float:
    """Return the steps of so many seconds that lie between two of something."""
    return every.steps or max(1.0, (every.seconds or 0.0) / max(step, 1e-9))


def held_out_tokens(recipe: Recipe, asked: float, corpus: float | None) -> float:
    """Return the tokens of a validation: those asked for, or all that are held out beside a corpus of so many for training."""
    share = recipe.data.validation
    return asked if corpus is None else min(asked, corpus * share / (1 - share))


def money_and_disk(budget: Budget, rig: Rig, speed: Pace, length: Length, disk: float) -> tuple[list[str], list[Alternative]]:
    """Return the reasons against a plan that lie in its budget or its disk, and what would help."""
    reasons: list[str] = []
    price = rig.dollars_per_hour or 0.0
    options: list[Alternative] = []
    if length.steps < 1:
        least = speed.hours(1)
        cost = f", ${least * price:,.2f}" if price else ""
        reasons.append(f"{length.ended_by} ends before the first step: starting up and one step take {hours_text(least)}{cost}")
        # Every limit that is too small is raised: with only one of them raised the next plan would name the other.
        raised = [
            f"--set {name}=" + (_dollars(10 * least * price) if name == "budget.dollars" else f"{float(f'{10 * least:.2g}'):g}")
            for hours, name in time_limits(budget, rig)
            if speed.steps(hours) < 1
        ]
        options.append(Alternative(" ".join(raised), "room for steps beyond starting up"))
    if rig.disk_free_gib is not None and disk > rig.disk_free_gib:
        free = f"{gib_text(rig.disk_free_gib)} are free; make room, or name a folder on another disk with --root"
        reasons.append(f"the run needs {gib_text(disk)} of disk at its peak, {free}")
        fewer = "--set checkpoints.keep_hourly=false --set checkpoints.keep_best=1"
        options.append(Alternative(fewer, "keeps fewer checkpoints"))
    return reasons, options


def _dollars(amount: float) -> str:
    """Write an amount in dollars and cents, a cent at least."""
    return f"{max(0.01, amount):.2f}"


def over_fed(epochs: float | None) -> bool:
    """Whether the data are repeated more often than does good."""
    return epochs is not None and epochs > EPOCHS_WARN


def epoch_warnings(epochs: float | None) -> list[str]:
    """Say what to think of repeating the data so often."""
    if epochs is None or not over_fed(epochs):
        return []
    repeated = f"{epochs:.1f} epochs over the data: past {EPOCHS_WARN:.0f} repeated data is worth less and less"
    beyond = f"; past {EPOCHS_ASK:.0f} it is worth almost nothing, confirm with --yes" if epochs > EPOCHS_ASK else ""
    return [f"{repeated}{beyond} (Muennighoff et al. 2023)"]


def disk_gib(
    checkpoint: float, kept: float, policy: Checkpoints, length: Length, tokens: float | None, token_bytes: int, base: float = 0.0
) -> float:
    """Return the most GiB of disk that a run holds at once.

    Only the newest checkpoint keeps optimizer states, but the one before keeps its own until the newest is complete; then
    keep_last, keep_best and one an hour as weights, and never more than are saved: steps may take hours each.

    checkpoint: GiB of a whole checkpoint. kept: GiB of one that keeps only weights. tokens: of the data as prepared. base: GiB of
    what is there beside, such as the model as it was downloaded.
    """
    every = policy.every
    saved = math.ceil(length.steps / every.steps if every.steps else 3600 * length.hours / (every.seconds or 3600.0))
    hourly = min(int(length.hours), saved) if policy.keep_hourly else 0
    # The newest is whole; of what a policy learns from, its first weights may be kept as the best.
    count = min(policy.keep_last - 1 + policy.keep_best + hourly, saved)
    return base + 2 * checkpoint + count * kept + token_bytes * (tokens or 0.0) / 2**30
