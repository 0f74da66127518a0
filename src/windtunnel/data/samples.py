"""Prepare conversations and prompts: read, render, tokenize and write both splits, a few batches at a time."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.recipe import BPETokenizer, ConversationCorpus, FolderTokenizer, Recipe, UserError

from .conversations import Conversation, ConversationReader
from .corpus import CorpusFile
from .documents import Array
from .packing import ConversationFile, pack_ids
from .subwords import CHATML_END, CHATML_START, Subwords, train_bpe
from .survey import Survey, split_by_key
from .templates import ChatTemplate, Encoded, choose_template
from .tokenizer import Tokenizer
from .tokens import TokenWriter
from .write import BPE_TRAINING_BYTES, NAMES, Progress, Split, Written, folder_tokenizer, ordered_map

if TYPE_CHECKING:
    from .prepared import PreparedData

_AT_ONCE = 256
STORED = np.dtype(np.uint32)


class SampleWriter:
    """Writes samples into the token files of both splits, and counts them."""

    def __init__(self, folder: Path) -> None:
        self._writers = [TokenWriter(folder / f"{name}.bin", STORED) for name in NAMES]
        self._documents, self._bytes = [0, 0], [0, 0]

    def add(self, held_out: bool, stored: Array, size: int) -> None:
        """Append one sample as `pack_ids` made it; size: bytes of its text."""
        self._writers[held_out].append(stored)
        self._documents[held_out] += 1
        self._bytes[held_out] += size

    @property
    def tokens(self) -> int:
        """Tokens written so far."""
        return sum(writer.count for writer in self._writers)

    def close(self) -> dict[str, Split]:
        """Flush both files. Raises UserError if one of them is empty."""
        splits = {}
        for i, (name, writer) in enumerate(zip(NAMES, self._writers, strict=True)):
            if not self._documents[i]:
                raise UserError(f"data.corpus: the {name} split is empty", "raise data.validation, or add records")
            writer.close()
            splits[name] = Split(writer.count, self._documents[i], self._bytes[i], str(STORED), writer.checksum)
        return splits

    def abandon(self) -> None:
        """Close without caring whether the rest can be written."""
        for writer in self._writers:
            writer.abandon()


def write_conversations(
    recipe: Recipe,
    corpus: ConversationCorpus,
    files: Sequence[CorpusFile],
    folder: Path,
    check_space: Callable[[int], None],
    report: Progress,
    tokenizer: Tokenizer | None = None,
) -> Written:
    """Write train.bin, validation.bin and tokenizer.json of a corpus of conversations into the folder.

    Args:
        tokenizer: one made before; None: the recipe's.

    Raises:
        UserError: a record is malformed, the template refuses it, or nothing is left to learn from.
    """
    reader = ConversationReader(corpus)
    found = _survey(recipe, reader, files, report)
    if tokenizer is None:
        tokenizer = conversation_tokenizer(recipe, lambda: _texts(reader, files, found), found.bytes, report)
    template = choose_template(corpus.template, tokenizer, fallback="chatml")
    tokenizer.save(folder / "tokenizer.json")
    check_space(found.bytes * STORED.itemsize)  # a token stands for at least one byte, but for a few markers
    untaught = 0
    written = SampleWriter(folder)
    try:
        done = 0
        for batch, encoded in ordered_map(_encoder(template, corpus.loss), batches(reader.read(files), _AT_ONCE)):
            for conversation, sample in zip(batch, encoded, strict=True):
                if not sample.learned[1:].any():
                    untaught += 1
                    continue
                written.add(conversation.key < found.threshold, pack_ids(sample.ids, sample.learned), _size(conversation))
            done += len(batch)
            report(0.3 + 0.69 * done / found.documents, f"tokenizing: {written.tokens / 1e6:,.1f} M tokens")
        splits = written.close()
    finally:
        written.abandon()
    notes = [*reader.notes(), f"chat template: {_named(template)}; loss on {corpus.loss}", *found.notes]
    if untaught:
        notes.append(f"{untaught:,} conversations have nothing to learn and were left out")
    return Written(tokenizer, splits, Counter(), notes)


def conversation_tokenizer(recipe: Recipe, texts: Callable[[], Iterator[str]], size: int, report: Progress) -> Tokenizer:
    """Return the tokenizer of conversations: a folder's, or BPE trained on what is said, with ChatML's markers.

    Raises:
        UserError: another kind, which has no markers for turns; or the folder's cannot be read.
    """
    wanted = recipe.data.tokenizer
    if isinstance(wanted, FolderTokenizer):
        return folder_tokenizer(recipe)
    if not isinstance(wanted, BPETokenizer):
        raise UserError(
            f"data.tokenizer.kind: {wanted.kind} has no tokens that mark turns, which conversations need",
            "--set data.tokenizer.kind=folder (a model's own), or bpe",
        )
    report(0.2, "training the tokenizer")
    share = min(1.0, BPE_TRAINING_BYTES / max(1, size))
    chosen = (text for i, text in enumerate(texts()) if int(i * share) != int((i + 1) * share))
    return train_bpe(chosen, wanted.vocab_size, (CHATML_START, CHATML_END))


def shared_tokenizer(recipes: Sequence[Recipe], files: Sequence[Sequence[CorpusFile]], report: Progress) -> Tokenizer:
    """Return one tokenizer for several corpora of conversations, each in the recipe that has it alone."""
    read = []
    for recipe, listed in zip(recipes, files, strict=True):
        assert isinstance(recipe.data.corpus, ConversationCorpus)
        reader = ConversationReader(recipe.data.corpus)
        read.append((reader, listed, _survey(recipe, reader, listed, report)))
    size = sum(found.bytes for _, _, found in read)
    return conversation_tokenizer(recipes[0], lambda: itertools.chain.from_iterable(_texts(*one) for one in read), size, report)


def _survey(recipe: Recipe, reader: ConversationReader, files: Sequence[CorpusFile], report: Progress) -> Survey:
    found, total = Survey(), sum(file.size for file in files)
    for conversation in reader.read(files):
        key = conversation.key
        found.documents += 1
        found.bytes += _size(conversation)
        found.lowest_key, found.highest_key = min(found.lowest_key, key), max(found.highest_key, key)
        if found.documents % 1000 == 0:
            report(0.2 * min(1.0, found.bytes / max(1, total)), "reading the corpus")
    if not found.documents:
        raise UserError("data.corpus: no conversation in its files", "give files with conversations in them")
    return split_by_key(found, recipe.data.validation)


def _texts(reader: ConversationReader, files: Sequence[CorpusFile], found: Survey) -> Iterator[str]:
    """What is said in the conversations trained on."""
    for conversation in reader.read(files):
        if conversation.key >= found.threshold:
            yield from (message["content"] for message in conversation.messages)


def _size(conversation: Conversation) -> int:
    return sum(len(message["content"].encode("utf-8", "replace")) for message in conversation.messages)


def _encoder(
    template: ChatTemplate, loss: str
) -> Callable[[tuple[Conversation, ...]], tuple[tuple[Conversation, ...], list[Encoded]]]:
    def encode(batch: tuple[Conversation, ...]) -> tuple[tuple[Conversation, ...], list[Encoded]]:
        return batch, template.encode(batch, loss)

    return encode


def _named(template: ChatTemplate) -> str:
    return "the tokenizer's own" if template.name == "model" else template.name


def batches(items: Iterator[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Yield tuples of `size` items, the last perhaps shorter (itertools.batched is of Python 3.12)."""
    while batch := tuple(itertools.islice(items, size)):
        yield batch


