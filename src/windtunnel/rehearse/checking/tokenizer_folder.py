"""A Hugging Face tokenizer that stands beside a config.json: its ids, special tokens and chat template against the model."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import HuggingFaceModel

from .chat_template import judge_template
from .context import Context
from .data_records import has_conversations
from .tokenizer_texts import ODD_TEXTS
from .types import Check, CheckFailed, Evidence, Findings, Say

if TYPE_CHECKING:
    import tokenizers

FEWEST = 0.5
"""A tokenizer that fills less of the model's rows belongs to another model; padding takes a few per cent."""


@dataclass(frozen=True)
class Folder:
    """A tokenizer and what its files say.

    Attributes:
        special: texts of bos, eos, pad by name, where given. ends: ids at which generation stops.
        template: the chat template, if any.
    """

    path: Path
    inner: tokenizers.Tokenizer
    special: dict[str, str]
    ends: set[int]
    settings: dict[str, Any]
    template: str | None

    def id_of(self, name: str) -> int | None:
        """The id of a special token; None where there is none or it is not in the vocabulary."""
        found: int | None = self.inner.token_to_id(self.special[name]) if name in self.special else None
        return found


def _is_huggingface(context: Context) -> bool:
    return isinstance(context.recipe.model, HuggingFaceModel)


def tokenizer_folder(context: Context, say: Say) -> Evidence:
    """Read what stands beside config.json and hold it against the model's vocabulary."""
    from windtunnel.model import causal_shape

    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    path = Path(model.config).expanduser()
    base = path if path.is_dir() else path.parent
    if not path.exists():
        text = f"{model.config} is known by name: there is no tokenizer here to look at"
        return Evidence(text, absent="give model.config as a folder with config.json and tokenizer.json")
    rows = causal_shape(model.config).vocab
    if not (base / "tokenizer.json").is_file():
        return Evidence(
            f"no tokenizer.json beside {path}", absent="put the model's tokenizer.json and tokenizer_config.json there"
        )
    say("reading it")
    folder = _open(base, _json(base / "config.json"))
    found = Findings()
    size = _judge_ids(folder, rows, found)
    _judge_special(folder, _json(base / "config.json"), found)
    _judge_round_trips(folder, found)
    chats = context.recipe.rl is not None or has_conversations(context)
    if folder.template is not None:
        judge_template(folder.template, folder.inner, folder.special, folder.ends, found, adds_bos=_adds_bos(folder), chats=chats)
    elif chats:
        found.warn(f"{base} has no chat template: prompts are plain text; put one into tokenizer_config.json if the model chats")
    text = f"{size:,} tokens in {rows:,} rows; " + ", ".join(f"{name} {folder.special[name]!r}" for name in folder.special)
    return found.evidence(text, {"vocabulary": size, "rows": rows, "chat_template": folder.template is not None})


def _open(base: Path, config: dict[str, Any]) -> Folder:
    import tokenizers

    file = base / "tokenizer.json"
    if file.read_bytes()[:40].startswith(b"version https://git-lfs"):
        raise CheckFailed(f"{file} is a Git LFS pointer, the tokenizer itself was not fetched", "git lfs pull")
    try:
        inner = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise CheckFailed(f"{file} cannot be read: {error}", "download the model's tokenizer.json again") from None
    settings = _json(base / "tokenizer_config.json") | {}
    special = {}
    for name in ("bos", "eos", "pad"):
        value = settings.get(f"{name}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            special[name] = text
    ends = _ids(config.get("eos_token_id")) | _ids(_json(base / "generation_config.json").get("eos_token_id"))
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    beside = base / "chat_template.jinja"
    if beside.is_file():
        template = beside.read_text(encoding="utf-8", errors="replace")
    return Folder(base, inner, special, ends, settings, template if isinstance(template, str) else None)


def _json(path: Path) -> dict[str, Any]:
    """An object in a file; {} where there is no file. Raises CheckFailed."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckFailed(f"{path} cannot be read: {error}", "download the model's files again") from None
    if not isinstance(value, dict):
        raise CheckFailed(f"{path}: expected an object of keys", "download the model's files again")
    return value


def _ids(value: Any) -> set[int]:
    return {value} if isinstance(value, int) else {v for v in value if isinstance(v, int)} if isinstance(value, list) else set()


def _judge_ids(folder: Folder, rows: int, found: Findings) -> int:
    vocabulary = folder.inner.get_vocab(with_added_tokens=True)
    highest = max(vocabulary.values(), default=-1)
    if highest >= rows:
        text = next(token for token, number in vocabulary.items() if number == highest)
        what = f"token {text!r} has id {highest:,}, the model has {rows:,} rows: looking it up would fail on a GPU"
        found.problem(what, "set vocab_size in config.json, or use the tokenizer that belongs to the model", shows="first steps")
    elif len(vocabulary) < FEWEST * rows:
        what = f"the tokenizer has {len(vocabulary):,} tokens, the model {rows:,} rows: it belongs to another model"
        found.problem(what, "put the model's own tokenizer beside config.json", shows="end")
    return len(vocabulary)


def _judge_special(folder: Folder, config: dict[str, Any], found: Findings) -> None:
    for name, text in folder.special.items():
        if folder.id_of(name) is None:
            found.problem(f"{name}_token {text!r} is not in the vocabulary", "add it to tokenizer.json or name one that is there")
        elif len(folder.inner.encode(text, add_special_tokens=False).ids) != 1:
            found.problem(f"{name}_token {text!r} is split into several tokens", "list it in tokenizer.json's added_tokens")
    if "eos" not in folder.special:
        found.problem("tokenizer_config.json names no eos_token: answers would never end", "name the token that ends an answer")
    eos = folder.id_of("eos")
    if folder.ends and eos is not None and eos not in folder.ends:
        what = f"eos_token {folder.special['eos']!r} has id {eos}, config.json's eos_token_id is {sorted(folder.ends)}"
        found.problem(what, "make them one: generation would not stop where training ends", shows="end")
    bos = _ids(config.get("bos_token_id"))
    if bos and folder.id_of("bos") is not None and folder.id_of("bos") not in bos:
        found.warn(f"bos_token has id {folder.id_of('bos')}, config.json's bos_token_id is {sorted(bos)}: make them one")
    if "pad" in folder.special and folder.special["pad"] == folder.special.get("eos"):
        found.warn("pad_token is eos_token: where padding is masked the end is not learned; use a token of its own")


def _judge_round_trips(folder: Folder, found: Findings) -> None:
    changed = []
    for text in ODD_TEXTS:
        ids = folder.inner.encode(text, add_special_tokens=False).ids
        again = folder.inner.decode(ids, skip_special_tokens=False)
        if unicodedata.normalize("NFC", again.strip()) != unicodedata.normalize("NFC", text.strip()):
            changed.append(f"{text[:20]!r} as {again[:20]!r}")
    if changed:
        found.warn(f"texts that do not come back as they were: {'; '.join(changed[:3])}; such text is lost to the model")


def _adds_bos(folder: Folder) -> bool:
    """Whether encoding a text puts BOS before it."""
    ids = folder.inner.encode("a", add_special_tokens=True).ids
    return bool(ids) and ids[0] == folder.id_of("bos")


CHECKS = (
    Check(
        "tokenizer-files", "the tokenizer beside config.json belongs to the model; its chat template ends answers",
        "look at tokenizer.json and tokenizer_config.json beside config.json", tokenizer_folder,
        shows="first steps", needs=("recipe",), applies=_is_huggingface,
    ),
)  # fmt: skip
