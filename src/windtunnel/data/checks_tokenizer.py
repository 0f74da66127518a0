"""Check the tokenizer against model, data and prompts: the GPT's own, and one beside a Hugging Face config.json."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import BPETokenizer, CharacterTokenizer, HuggingFaceModel, find_model

from .checks import has_tokens, whole_or_scaled
from .checks_conversations import has_conversations, judge_template
from .prepared import PreparedData
from .subwords import Folder
from .tokenizer import Tokenizer, UnknownCharacter

# A tokenizer beside a config.json.

FEWEST = 0.5  # a tokenizer that fills less of the model's rows belongs to another model; padding takes a few per cent


def _is_huggingface(context: Context) -> bool:
    return isinstance(context.recipe.model, HuggingFaceModel)


def tokenizer_folder(context: Context, say: Say) -> Evidence:
    """Read what stands beside config.json and hold it against the model's vocabulary."""
    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    base = find_model(model.config)
    if base is None:
        text = f"{model.config} is known by name: there is no tokenizer here to look at"
        fetch = f"windtunnel fetch {model.config} --only tokenizer (megabytes)"
        return Evidence(text, absent=f"{fetch}, or give model.config as a folder with tokenizer.json")
    rows = context.rows(0)
    if not (base / "tokenizer.json").is_file():
        return Evidence(f"no tokenizer.json in {base}", absent="put the model's tokenizer.json and tokenizer_config.json there")
    say("reading it")
    folder, config, found = _open(base), _json(base / "config.json"), Findings()
    size = _judge_ids(folder, rows, found)
    # Ids at which generation stops.
    ends = _ids(config.get("eos_token_id")) | _ids(_json(base / "generation_config.json").get("eos_token_id"))
    _judge_special(folder, ends, config, found)
    _judge_round_trips(folder, found)
    chats = context.recipe.rl is not None or has_conversations(context)
    if folder.template is not None:
        judge_template(folder, ends, found, chats=chats)
    elif chats:
        found.warn(f"{base} has no chat template: prompts are plain text; put one into tokenizer_config.json if the model chats")
    special = ", ".join(f"{name.removesuffix('_token')} {text!r}" for name, text in folder.special.items())
    facts = {"vocabulary": size, "rows": rows, "chat_template": folder.template is not None}
    return found.evidence(f"{size:,} tokens in {rows:,} rows; {special}", facts)


def _open(base: Path) -> Folder:
    file = base / "tokenizer.json"
    if file.read_bytes()[:40].startswith(b"version https://git-lfs"):
        raise CheckFailed(f"{file} is a Git LFS pointer, the tokenizer itself was not fetched", "git lfs pull")
    return Folder.from_folder(base, "model.config")


def _json(path: Path) -> dict[str, Any]:
    """Return an object in a file; {} where there is no file. Raises CheckFailed."""
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
    vocabulary = folder.ids
    highest = max(vocabulary.values(), default=-1)
    if highest >= rows:
        text = next(token for token, number in vocabulary.items() if number == highest)
        what = f"token {text!r} has id {highest:,}, the model has {rows:,} rows: looking it up would fail on a GPU"
        found.problem(what, "set vocab_size in config.json, or use the tokenizer that belongs to the model", shows="first steps")
    elif len(vocabulary) < FEWEST * rows:
        what = f"the tokenizer has {len(vocabulary):,} tokens, the model {rows:,} rows: it belongs to another model"
        found.problem(what, "put the model's own tokenizer beside config.json", shows="end")
    return len(vocabulary)


