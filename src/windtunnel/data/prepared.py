"""Prepare a recipe's data: documents are tokenized once into two token files, kept in a cache and checked on reuse."""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.recipe import (
    ConversationCorpus,
    CountedCorpus,
    FolderTokenizer,
    MixtureCorpus,
    PromptCorpus,
    Recipe,
    StdlibCorpus,
    SudokuCorpus,
    TextCorpus,
    ThesisCorpus,
    UserCorpus,
    UserError,
)

from .cache import cache_root, check_free_space, locked, new_folder
from .corpus import CorpusFile, corpus_files, listed_files
from .exercises import EXERCISES
from .formats import form_of
from .mixture import MixtureFile
from .packing import ConversationFile
from .prompt_columns import READER_VERSION
from .prompts import PromptFile
from .sudoku_file import PuzzleFile, write_puzzles
from .theses import PRICES, SPLITS, Thesis, read_theses, today
from .tokenizer import Tokenizer, load_tokenizer
from .tokens import TokenFile, file_checksum
from .write import (
    NAMES,
    Progress,
    Split,
    Written,
    document_tokenizer,
    folder_tokenizer,
    survey_corpus,
    write_splits,
)

FORMAT = 1  # of the folder: changes when older ones can no longer be read
THESES = 4  # changes when theses are read, checked or counted otherwise than before
KERNELS = 2  # changes when other kernel tasks are generated than before, or are judged by other inputs
# Keys of a corpus that say where the data are, or that what is found decides: the contents count instead.
_NOT_CONTENT = defaultdict(lambda: {"files", "megabytes"}, text={"files", "format"})
HASHED_BYTES = 1 << 30  # a second or two


