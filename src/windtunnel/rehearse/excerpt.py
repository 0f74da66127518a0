"""Excerpts: what a scale model reads in the place of a corpus whose files are large."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import ConversationCorpus, PromptCorpus, Recipe, TextCorpus, ThesisCorpus, UserCorpus, UserError

if TYPE_CHECKING:
    from windtunnel.data import CorpusFile, PreparedData

EXCERPT_BYTES = 2_000_000
MOST_FILES, LEAST_DOCUMENT = 50, 4096
"""Files of a corpus that an excerpt is taken from, and the bytes to which no document is cut."""


def excerpted(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with an excerpt of its corpus, written into the folder, where its files are large. Raises UserError."""
    from windtunnel.data import corpus_files, listed_files, prepare, prompt_records, read_conversations

    corpus = recipe.data.corpus
    own_text = isinstance(corpus, TextCorpus | UserCorpus)
    listed = getattr(corpus, "files", ())
    if not own_text and not listed:
        return recipe  # made, or downloaded: nothing large lies here
    files = corpus_files(corpus) if own_text else listed_files(listed)  # type: ignore[arg-type]
    if sum(file.size for file in files) <= EXCERPT_BYTES:
        return recipe
    # By kind: a job's stages may have conversations and then prompts, each with an excerpt of its own.
    path = (folder / f"excerpt-{corpus.kind}.jsonl").resolve()
    changed: Any
    if isinstance(corpus, ThesisCorpus):
        write_lines(thesis_records(prepare(recipe), EXCERPT_BYTES), path)
        changed = corpus.model_copy(update={"files": [str(path)]})
    elif isinstance(corpus, PromptCorpus):
        write_lines(prompt_records(corpus), path, EXCERPT_BYTES)
        changed = corpus.model_copy(update={"files": [str(path)]})
    elif isinstance(corpus, ConversationCorpus):
        talks = read_conversations(recipe)
        write_lines(
            ({"messages": talk.messages, **({} if talk.tools is None else {"tools": talk.tools})} for talk in talks),
            path,
            EXCERPT_BYTES,
        )
        changed = corpus.model_copy(update={"files": [str(path)], "format": "messages"})
    else:
        write_lines(_beginnings(files, getattr(corpus, "separator", None), EXCERPT_BYTES), path)
        changed = TextCorpus(files=[str(path)], format="jsonl")
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"corpus": changed})})


def write_lines(records: Iterable[dict[str, Any]], path: Path, size: float = float("inf")) -> None:
    """Write records as JSON lines, the first of them, about `size` bytes in all.

    Raises:
        UserError: a file cannot be read, or the excerpt not be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as lines:
            for record in records:
                size -= lines.write(json.dumps(record, default=str) + "\n")
                if size <= 0:
                    break
    except OSError as error:
        raise UserError(f"excerpt of the corpus: {error.filename}: {error.strerror or error}") from None


def thesis_records(prepared: PreparedData, size: int) -> Iterator[dict[str, Any]]:
    """Yield about `size` bytes of prepared theses, of every split as many and spread over its period."""
    # Not the first ones: a split by time would have none of its later periods.
    for split, count in prepared.facts["kept"].items():
        bytes_each = (prepared.folder / f"{split}.jsonl").stat().st_size / count
        wanted = max(1, round(size / len(prepared.facts["kept"]) / bytes_each))
        for thesis in itertools.islice(prepared.theses(split), 0, None, -(-count // wanted)):
            yield thesis.to_record()


def _beginnings(files: Sequence[CorpusFile], separator: str | None, size: int) -> Iterator[dict[str, Any]]:
    """Yield the beginnings of the files, an equal share of each and about `size` bytes in all."""
    from windtunnel.data import read_documents

    chosen = files[:: -(-len(files) // MOST_FILES)]
    share = max(1, size // len(chosen))
    for file in chosen:
        left = share
        batches = read_documents(file, separator, longest=max(share, LEAST_DOCUMENT))
        for text in (batch.document(i) for batch in batches for i in range(len(batch))):
            kept = text.encode()[:left].decode("utf-8", "ignore")
            yield {"text": kept}
            left -= len(kept.encode())
            if left <= 0 or not kept:
                break