def _judge_special(folder: Folder, ends: set[int], config: dict[str, Any], found: Findings) -> None:
    for name, text in folder.special.items():
        if folder.token(text) is None:
            found.problem(f"{name} {text!r} is not in the vocabulary", "add it to tokenizer.json or name one that is there")
        elif len(folder.marked.encode(text, add_special_tokens=False).ids) != 1:
            found.problem(f"{name} {text!r} is split into several tokens", "list it in tokenizer.json's added_tokens")
    bos, eos, pad = (folder.special.get(name) for name in ("bos_token", "eos_token", "pad_token"))
    if eos is None:
        found.problem("tokenizer_config.json names no eos_token: answers would never end", "name the token that ends an answer")
    elif ends and (number := folder.token(eos)) is not None and number not in ends:
        what = f"eos_token {eos!r} has id {number}, config.json's eos_token_id is {sorted(ends)}"
        found.problem(what, "make them one: generation would not stop where training ends", shows="end")
    expected, number = _ids(config.get("bos_token_id")), None if bos is None else folder.token(bos)
    if expected and number is not None and number not in expected:
        found.warn(f"bos_token has id {number}, config.json's bos_token_id is {sorted(expected)}: make them one")
    if pad is not None and pad == eos:
        found.warn("pad_token is eos_token: where padding is masked the end is not learned; use a token of its own")


def _judge_round_trips(folder: Folder, found: Findings) -> None:
    changed = []
    for text in ODD_TEXTS:
        ids = folder.marked.encode(text, add_special_tokens=False).ids
        again = folder.marked.decode(ids, skip_special_tokens=False)
        # Many tokenizers put a blank before or normalize: that alone loses nothing.
        if unicodedata.normalize("NFC", again.strip()) != unicodedata.normalize("NFC", text.strip()):
            changed.append(f"{text[:20]!r} as {again[:20]!r}")
    if changed:
        found.warn(f"texts that do not come back as they were: {'; '.join(changed[:3])}; such text is lost to the model")


# A GPT's own tokenizer.

ROUND_TRIPS = 200  # documents
LOOKED_AT = 400_000  # tokens
MANY_CHARACTERS = 2_000  # more than all of Europe's scripts together
SKIPPED = 0.01  # share of characters left out that is too much to go on with
UNUSED = 0.5  # share of the vocabulary that may never occur
FEW_BYTES = 1.5  # a token of a BPE stands for 3 to 4 bytes of prose


def tokenizer(context: Context, say: Say) -> Evidence:
    """Ids against the model's tables; text there and back; prompts."""
    prepared = whole_or_scaled(context)
    own, found = prepared.tokenizer, Findings()
    _special(own)
    rows = context.rows(own.vocab)
    if rows < own.vocab:
        raise CheckFailed(f"the model's tables have {rows} rows, the tokenizer {own.vocab} tokens")
    say("text there and back")
    trips = _round_trips(prepared)
    if own.kind == "bpe":
        _odd_texts(own)
    _prompts(context, own, found)
    _vocabulary(context, prepared, found)
    text = f"{own.vocab:,} tokens in {rows:,} rows, BOS is {own.bos} and no text's"
    facts = {"vocabulary": own.vocab, "padded": rows, "round_trips": trips}
    return found.evidence(f"{text}; {trips} documents came back as they were", facts)


def _special(own: Tokenizer) -> None:
    if own.piece(own.bos) != b"":
        raise CheckFailed(f"token {own.bos}, BOS, stands for text: {own.piece(own.bos)!r}")
    pieces = own.pieces[1:]
    if len(set(pieces)) != len(pieces):
        raise CheckFailed("two tokens stand for the same text")


def _round_trips(prepared: PreparedData) -> int:
    tokens = np.asarray(prepared.validation.array[:LOOKED_AT])
    starts = np.flatnonzero(tokens == prepared.tokenizer.bos)
    number = 0
    for first, last in itertools.pairwise([*starts[:ROUND_TRIPS], len(tokens)]):
        text = prepared.tokenizer.decode(tokens[first + 1 : last])
        again = prepared.tokenizer.decode(prepared.tokenizer.encode(text)) if "\ufffd" not in text else text
        if again != text:
            raise CheckFailed(f"{text[:60]!r} comes back from the tokenizer as {again[:60]!r}")
        number += 1
    return number