@dataclass(frozen=True)
class PreparedData:
    """A corpus as tokens, ready to be trained on; of puzzles `train` and `validation` are `PuzzleFile`s.

    bytes_per_token: UTF-8 bytes of text over all tokens, BOS included. skipped: characters outside the
    alphabet and how often each was left out. fingerprint: of what the data was made from. checksum: of the
    tokens themselves, of prompts their answers too, the same on every machine. test: of theses, the split that is only
    looked at in the end. facts: of theses, what was read, kept and rejected (see `Sorted.facts`).
    """

    folder: Path
    corpus: str
    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile
    train_documents: int
    validation_documents: int
    bytes: int
    skipped: dict[str, int]
    fingerprint: str
    checksum: str
    seconds: float
    notes: list[str] = field(default_factory=list)
    reused: bool = False
    test: TokenFile | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def theses(self, split: str) -> Iterator[Thesis]:
        """Yield the theses of a split (train, validation or test), in the order of its samples.

        Raises:
            UserError: the data are no theses, or have no such split.
        """
        if self.corpus != "theses":
            raise UserError(f"data.corpus.kind: {self.corpus} has no theses", "--set data.corpus.kind=theses")
        file = self.folder / f"{split}.jsonl"
        if split not in SPLITS:
            raise UserError(f"theses have no split {split!r}", f"name one of {', '.join(SPLITS)}")
        return read_theses(file)

    @property
    def prices(self) -> Path | None:
        """Return the file with the prices that theses were generated on; None where they come from files."""
        file = self.folder / PRICES
        return file if file.is_file() else None

    @property
    def documents(self) -> int:
        """Documents to train on and held out."""
        return self.train_documents + self.validation_documents

    @property
    def tokens(self) -> int:
        """Return how many tokens both splits have."""
        return self.train.count + self.validation.count

    def epoch_tokens(self, sequence: int) -> int:
        """Return the tokens that steps count in one epoch: of packed samples the positions of all packs, filled or not."""
        return self.train.sequences(sequence) * sequence if self.train.packed else self.train.count

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes a token stands for on average."""
        return self.bytes / self.tokens


def prepare(recipe: Recipe, cache: str | Path | None = None, progress: Progress | None = None) -> PreparedData:
    """Return the recipe's data as token files, from the cache or made now.

    Safe to call from several processes at once: one works, the others wait for it. What a killed process
    leaves behind is never used.

    Args:
        recipe: its data and tokenizer, model and seed decide the tokens.
        cache: folder; None: $WINDTUNNEL_CACHE, $XDG_CACHE_HOME/windtunnel or ~/.cache/windtunnel.
        progress: called with the share done (0 to 1) and what is being done.

    Raises:
        UserError: files missing, unreadable, empty, binary or not UTF-8; characters outside the alphabet;
            too few documents to split; not enough disk.
    """
    report = progress or (lambda share, what: None)
    root = cache_root(cache)
    corpus = recipe.data.corpus
    if isinstance(corpus, CountedCorpus):
        raise UserError("data.corpus.kind: a counted corpus has no text, it can only be planned with", "give text files")
    files = _files(corpus)
    fingerprint = _fingerprint(recipe, files, report)
    folder = root / f"{corpus.kind}-{fingerprint}"
    if ready := _reuse(folder, fingerprint):
        return ready

    def waiting() -> None:
        report(0.0, "waiting for another process that prepares the same data")

    with locked(root / f"{folder.name}.lock", waiting) as alone:
        if ready := _reuse(folder, fingerprint):  # made while this process waited
            return ready
        with new_folder(folder, alone) as temporary:
            _make(recipe, files, temporary, fingerprint, report)
    made = _open(folder, reused=False)
    report(1.0, "ready")
    return made


def _files(corpus: Any) -> list[CorpusFile]:
    """Return the files of a corpus; none where it is generated."""
    if isinstance(corpus, TextCorpus | StdlibCorpus | UserCorpus):
        return corpus_files(corpus)
    if isinstance(corpus, ConversationCorpus | PromptCorpus) and corpus.kernels is not None:
        from .kernels_files import kernel_files

        return kernel_files(corpus.kernels)
    return (
        listed_files(corpus.files, every_split=isinstance(corpus, ThesisCorpus))  # theses are split anew, by time
        if isinstance(corpus, ConversationCorpus | ThesisCorpus | PromptCorpus) and corpus.files
        else []
    )


def _sources(recipe: Recipe) -> list[Recipe]:
    """Return a recipe for each source of a mixture, with its corpus alone."""
    assert isinstance(recipe.data.corpus, MixtureCorpus)
    parts = [recipe.data.model_copy(update={"corpus": source.corpus}) for source in recipe.data.corpus.sources]
    return [recipe.model_copy(update={"data": part}) for part in parts]


def _make(
    recipe: Recipe, files: list[CorpusFile], folder: Path, fingerprint: str, report: Progress, tokenizer: Tokenizer | None = None
) -> None:
    started = time.monotonic()
    if isinstance(recipe.data.corpus, MixtureCorpus):
        result = _make_mixture(recipe, folder, report)
    else:
        result = _write(recipe, files, folder, report, tokenizer)
    meta = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "corpus": recipe.data.corpus.kind,
        "tokenizer": recipe.data.tokenizer.kind,
        "tokenizer_checksum": getattr(result.tokenizer, "checksum", None),
        "overlong": getattr(recipe.data.corpus, "overlong", None),
        "vocab": result.tokenizer.vocab,
        "splits": {name: asdict(split) for name, split in result.splits.items()},
        "skipped": dict(Counter(result.skipped).most_common()),
        "notes": result.notes,
        "facts": result.facts,
        "seconds": round(time.monotonic() - started, 3),
    }
    if isinstance(recipe.data.corpus, MixtureCorpus):
        listed = recipe.data.corpus.sources
        meta["sources"] = [
            {"name": source.name or f"{source.corpus.kind}-{i}", "weight": source.weight} for i, source in enumerate(listed, 1)
        ]
    text = json.dumps(meta, ensure_ascii=False, indent=1)
    (folder / "meta.json").write_text(text + "\n", encoding="utf-8")


def _write(recipe: Recipe, files: list[CorpusFile], folder: Path, report: Progress, tokenizer: Tokenizer | None) -> Written:
    enough, corpus = partial(check_free_space, folder), recipe.data.corpus
    if isinstance(corpus, SudokuCorpus):
        return write_puzzles(recipe, folder, enough, report)
    if isinstance(corpus, ConversationCorpus):
        from .samples import write_conversations

        return write_conversations(recipe, corpus, files, folder, enough, report, tokenizer)
    if isinstance(corpus, ThesisCorpus):
        from .theses_split import write_theses

        return write_theses(recipe, corpus, files, folder, enough, report)
    if isinstance(corpus, PromptCorpus):
        from .prompts import write_prompts

        return write_prompts(recipe, files, folder, enough, report)
    return write_splits(recipe, files, folder, enough, report, tokenizer)


def _make_mixture(recipe: Recipe, folder: Path, report: Progress) -> Written:
    """Prepare every source into a folder of its own, all with one tokenizer."""
    recipes = _sources(recipe)
    files = [_files(part.data.corpus) for part in recipes]
    if isinstance(recipes[0].data.corpus, ConversationCorpus):
        from .samples import shared_tokenizer

        tokenizer = shared_tokenizer(recipes, files, report)
    else:
        surveyed = [survey_corpus(part, listed, report) for part, listed in zip(recipes, files, strict=True)]
        tokenizer = document_tokenizer(recipe, surveyed, report)
    tokenizer.save(folder / "tokenizer.json")
    made = []
    for i, (part, listed) in enumerate(zip(recipes, files, strict=True)):
        inner = folder / str(i)
        inner.mkdir()
        _make(part, listed, inner, _fingerprint(part, listed, report), report, tokenizer)
        made.append(_open(inner, reused=False))
    splits = {}
    for name in NAMES:
        parts = [vars(one)[name] for one in made]
        documents = sum(vars(one)[f"{name}_documents"] for one in made)
        sums = " ".join(one.checksum for one in made)
        digest = hashlib.sha256(f"{name} {sums}".encode()).hexdigest()[:32]
        # Bytes of text are known of both splits together, and are counted with the first.
        size = sum(one.bytes for one in made) if name == NAMES[0] else 0
        splits[name] = Split(sum(part.count for part in parts), documents, size, parts[0].dtype, digest)
    skipped = sum((Counter(one.skipped) for one in made), Counter[str]())
    notes = [note for one in made for note in one.notes]
    return Written(tokenizer, splits, skipped, notes)


def _open(folder: Path, reused: bool) -> PreparedData:
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    if meta["format"] != FORMAT:
        raise ValueError(f"format {meta['format']}, expected {FORMAT}")
    splits = {name: Split(**values) for name, values in meta["splits"].items()}
    train, validation = splits["train"], splits["validation"]
    return PreparedData(
        folder=folder,
        corpus=meta["corpus"],
        tokenizer=load_tokenizer(folder / "tokenizer.json"),
        train=_file(folder, "train", train, meta),
        validation=_file(folder, "validation", validation, meta),
        train_documents=train.documents,
        validation_documents=validation.documents,
        bytes=train.bytes + validation.bytes,
        skipped=meta["skipped"],
        fingerprint=meta["fingerprint"],
        checksum=_checksum(splits, records=meta["corpus"] == "prompts"),
        seconds=meta["seconds"],
        notes=meta["notes"],
        reused=reused,
        test=_file(folder, "test", splits["test"], meta) if "test" in splits else None,
        facts=meta.get("facts", {}),
    )


def _file(folder: Path, name: str, split: Split, meta: dict[str, Any]) -> TokenFile:
    """Return one split of a prepared folder, as the kind of file that its corpus makes."""
    path, vocab = folder / f"{name}.bin", meta["vocab"]
    if meta["corpus"] == "sudoku":
        return PuzzleFile(path, split.dtype, split.tokens, vocab, cells=(vocab - 1) ** 2)
    if meta["corpus"] in ("conversations", "theses"):
        return ConversationFile(path, split.dtype, split.tokens, vocab, overlong=meta["overlong"])
    if meta["corpus"] == "prompts":
        return PromptFile(path, split.dtype, split.tokens, vocab)
    if meta["corpus"] == "mixture":
        parts = tuple(vars(_open(folder / str(i), reused=True))[name] for i in range(len(meta["sources"])))
        names, weights = (tuple(source[key] for source in meta["sources"]) for key in ("name", "weight"))
        return MixtureFile(path, split.dtype, split.tokens, vocab, parts=parts, names=names, weights=weights)
    return TokenFile(path, split.dtype, split.tokens, vocab)


def _checksum(splits: dict[str, Split], *, records: bool) -> str:
    # By its tokens alone a prompt with another right answer would be the same.
    parts = [part for split in splits.values() for part in (split.checksum, split.records if records else None) if part]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]


def _reuse(folder: Path, fingerprint: str) -> PreparedData | None:
    try:
        ready = _open(folder, reused=True)
        if ready.fingerprint != fingerprint or _stale(ready) or not _is_whole(ready):
            return None
        return ready
    except (OSError, ValueError, KeyError, TypeError, UserError):  # whatever is wrong with it, it is made again
        return None


def _stale(prepared: PreparedData) -> bool:
    """Return whether a thesis that was rejected for lying in the future no longer does."""
    day = prepared.facts.get("stale_from")
    return day is not None and datetime.date.fromisoformat(day) <= today()


def _is_whole(prepared: PreparedData) -> bool:
    """Return whether the files are as they were written. Sizes are always compared; contents up to 1 GiB."""
    if isinstance(prepared.train, MixtureFile):
        return all(_is_whole(_open(prepared.folder / str(i), reused=True)) for i in range(len(prepared.train.parts)))
    splits = json.loads((prepared.folder / "meta.json").read_text(encoding="utf-8"))["splits"]
    for name, tokens in (("train", prepared.train), ("validation", prepared.validation), ("test", prepared.test)):
        if tokens is None:
            continue
        size, records = tokens.path.stat().st_size, splits[name].get("records")
        if size != tokens.bytes:
            return False
        if size <= HASHED_BYTES and file_checksum(tokens.path) != splits[name]["checksum"]:
            return False
        if records is not None and file_checksum(tokens.path.with_suffix(".jsonl")) != records:
            return False
    return True


def _fingerprint(recipe: Recipe, files: list[CorpusFile], report: Progress) -> str:
    """Return a hash of all that decides the tokens.

    Files count by their contents up to 1 GiB in all, above that by path, size and time of change: reading
    terabytes to find that nothing changed would cost more than it saves.
    """
    data = recipe.data
    if isinstance(data.corpus, MixtureCorpus):
        parts = [_fingerprint(part, _files(part.data.corpus), report) for part in _sources(recipe)]
        told = [[source.name, source.weight] for source in data.corpus.sources]
        return hashlib.sha256(json.dumps([FORMAT, parts, told]).encode()).hexdigest()[:16]
    # The seed decides what is generated, not how files are read: with files, runs of other seeds share their data.
    generated = isinstance(data.corpus, ConversationCorpus | ThesisCorpus) and not data.corpus.files
    unused = {"arithmetic", "generated"} if data.files else set()
    definition: dict[str, Any] = {
        "format": FORMAT,
        "corpus": data.corpus.model_dump(mode="json", exclude=_NOT_CONTENT[data.corpus.kind] | unused),
        "tokenizer": data.tokenizer.model_dump(mode="json"),
        "validation": data.validation,
    }
    if isinstance(data.corpus, TextCorpus):
        forms = {form_of(file.path, file.format) for file in files}
        if forms <= {"text"}:
            definition["corpus"].pop("text_key", None)
        else:
            definition["forms"] = sorted(forms)
    if isinstance(data.corpus, ThesisCorpus) and data.split is not None:
        definition["periods"] = str(data.split.periods(data.corpus.forward_days))
        definition["theses"] = THESES
    versions = {"kernels": KERNELS, "exercises": EXERCISES}
    if isinstance(data.corpus, PromptCorpus) and data.corpus.files:
        definition["read"] = READER_VERSION
    definition |= {name: version for name, version in versions.items() if getattr(data.corpus, name, None) is not None}
    if isinstance(data.tokenizer, FolderTokenizer):
        definition["tokenizer"] = folder_tokenizer(recipe).checksum
    if generated or data.corpus.kind in ("arithmetic", "sudoku", "prompts"):
        definition["seed"] = recipe.seed
    # Another version of the library may learn other merges from the same text.
    if data.tokenizer.kind == "bpe":
        import tokenizers

        definition["tokenizers"] = tokenizers.__version__
    if sum(f.size for f in files) <= HASHED_BYTES:
        if files:
            report(0.0, "looking for changes in the corpus")
        definition["files"] = [_contents(f) for f in files]
    else:
        definition["files"] = [(f.path, f.size, Path(f.path).stat().st_mtime_ns) for f in files]
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


def _contents(file: CorpusFile) -> str:
    try:
        return file_checksum(Path(file.path))
    except OSError as error:
        raise UserError(f"data.corpus.files: {file.path} cannot be read: {error.strerror}") from None
