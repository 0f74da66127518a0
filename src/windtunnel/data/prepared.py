"""Prepare a recipe's data: documents are tokenized once into two token files, kept in a cache and checked on reuse."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.recipe import (
    ConversationCorpus,
    CountedCorpus,
    FolderTokenizer,
    Recipe,
    StdlibCorpus,
    SudokuCorpus,
    TextCorpus,
    UserCorpus,
    UserError,
)

from .cache import cache_root, check_free_space, locked, new_folder
from .corpus import CorpusFile, corpus_files, listed_files
from .formats import form_of
from .packing import ConversationFile
from .sudoku_file import PuzzleFile
from .sudoku_write import write_puzzles
from .tokenizer import Tokenizer, load_tokenizer
from .tokens import TokenFile, file_checksum
from .write import Progress, Split, folder_tokenizer, write_splits

FORMAT = 1
# Keys of a corpus that say where the data are, or that what is found decides: the contents count instead.
_NOT_CONTENT = defaultdict(lambda: {"files", "megabytes"}, text={"files", "format"})
HASHED_BYTES = 1 << 30


@dataclass(frozen=True)
class PreparedData:
    """A corpus as tokens, ready to be trained on; of puzzles `train` and `validation` are `PuzzleFile`s.

    bytes_per_token: UTF-8 bytes of text over all tokens, BOS included. skipped: characters outside the
    alphabet and how often each was left out. fingerprint: of what the data was made from. checksum: of the
    tokens themselves, the same on every machine.
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

    @property
    def documents(self) -> int:
        """Documents in both splits."""
        return self.train_documents + self.validation_documents

    @property
    def tokens(self) -> int:
        """Tokens in both splits."""
        return self.train.count + self.validation.count

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes a token stands for on average."""
        return self.bytes / self.tokens


def prepare(recipe: Recipe, cache: str | Path | None = None, progress: Progress | None = None) -> PreparedData:
    """The recipe's data as token files, from the cache or made now.

    Safe to call from several processes at once: one works, the others wait for it. What a killed process
    leaves behind is never used.

    Args:
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
    """The files of a corpus; none where it is generated."""
    if isinstance(corpus, TextCorpus | StdlibCorpus | UserCorpus):
        return corpus_files(corpus)
    return listed_files(corpus.files) if isinstance(corpus, ConversationCorpus) else []


def open_prepared(folder: str | Path) -> PreparedData:
    """Open data prepared before, after checking it.

    Raises:
        UserError: the folder is not prepared data, or it is damaged.
    """
    try:
        prepared = _open(Path(folder), reused=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} is not prepared data: {error}", "training prepares it again") from None
    damage = _damage(prepared)
    if damage:
        raise UserError(f"prepared data is damaged: {damage}", f"remove {folder}; it is made again when training")
    return prepared


def _make(recipe: Recipe, files: list[CorpusFile], folder: Path, fingerprint: str, report: Progress) -> None:
    started = time.monotonic()
    enough = partial(check_free_space, folder)
    if isinstance(recipe.data.corpus, SudokuCorpus):
        result = write_puzzles(recipe, folder, enough, report)
    elif isinstance(recipe.data.corpus, ConversationCorpus):
        from .samples import write_conversations

        result = write_conversations(recipe, recipe.data.corpus, files, folder, enough, report)
    else:
        result = write_splits(recipe, files, folder, enough, report)
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
        "seconds": round(time.monotonic() - started, 3),
    }
    text = json.dumps(meta, ensure_ascii=False, indent=1)
    (folder / "meta.json").write_text(text + "\n", encoding="utf-8")


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
        train=_file(folder / "train.bin", train, meta),
        validation=_file(folder / "validation.bin", validation, meta),
        train_documents=train.documents,
        validation_documents=validation.documents,
        bytes=train.bytes + validation.bytes,
        skipped=meta["skipped"],
        fingerprint=meta["fingerprint"],
        checksum=_checksum(splits),
        seconds=meta["seconds"],
        notes=meta["notes"],
        reused=reused,
    )


def _file(path: Path, split: Split, meta: dict[str, Any]) -> TokenFile:
    if meta["corpus"] == "sudoku":
        return PuzzleFile(path, split.dtype, split.tokens, meta["vocab"], cells=(meta["vocab"] - 1) ** 2)
    if meta["corpus"] == "conversations":
        return ConversationFile(path, split.dtype, split.tokens, meta["vocab"], overlong=meta["overlong"])
    return TokenFile(path, split.dtype, split.tokens, meta["vocab"])


def _checksum(splits: dict[str, Split]) -> str:
    return hashlib.sha256(f"{splits['train'].checksum} {splits['validation'].checksum}".encode()).hexdigest()[:32]


def _reuse(folder: Path, fingerprint: str) -> PreparedData | None:
    try:
        ready = _open(folder, reused=True)
        return ready if ready.fingerprint == fingerprint and not _damage(ready) else None
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def _damage(prepared: PreparedData) -> str | None:
    """What is wrong with the token files. Sizes are always compared; contents up to 1 GiB."""
    splits = json.loads((prepared.folder / "meta.json").read_text(encoding="utf-8"))["splits"]
    for name, tokens in (("train", prepared.train), ("validation", prepared.validation)):
        size = tokens.path.stat().st_size if tokens.path.exists() else -1
        if size != tokens.bytes:
            return f"{tokens.path} has {max(size, 0):,} bytes, expected {tokens.bytes:,}"
        if size <= HASHED_BYTES and file_checksum(tokens.path) != splits[name]["checksum"]:
            return f"{tokens.path} does not match its checksum"
    return None


def _fingerprint(recipe: Recipe, files: list[CorpusFile], report: Progress) -> str:
    """A hash of all that decides the tokens.

    Files count by their contents up to 1 GiB in all, above that by path, size and time of change: reading
    terabytes to find that nothing changed would cost more than it saves.
    """
    data = recipe.data
    definition: dict[str, Any] = {
        "format": FORMAT,
        "corpus": data.corpus.model_dump(mode="json", exclude=_NOT_CONTENT[data.corpus.kind]),
        "tokenizer": data.tokenizer.model_dump(mode="json"),
        "validation": data.validation,
    }
    if isinstance(data.corpus, TextCorpus):
        forms = {form_of(file.path, file.format) for file in files}
        if forms <= {"text"}:
            definition["corpus"].pop("text_key", None)
        else:
            definition["forms"] = sorted(forms)
    if isinstance(data.tokenizer, FolderTokenizer):
        definition["tokenizer"] = folder_tokenizer(recipe).checksum
    if data.corpus.kind in ("arithmetic", "sudoku"):
        definition["seed"] = recipe.seed
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