def _odd_texts(own: Tokenizer) -> None:
    for text in ODD_TEXTS:
        ids = own.encode(text)
        if len(ids) and (int(ids.max()) >= own.vocab or int(ids.min()) == own.bos):
            raise CheckFailed(f"{text[:40]!r} is encoded with BOS or an id that is none")
        if own.decode(ids) != text:
            raise CheckFailed(f"{text[:40]!r} comes back from the tokenizer as {own.decode(ids)[:40]!r}")


def _prompts(context: Context, own: Tokenizer, found: Findings) -> None:
    for prompt in context.recipe.evaluation.prompts:
        try:
            own.encode(prompt)
        except UnknownCharacter as error:
            found.problem(
                f"stages.evaluate.prompts: {prompt[:40]!r} has {error.character!r}, which the vocabulary lacks",
                "prompt with characters that the model was trained on, or add it to data.tokenizer.alphabet", shows="end",
            )  # fmt: skip


def _vocabulary(context: Context, prepared: PreparedData, found: Findings) -> None:
    """Its size against the corpus: characters left out, tokens never met, too many or too short ones."""
    own, wanted = prepared.tokenizer, context.recipe.data.tokenizer
    skipped = sum(prepared.skipped.values())
    if skipped:
        most = ", ".join(f"{character!r} {count:,} times" for character, count in list(prepared.skipped.items())[:3])
        what = f"{skipped:,} characters outside the alphabet are left out ({skipped / (skipped + prepared.tokens):.2%}): {most}"
        fix = "add them to data.tokenizer.alphabet, or use alphabet=auto"
        if skipped > SKIPPED * (skipped + prepared.tokens):
            found.problem(what, fix, shows="end")
        else:
            found.warn(f"{what}: {fix}")
    if isinstance(wanted, CharacterTokenizer) and own.vocab > MANY_CHARACTERS:
        found.warn(f"{own.vocab:,} different characters: a token each is wasteful; use data.tokenizer.kind=bpe")
    whole = bool(context.facts["data"].get("whole"))
    if isinstance(wanted, BPETokenizer) and whole:
        if own.vocab < wanted.vocab_size:
            what = f"the corpus gives a vocabulary of {own.vocab:,} tokens, not {wanted.vocab_size:,}"
            found.warn(f"{what}: lower data.tokenizer.vocab_size or give more text")
        if own.vocab > MANY_CHARACTERS and prepared.bytes_per_token < FEW_BYTES:
            found.warn(f"a token stands for {prepared.bytes_per_token:.2f} bytes only: binary or encoded data in the corpus?")
    if whole:
        used = len(np.unique(np.asarray(prepared.train.array[: LOOKED_AT * 50])))
        if used < (1 - UNUSED) * own.vocab:
            found.warn(
                f"{own.vocab - used:,} of {own.vocab:,} tokens never occur in training: the vocabulary is too large for this text"
            )


# What users type and data holds: a byte-level tokenizer gives each back as it was.
ODD_TEXTS = (
    "",
    " \t\n\r\n  \x0b\x0c",
    "\x00\x01\x1b[0m\x7f",
    "naïve café 東京 Привет مرحبا हिन्दी",
    "🤷🏽‍♀️ e\u0301 \u202e\ufeff ﷽",
    "a" * 5000,
    "<|bos|><|endoftext|></s>[PAD]",
)


CHECKS = (
    Check(
        "tokenizer-files", "the tokenizer beside config.json belongs to the model; its chat template ends answers",
        "look at tokenizer.json and tokenizer_config.json beside config.json", tokenizer_folder,
        shows="first steps", needs=("recipe",), applies=_is_huggingface,
    ),
    Check(
        "tokenizer", "its ids are rows of the model, text comes back as it was, prompts can be encoded", "look at data.tokenizer",
        tokenizer, shows="first steps", needs=("recipe", "data"), applies=has_tokens,
    ),
)  # fmt: skip
