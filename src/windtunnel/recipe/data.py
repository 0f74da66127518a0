"""The data section of a recipe: corpora, tokenizers, and how they are split. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, WrapValidator, model_validator
from pydantic_core import InitErrorDetails

from .section import Section
from .units import Count

ARITHMETIC_ALPHABET = "0123456789+-HBL.\n"

_FILES = "paths or globs, relative to the recipe's folder or the current one; gzip and zstd are read as they are"


class TextCorpus(Section):
    """The user's own documents: plain text, JSON lines or Parquet."""

    kind: Literal["text"] = "text"
    files: list[str] = Field(min_length=1, description=_FILES)
    separator: str | None = Field(
        None, min_length=1, description="splits a plain text file into documents; null: a file is one document"
    )
    format: Literal["auto", "text", "jsonl", "parquet"] = Field(
        "auto", description="what the files are; auto: by their names and first bytes"
    )
    text_key: str = Field("text", min_length=1, description="the key or column that holds a document's text")


class ArithmeticCorpus(Section):
    """Generated sums over the 17 characters 0-9 + - H B L . newline: 'H12+34B46L\\n'."""

    kind: Literal["arithmetic"] = "arithmetic"
    documents: Count = Field(200_000, ge=10)
    digits: int = Field(3, ge=1, le=9, description="most digits before the decimal point")
    decimals: int = Field(0, ge=0, le=6, description="most digits after the decimal point")
    terms: int = Field(2, ge=2, le=6, description="most numbers in one sum")


class StdlibCorpus(Section):
    """Python's own standard library: real text that every machine has."""

    kind: Literal["stdlib"] = "stdlib"
    megabytes: float = Field(20.0, gt=0, description="stop after this much text")


class SudokuCorpus(Section):
    """Generated Sudoku puzzles, each with one solution; for models that are not causal (model.causal=false)."""

    kind: Literal["sudoku"] = "sudoku"
    box: Literal[2, 3] = Field(3, description="3: 9x9 grids, 2: 4x4 grids")
    puzzles: Count = Field(20_000, ge=10, description="puzzles generated; symmetries of each are drawn anew every epoch")
    grade: Literal["easy", "medium", "hard"] = Field(
        "hard", description="easy: single candidates do; medium: single places too; hard: only with guessing"
    )


class CountedCorpus(Section):
    """Data known only by its size, to plan before it is there."""

    kind: Literal["counted"] = "counted"
    tokens: Count = Field(50_000_000, ge=1)


class UserCorpus(Section):
    """A corpus that a package of the user's offers: derive from it, give `kind` its name, add keys, and yield documents.

    The class is found through the entry point group `windtunnel.corpora` (see docs/add-a-recipe.md).
    """

    kind: str

    def documents(self) -> Iterator[str]:
        """Yield the documents, the same ones in the same order every time."""
        raise NotImplementedError

    def expected_bytes(self) -> float | None:
        """Return about how many bytes the documents have, for `windtunnel plan`; None: not known before they are made."""
        return None


class ConversationCorpus(Section):
    """Conversations to fine-tune on: JSON lines, Parquet, or a folder that Hugging Face datasets saved.

    A record holds `messages` ({role, content}), `prompt` and `completion`, ShareGPT's `conversations` ({from, value}),
    or Alpaca's `instruction`, `input` and `output`.
    """

    kind: Literal["conversations"] = "conversations"
    files: list[str] = Field(min_length=1, description=f"{_FILES}; a folder saved by Hugging Face datasets too")
    format: Literal["auto", "messages", "completion", "sharegpt", "alpaca"] = Field(
        "auto", description="what a record holds; auto: by the keys of the first one"
    )
    template: Literal["auto", "model", "chatml", "alpaca", "plain"] = Field(
        "auto", description="the chat template; model: the tokenizer's own; auto: that one, or chatml where it has none"
    )
    system: str | None = Field(None, min_length=1, description="system message of conversations that have none")
    loss: Literal["answers", "last", "all"] = Field(
        "answers",
        description="what is learned: the assistant's turns, the last of them, or every token; a message's own "
        "'train' (true, false) or 'weight' (0, 1) comes first",
    )
    overlong: Literal["drop", "truncate", "refuse"] = Field(
        "drop", description="conversations longer than model.sequence: left out, cut at their end, or an error; always counted"
    )
    malformed: Literal["refuse", "drop"] = Field(
        "refuse", description="records that cannot be read as a conversation: an error, or left out and counted"
    )


class PromptCorpus(Section):
    """Prompts with answers for reinforcement learning: JSON lines, Parquet, saved datasets, or generated sums."""

    kind: Literal["prompts"] = "prompts"
    files: list[str] = Field(default_factory=list, description=f"{_FILES}; a folder saved by Hugging Face datasets too")
    arithmetic: ArithmeticCorpus | None = Field(None, description="generated sums instead of files")
    prompt_key: str | None = Field(
        None, min_length=1, description="key of the prompt: text, or messages; null: prompt, messages, question or problem"
    )
    answer_key: str | None = Field(
        None, min_length=1, description="key of the right answer; null: answer, truth, ground_truth, solution or target, if there"
    )
    template: Literal["auto", "model", "chatml", "alpaca", "plain"] = Field(
        "auto", description="the chat template; plain: the prompt as it stands; auto: the tokenizer's own, or plain without one"
    )
    system: str | None = Field(None, min_length=1, description="system message of prompts that have none")
    prompt_tokens: Count | None = Field(None, ge=1, description="longer prompts are left out and counted; null: none is")

    @model_validator(mode="after")
    def _one_source(self) -> PromptCorpus:
        if bool(self.files) == (self.arithmetic is not None):
            raise ValueError("data.corpus: prompts come either from files or from arithmetic; give one of them")
        return self


