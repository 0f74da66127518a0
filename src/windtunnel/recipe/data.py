"""The data section of a recipe: a corpus or a mixture of them, a tokenizer, and the split. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, WrapValidator, model_validator
from pydantic_core import InitErrorDetails

from .corpora import (
    ArithmeticCorpus,
    ConversationCorpus,
    CountedCorpus,
    PromptCorpus,
    StdlibCorpus,
    SudokuCorpus,
    TextCorpus,
    UserCorpus,
)
from .section import Section
from .theses import HELD_OUT, ThesisCorpus, TimeSplit, split_problem


class Source(Section):
    """One corpus of a mixture and its weight."""

    # No mixture in a mixture, no puzzles or prompts: those are batched in other ways.
    corpus: Annotated[TextCorpus | ArithmeticCorpus | StdlibCorpus | ConversationCorpus, Field(discriminator="kind")]
    weight: float = Field(1.0, gt=0, description="share of the sequences trained on, relative to the other weights")
    name: str | None = Field(None, min_length=1, description="name in reports; null: the kind and its number")


class MixtureCorpus(Section):
    """Several corpora, visited in turn by weight; all of documents, or all of conversations."""

    kind: Literal["mixture"] = "mixture"
    sources: list[Source] = Field(min_length=1)

    @model_validator(mode="after")
    def _alike(self) -> MixtureCorpus:
        # One way of packing and one mask for all of the data: those of documents and of conversations differ.
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
    vocab_size: int = Field(8192, ge=257, description="bytes, merges and BOS")
    sample_megabytes: float = Field(
        32.0, gt=0, description="text that the merges are learned from, chosen by a hash; a corpus of less is taken whole"
    )


class FolderTokenizer(Section):
    """A Hugging Face tokenizer in a folder, such as a model's own."""

    kind: Literal["folder"] = "folder"
    path: str | None = Field(None, min_length=1, description="the folder with tokenizer.json; null: the one model.config names")
    add: list[str] = Field(
        default_factory=list,
        description="texts that become one token each, such as '<action>'; what already is a token keeps its id",
    )
    begin: Literal["pieces", "mean"] = Field(
        "pieces",
        description="what the rows of added tokens begin as: the mean of the rows of the pieces that the text was cut into, or "
        "of all rows",
    )

    @model_validator(mode="after")
    def _addable(self) -> FolderTokenizer:
        for text in self.add:
            if not text.strip():
                raise ValueError("data.tokenizer.add: a token is empty or blank; leave it out")
            # Tokenizers attach blanks to the word after; such a token would hardly ever be found in text.
            if text != text.strip():
                what = f"data.tokenizer.add: {text!r} begins or ends with a blank, which texts mostly lack there"
                raise ValueError(f"{what}; give {text.strip()!r}")
            if not text.isprintable():
                raise ValueError(f"data.tokenizer.add: {text!r} has a character that cannot be printed; leave that out")
        twice = sorted({text for text in self.add if self.add.count(text) > 1})
        if twice:
            raise ValueError(f"data.tokenizer.add: {twice[0]!r} is given twice; name every token once")
        return self


_BuiltIn = Annotated[
    TextCorpus
    | ArithmeticCorpus
    | StdlibCorpus
    | SudokuCorpus
    | CountedCorpus
    | ConversationCorpus
    | ThesisCorpus
    | PromptCorpus
    | MixtureCorpus,
    Field(discriminator="kind"),
]


def corpus_class(kind: str) -> type[UserCorpus] | None:
    """Return the class of a kind of corpus that an installed package offers, or None.

    Raises:
        UserError: the package's entry point is broken.
    """
    # Only where a kind is unknown: it looks at every installed package.
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
        # As an error of a built-in kind looks, so that `explain` names the key in the same words.
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
    validation: float = Field(
        HELD_OUT, gt=0, lt=0.5, description="share of documents held out, chosen by a hash of their text; theses have `split`"
    )
    split: TimeSplit | None = Field(None, description="of theses: the days that are trained on, validated on and tested on")

    @model_validator(mode="after")
    def _split_fits(self) -> Data:
        problem = split_problem(self.corpus, self.split, self.validation)
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def files(self) -> list[str]:
        """Every file pattern that the corpus names."""
        corpora = [s.corpus for s in self.corpus.sources] if isinstance(self.corpus, MixtureCorpus) else [self.corpus]
        return [name for corpus in corpora for name in getattr(corpus, "files", [])]
