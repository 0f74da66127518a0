"""Prepare conversations and prompts: read, render, tokenize and write both splits, a few batches at a time."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.recipe import BPETokenizer, ConversationCorpus, FolderTokenizer, Recipe, UserError

from .bpe import CHATML_END, CHATML_START, train_bpe
from .conversations import Conversation, ConversationReader
from .corpus import CorpusFile, corpora_of, listed_files
from .documents import Array
from .mixture import MixtureFile
from .packing import FIRST, LEARNED, ConversationFile
from .subwords import Subwords
from .survey import Survey, split_by_key
from .templates import ChatTemplate, choose_template
from .tokenizer import Tokenizer
from .write import NAMES, Progress, Split, SplitWriter, Written, folder_tokenizer, ordered_map, sampled_share

if TYPE_CHECKING:
    from .prepared import PreparedData

_AT_ONCE = 256  # conversations encoded together
# What a terminal would obey.
_CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
STORED = np.dtype(np.uint32)  # two bits of an id are flags: see `packing`


@dataclass(frozen=True)
class Stored:
    """Samples as they stand on disk.

    Attributes:
        tokens: (n,) uint32, ids with their flags, one sample behind the other. count: samples. bytes: of their texts.
        untaught: conversations left out, since there is nothing to learn in them.
    """

    tokens: Array
    count: int
    bytes: int
    untaught: int


def store(template: ChatTemplate, loss: str, conversations: Sequence[Conversation]) -> Stored:
    """Render and encode conversations. Raises UserError: the template refuses one."""
    ids, flags, lengths, begins = list[bytes](), list[np.uint32](), list[int](), list[int]()
    size = end = 0
    for conversation, runs in zip(conversations, template.encode_runs(conversations, loss), strict=True):
        # Nothing predicts the first token, so that it is not learned.
        if not any(flag and len(run) > (number == 0) * STORED.itemsize for number, (run, flag) in enumerate(runs)):
            continue
        begins.append(end)
        for run, flag in runs:
            ids.append(run)
            flags.append(LEARNED if flag else np.uint32(0))
            lengths.append(len(run) // STORED.itemsize)
            end += lengths[-1]
        size += _size(conversation)
    tokens = np.frombuffer(b"".join(ids), dtype=np.uint32) | np.repeat(np.array(flags, dtype=np.uint32), lengths)
    tokens[begins] |= FIRST
    return Stored(tokens, len(begins), size, len(conversations) - len(begins))


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

    `check_space` is told the bytes that are needed, and raises where the disk has no room; `tokenizer` was made before, or is the
    recipe's.

    Raises:
        UserError: a record is malformed, the template refuses it, or nothing is left to learn from.
    """
    reader = ConversationReader(corpus, recipe.seed)
    found = _survey(recipe, reader, files, report)
    if tokenizer is None:
        tokenizer = conversation_tokenizer(recipe, lambda: _texts(reader, files, found), found.bytes, report)
    template = choose_template(corpus.template, tokenizer, fallback="chatml")
    tokenizer.save(folder / "tokenizer.json")
    check_space(found.bytes * STORED.itemsize)  # a token stands for at least one byte, but for a few markers
    parted = ((NAMES[conversation.key < found.threshold], conversation) for conversation in reader.read(files))
    splits, left_out = _write(template, corpus.loss, parted, found.documents, folder, report)
    notes = [*reader.notes(), f"chat template: {template.described}; loss on {corpus.loss}", *found.notes]
    return Written(tokenizer, splits, Counter(), notes + left_out, reader.tasks.facts() if reader.tasks is not None else {})