def preview(prepared: PreparedData, samples: int = 2, *, colour: bool = True, width: int = 100, most_tokens: int = 600) -> str:
    """Return decoded samples of the training split, with what is learned set apart, to look at before training.

    Args:
        colour: learned text is green and bold, the rest dim; False: learned text stands between ⟦ and ⟧.
        width: columns. most_tokens: of each sample; longer ones are cut.

    Raises:
        UserError: the data are not conversations.
    """
    from rich.console import Console
    from rich.text import Text

    file = prepared.train
    if not isinstance(file, ConversationFile):
        raise UserError("data.corpus.kind: only conversations have a mask to look at", "windtunnel check RECIPE shows the rest")
    out = io.StringIO()
    console = Console(file=out, force_terminal=colour, color_system="standard" if colour else None, width=width, highlight=False)
    for number in range(min(samples, file.samples)):
        ids, learned = file.sample(number)
        text = Text()
        for run, flag in _runs(ids[:most_tokens], learned[:most_tokens]):
            shown = _shown(prepared.tokenizer, run)
            text.append(shown if colour or not flag else f"⟦{shown}⟧", style="bold green" if flag else "dim")
        console.print(f"sample {number + 1}: {len(ids):,} tokens, {int(learned[1:].sum()):,} learned", style="bold")
        console.print(text)
        if len(ids) > most_tokens:
            console.print(f"... {len(ids) - most_tokens:,} tokens more")
    return out.getvalue()


def _runs(ids: Array, learned: Array) -> Iterator[tuple[list[int], bool]]:
    for flag, group in itertools.groupby(zip(ids.tolist(), learned.tolist(), strict=True), key=lambda pair: pair[1]):
        yield [token for token, _ in group], bool(flag)


def _shown(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Text of ids, special tokens included."""
    special = set(tokenizer.special_texts()) if isinstance(tokenizer, Subwords) else set()
    parts = []
    for token in ids:
        name = tokenizer.text_of(token) if isinstance(tokenizer, Subwords) else ""
        parts.append(name.encode() if name in special else tokenizer.piece(token))
    return b"".join(parts).decode("utf-8", "replace")