class Source(Section):
    """One corpus of a mixture and its weight."""

    corpus: Annotated[TextCorpus | ArithmeticCorpus | StdlibCorpus | ConversationCorpus, Field(discriminator="kind")]
    weight: float = Field(1.0, gt=0, description="share of the sequences trained on, relative to the other weights")
    name: str | None = Field(None, min_length=1, description="name in reports; null: the kind and its number")


class MixtureCorpus(Section):
    """Several corpora, visited in turn by weight; all of documents, or all of conversations."""

    kind: Literal["mixture"] = "mixture"
    sources: list[Source] = Field(min_length=1)

    @model_validator(mode="after")
    def _alike(self) -> MixtureCorpus:
        kinds = {isinstance(source.corpus, ConversationCorpus) for source in self.sources}
        if len(kinds) > 1:
            raise ValueError("data.corpus.sources: documents and conversations cannot be mixed; give sources of one sort")
        overlong = {source.corpus.overlong for source in self.sources if isinstance(source.corpus, ConversationCorpus)}
        if len(overlong) > 1:
            raise ValueError("data.corpus.sources: overlong differs between sources; give all the same")
        names = [source.name for source in self.sources if source.name is not None]
        if len(names) != len(set(names)):
            raise ValueError("data.corpus.sources: two have the same name; names must differ")
        return self


class CharacterTokenizer(Section):
    """One token per character of a fixed alphabet."""

    kind: Literal["character"] = "character"
    alphabet: str | Literal["auto"] = Field("auto", min_length=1, description="the characters; 'auto': those of the corpus")
    unknown: Literal["error", "skip"] = Field(
        "error", description="what a character outside the alphabet does; skipped ones are counted"
    )


class BPETokenizer(Section):
    """Byte-level BPE trained on the corpus with Hugging Face tokenizers."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: int = Field(8192, ge=257)


class FolderTokenizer(Section):
    """A Hugging Face tokenizer in a folder, such as a model's own."""

    kind: Literal["folder"] = "folder"
    path: str | None = Field(None, min_length=1, description="the folder with tokenizer.json; null: the one model.config names")


_BuiltIn = Annotated[
    TextCorpus
    | ArithmeticCorpus
    | StdlibCorpus
    | SudokuCorpus
    | CountedCorpus
    | ConversationCorpus
    | PromptCorpus
    | MixtureCorpus,
    Field(discriminator="kind"),
]


def corpus_class(kind: str) -> type[UserCorpus] | None:
    """Return the class of a kind of corpus that an installed package offers, or None.

    Raises:
        UserError: the package's entry point is broken.
    """
    from .registry import find_plugin

    plugin = find_plugin("corpora", kind)
    if plugin is None:
        return None
    found = plugin.load()
    if not isinstance(found, type) or not issubclass(found, UserCorpus):
        raise plugin.broken("is no class derived from windtunnel.recipe.UserCorpus")
    return found


def _registered(value: object, built_in: Any) -> object:
    """Validate a corpus: a built-in kind as pydantic does, another one by the class that a package offers for it."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(value, UserCorpus):
        return value
    if not isinstance(kind, str):
        return built_in(value)
    try:
        return built_in(value)
    except ValidationError as error:
        unknown = any(item["type"] == "union_tag_invalid" for item in error.errors())
        offered = corpus_class(kind) if unknown else None
        if offered is None:
            raise
    try:
        return offered.model_validate(value)
    except ValidationError as error:
        lines = [_line(item, kind) for item in error.errors()]
        raise ValidationError.from_exception_data(error.title, lines) from None


def _line(item: Any, kind: str) -> InitErrorDetails:
    """Return an error of a user's corpus as pydantic gives one of a discriminated union: with the kind in its place."""
    return InitErrorDetails(type=item["type"], loc=(kind, *item["loc"]), input=item["input"], ctx=item.get("ctx", {}))


if TYPE_CHECKING:
    Corpus = _BuiltIn | UserCorpus
else:  # a user's corpus is no arm of the union: pydantic would blame it for every mistake in another kind
    Corpus = Annotated[SerializeAsAny[_BuiltIn], WrapValidator(_registered)]


class Data(Section):
    """Where the tokens come from and how they are split."""

    corpus: Corpus
    tokenizer: Annotated[CharacterTokenizer | BPETokenizer | FolderTokenizer, Field(discriminator="kind")] = CharacterTokenizer()
    validation: float = Field(0.01, gt=0, lt=0.5, description="share of documents held out, chosen by a hash of their text")

    @property
    def files(self) -> list[str]:
        """Every file pattern that the corpus names."""
        corpora = [s.corpus for s in self.corpus.sources] if isinstance(self.corpus, MixtureCorpus) else [self.corpus]
        return [name for corpus in corpora for name in getattr(corpus, "files", [])]
