"""Documents of a recipe's corpus to look at: all of a small one, of a large one some from every file or all over it."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.recipe import (
    ArithmeticCorpus,
    ConversationCorpus,
    CountedCorpus,
    MixtureCorpus,
    PromptCorpus,
    Recipe,
    SudokuCorpus,
    TextCorpus,
    UserError,
)

from .arithmetic import CHUNK, generate
from .conversations import ConversationReader
from .corpus import corpus_files, listed_files, read_documents
from .documents import DocumentBatch, batch_of

MOST_FILES = 5_000
GENERATED = 4


def sample_documents(recipe: Recipe, most_bytes: int) -> Iterator[DocumentBatch]:
    """Batches of documents as they stand in the files (none is cut) or are generated; about `most_bytes` at most.

    Of more text than that the beginnings of the files are read, an equal share of each; of generated
    documents four runs of 65,536 spread over the corpus.

    Raises:
        UserError: the corpus is only counted or has puzzles, or a file is missing, unreadable, binary or not UTF-8.
    """
    corpus = recipe.data.corpus
    if isinstance(corpus, CountedCorpus):
        raise UserError("data.corpus.kind: a counted corpus has no text to look at", "give text files")
    if isinstance(corpus, SudokuCorpus):
        raise UserError("data.corpus.kind: Sudoku has puzzles and no text to look at")
    if isinstance(corpus, ArithmeticCorpus):
        runs = min(GENERATED, -(-corpus.documents // CHUNK))
        for run in range(runs):
            first = corpus.documents * run // runs
            yield generate(corpus, recipe.seed, first, min(CHUNK, corpus.documents // runs))
        return
    if isinstance(corpus, MixtureCorpus):
        for source in corpus.sources:
            part = recipe.data.model_copy(update={"corpus": source.corpus})
            yield from sample_documents(recipe.model_copy(update={"data": part}), max(1, most_bytes // len(corpus.sources)))
        return
    if isinstance(corpus, ConversationCorpus):
        yield from _conversations(corpus, most_bytes)
        return
    if isinstance(corpus, PromptCorpus):
        raise UserError("data.corpus.kind: prompts are not documents", "look at them with windtunnel.data.PromptLoader")
    files = corpus_files(corpus)
    files = files[:: -(-len(files) // MOST_FILES)]
    share = max(1, most_bytes // len(files)) if sum(file.size for file in files) > most_bytes else most_bytes
    separator = corpus.separator if isinstance(corpus, TextCorpus) else None
    for file in files:
        taken = 0
        for batch in read_documents(file, separator):
            yield batch
            taken += len(batch.text)
            if taken >= share:
                break


def _conversations(corpus: ConversationCorpus, most_bytes: int) -> Iterator[DocumentBatch]:
    """What is said in the first conversations, one document each."""
    taken = 0
    said: list[bytes] = []
    for conversation in ConversationReader(corpus).read(listed_files(corpus.files)):
        text = "\n\n".join(message["content"] for message in conversation.messages)
        said.append(text.encode("utf-8", "replace"))
        taken += len(said[-1])
        if taken >= most_bytes:
            break
    if said:
        yield batch_of("data.corpus", said)
