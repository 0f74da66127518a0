"""How many tokens a recipe trains on, before any data is prepared."""

from __future__ import annotations

import glob
import os

from windtunnel.recipe import (
    ArithmeticCorpus,
    BPETokenizer,
    CharacterTokenizer,
    CountedCorpus,
    Recipe,
    StdlibCorpus,
    SudokuCorpus,
    UserCorpus,
    find_plugin,
)

# English text and code: about four bytes a token with vocabularies of thousands.
BYTES_PER_BPE_TOKEN = 3.5


def vocabulary(recipe: Recipe) -> tuple[int, str]:
    """(tokens of the vocabulary with BOS, where that came from), as far as the recipe tells."""
    tokenizer, corpus = recipe.data.tokenizer, recipe.data.corpus
    if isinstance(corpus, SudokuCorpus):
        return corpus.box**2 + 1, "digits and blank"
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.vocab_size, "data.tokenizer.vocab_size"
    assert isinstance(tokenizer, CharacterTokenizer)
    if tokenizer.alphabet != "auto":
        return len(set(tokenizer.alphabet)) + 1, "characters of data.tokenizer.alphabet and BOS"
    if isinstance(recipe.data.corpus, ArithmeticCorpus):
        return 18, "17 characters of sums and BOS"
    return 128, "assumed until the corpus has been read"


def estimate_corpus_tokens(recipe: Recipe) -> tuple[float | None, str]:
    """(training tokens of one epoch, where that came from); None where the files are not there."""
    corpus, share = recipe.data.corpus, 1.0 - recipe.data.validation
    if isinstance(corpus, ArithmeticCorpus):
        number = (corpus.digits + 1) / 2 + (1 + corpus.decimals / 2 if corpus.decimals else 0)
        terms = (2 + corpus.terms) / 2
        # BOS H number (sign number)... B answer L newline; the answer is about a digit longer than its terms.
        length = 5 + terms * (number + 1) - 1 + number + 1
        return share * corpus.documents * length, f"{corpus.documents:,} sums of about {length:.0f} tokens"
    if isinstance(corpus, StdlibCorpus):
        size = corpus.megabytes * 1e6
        what = f"{corpus.megabytes:g} MB of the standard library"
    elif isinstance(corpus, SudokuCorpus):
        cells = corpus.box**4
        return share * corpus.puzzles * cells, f"{corpus.puzzles:,} puzzles of {cells} cells"
    elif isinstance(corpus, UserCorpus):
        expected = _expected_bytes(corpus)
        if expected is None:
            return None, f"corpus {corpus.kind} tells its size only when it is made"
        size, what = expected, f"{expected / 1e6:,.1f} MB that corpus {corpus.kind} expects"
    elif isinstance(corpus, CountedCorpus):
        return float(corpus.tokens), "data.corpus.tokens"
    else:
        paths = {path for pattern in corpus.files for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)}
        size = float(sum(os.path.getsize(path) for path in paths))
        what = f"{size / 1e6:,.1f} MB in {len(paths)} files"
        if not paths or size == 0:
            return None, "no file found yet"
    per_token = BYTES_PER_BPE_TOKEN if isinstance(recipe.data.tokenizer, BPETokenizer) else 1.0
    return share * size / per_token, f"{what} at about {per_token:g} bytes a token"


def _expected_bytes(corpus: UserCorpus) -> float | None:
    """What a package says of its corpus. Raises UserError where its code fails."""
    try:
        return corpus.expected_bytes()
    except Exception as error:
        plugin = find_plugin("corpora", corpus.kind)
        if plugin is None:
            raise
        raise plugin.failed("expected_bytes fails", error) from None