def _write(
    template: ChatTemplate, loss: str, parted: Iterator[tuple[str, Conversation]], expected: int, folder: Path, report: Progress
) -> tuple[dict[str, Split], list[str]]:
    """Render and encode conversations, each with its split, and write them; return the splits, and notes on what was left out.

    Raises:
        UserError: the template refuses a conversation, or a split is empty.
    """
    untaught = done = 0

    def encode(batch: tuple[tuple[str, Conversation], ...]) -> list[tuple[str, Stored]]:
        by_split: dict[str, list[Conversation]] = {}
        for split, conversation in batch:
            by_split.setdefault(split, []).append(conversation)
        return [(split, store(template, loss, talks)) for split, talks in by_split.items()]

    with SplitWriter(folder, STORED) as written:
        for encoded in ordered_map(encode, batches(parted, _AT_ONCE)):
            for split, samples in encoded:
                written.add(split, samples.tokens, samples.count, samples.bytes)
                untaught += samples.untaught
                done += samples.count + samples.untaught
            report(0.3 + 0.69 * min(1.0, done / expected), f"tokenizing: {written.tokens / 1e6:,.1f} M tokens")
        if done and untaught == done:
            raise UserError(
                f"data.corpus: there is nothing to learn in any of {done:,} conversations: the chat template ({template.name}) "
                "marks no text as the assistant's, or the messages say train: false or weight: 0",
                "look at the template's {% generation %} blocks and at the records, or --set data.corpus.template=chatml",
            )
        splits = written.close()
    return splits, [f"{untaught:,} conversations have nothing to learn and were left out"] if untaught else []


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
    share = sampled_share(wanted, size, report)
    # Evenly over the corpus, since files are often sorted by source.
    chosen = (text for i, text in enumerate(texts()) if int(i * share) != int((i + 1) * share))
    return train_bpe(chosen, wanted.vocab_size, (CHATML_START, CHATML_END))


def shared_tokenizer(recipes: Sequence[Recipe], files: Sequence[Sequence[CorpusFile]], report: Progress) -> Tokenizer:
    """Return one tokenizer for several corpora of conversations, each in the recipe that has it alone."""
    read = []
    for recipe, listed in zip(recipes, files, strict=True):
        assert isinstance(recipe.data.corpus, ConversationCorpus)
        reader = ConversationReader(recipe.data.corpus, recipe.seed)
        read.append((reader, listed, _survey(recipe, reader, listed, report)))
    # One tokenizer learns from all, so its sample is a share of all.
    size = sum(found.bytes for _, _, found in read)
    return conversation_tokenizer(recipes[0], lambda: itertools.chain.from_iterable(_texts(*one) for one in read), size, report)


def read_conversations(recipe: Recipe) -> Iterator[Conversation]:
    """Yield the conversations of a recipe's corpus, of a mixture those of one source after the other.

    Raises:
        UserError: a file or record cannot be read, or the corpus is of another kind.
    """
    for corpus in corpora_of(recipe):
        if not isinstance(corpus, ConversationCorpus):
            raise UserError(f"data.corpus.kind: {corpus.kind} has no conversations", "--set data.corpus.kind=conversations")
        yield from ConversationReader(corpus, recipe.seed).read(listed_files(corpus.files) if corpus.files else [])


def _survey(recipe: Recipe, reader: ConversationReader, files: Sequence[CorpusFile], report: Progress) -> Survey:
    found, total = Survey(), sum(file.size for file in files)
    for conversation in reader.read(files):
        found.count(1, _size(conversation), key := conversation.key, key)
        if found.documents % 1000 == 0:
            report(0.2 * min(1.0, found.bytes / max(1, total)) if total else 0.0, "reading the corpus")
    if not found.documents:
        why = f"; {len(reader.dropped):,} records were left out, the first: {reader.dropped[0]}" if reader.dropped else ""
        raise UserError(f"data.corpus: no conversation in its files{why}", "give files with conversations in them")
    return split_by_key(found, recipe.data.validation, exactly=(reader.corpus.kernels or reader.corpus.exercises) is not None)


def _texts(reader: ConversationReader, files: Sequence[CorpusFile], found: Survey) -> Iterator[str]:
    """Yield what is said in the conversations trained on."""
    for conversation in reader.read(files):
        if conversation.key >= found.threshold:
            yield from (message["content"] for message in conversation.messages)


def _size(conversation: Conversation) -> int:
    texts = (message["content"] for message in conversation.messages)
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts)


def batches(items: Iterator[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Yield tuples of `size` items, the last perhaps shorter (itertools.batched is of Python 3.12)."""
    while batch := tuple(itertools.islice(items, size)):
        yield batch


@dataclass(frozen=True)
class Shown:
    """A sample to look at.

    Attributes:
        pieces: (text, whether it is learned).
        tokens, learned: of the whole sample. left: not shown of it.
        added: tokens of it that were added to the model's own.
    """

    number: int
    pieces: list[tuple[str, bool]]
    tokens: int
    learned: int
    left: int = 0
    added: int = 0


def conversation_files(prepared: PreparedData) -> list[ConversationFile]:
    """Return the training split's files of conversations, one of each source of a mixture; none where the data are others."""
    parts = prepared.train.parts if isinstance(prepared.train, MixtureFile) else (prepared.train,)
    return [part for part in parts if isinstance(part, ConversationFile)]


def describe_packing(prepared: PreparedData, sequence: int) -> list[str]:
    """Say of each source how many conversations were packed, how full, and what is wrong with them. Raises UserError."""
    described = []
    for file in conversation_files(prepared):
        text, endless = file.packing(sequence).describe(), describe_endless(file, prepared.tokenizer)
        described.append(f"{text}; {endless}" if endless else text)
    return described


def describe_endless(file: ConversationFile, tokenizer: Tokenizer) -> str:
    """Say how many of the first 1,000 answers do not end with a token that ends a text; '' where all do."""
    ends = {tokenizer.eos}
    if isinstance(tokenizer, Subwords):
        ends |= {token for text in tokenizer.special_texts() if (token := tokenizer.token(text)) is not None}
    turns = [file.last_turn(number)[1] for number in range(min(file.samples, 1000))]
    endless = sum(not len(turn) or int(turn[-1]) not in ends for turn in turns)
    what = f"{endless:,} of {len(turns):,} answers do not end with a token that is learned and ends a text"
    return f"{what}: the model would not stop" if endless else ""


def shown_samples(prepared: PreparedData, samples: int, most_tokens: int) -> list[Shown]:
    """Return decoded samples spread over the training split, at most so many tokens of each.

    Raises:
        UserError: the data are not conversations.
    """
    files = conversation_files(prepared)
    if not files:
        raise UserError("data.corpus.kind: only conversations have a mask to look at", "windtunnel check RECIPE shows the rest")
    made = []
    for number in range(samples):
        file, turn = files[number % len(files)], number // len(files)
        if turn * len(files) >= samples or turn >= file.samples:
            continue
        # Spread over the split, whose beginning may be all of one source.
        ids, learned = file.sample(turn * file.samples // -(-samples // len(files)))
        pieces = [(_shown(prepared.tokenizer, run), flag) for run, flag in _runs(ids[:most_tokens], learned[:most_tokens])]
        new = int(np.isin(ids, prepared.tokenizer.new_ids).sum())
        made.append(Shown(number + 1, pieces, len(ids), int(learned[1:].sum()), max(0, len(ids) - most_tokens), new))
    return made


def preview(prepared: PreparedData, samples: int = 2, *, colour: bool = True, width: int = 100, most_tokens: int = 600) -> str:
    """Return the first samples of the training split decoded, with what is learned set apart, to look at before training.

    In colour it is green and bold, else it stands between ⟦ and ⟧. Samples longer than `most_tokens` are cut.

    Raises:
        UserError: the data are not conversations.
    """
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, force_terminal=colour, color_system="standard" if colour else None, width=width, highlight=False)
    for sample in shown_samples(prepared, samples, most_tokens):
        text = Text()
        for piece, flag in sample.pieces:
            piece = piece.translate(_CONTROLS)
            text.append(piece if colour or not flag else f"⟦{piece}⟧", style="bold green" if flag else "dim")
        added = f", {sample.added:,} of them added to the model's own" if sample.added else ""
        console.print(f"sample {sample.number}: {sample.tokens:,} tokens, {sample.learned:,} learned{added}", style="bold")
        console.print(text)
        if sample.left:
            console.print(f"... {sample.left:,} tokens more")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


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
