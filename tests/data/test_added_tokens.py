"""Tokens added to a model's tokenizer: each text is one id, in text and back, and what cannot be added is refused."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny_hf import tiny_llama

from windtunnel.data import Folder, load_tokenizer
from windtunnel.data.added import add_tokens, describe_added
from windtunnel.recipe import FolderTokenizer, UserError

FETCHED = Path(os.environ.get("WINDTUNNEL_TEST_MODELS", os.devnull)) / "smollm2-135m-instruct"
TAGS = ["<action>", "</action>", "STRONG_SELL", "SELL", "not yet"]
TEXT = "I would <action>STRONG_SELL</action>, not yet SELL."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def own(folder: Path) -> Folder:
    return Folder.from_folder(folder)


def test_each_text_is_one_id_wherever_it_stands(own: Folder) -> None:
    made = add_tokens(own, TAGS)
    ids = {text: made.ids[text] for text in TAGS}
    assert made.new_ids == tuple(range(own.vocab, own.vocab + len(TAGS))) == tuple(ids.values())
    assert made.known_ids == own.known_ids == ((0, own.vocab),)
    found = made.encode(TEXT).tolist()
    order = ("<action>", "STRONG_SELL", "</action>", "not yet", "SELL")
    assert [i for i in found if i in made.new_ids] == [ids[text] for text in order]
    for text in (TEXT, "nothing new at all", "¡Qué será! 数字"):
        assert made.decode(made.encode(text)) == text
    assert made.encode("one two three").tolist() == own.encode("one two three").tolist()
    assert made.token_bytes()[ids["</action>"]] == len("</action>")
    assert made.checksum != own.checksum


def test_texts_of_many_are_those_of_each(own: Folder) -> None:
    made = add_tokens(own, TAGS)
    many = [made.encode(text).tolist() for text in (TEXT, "nothing new at all", "¡Qué será! 数字")]
    assert made.decode_many([*many, [], many[0][:3]]) == [made.decode(ids) for ids in [*many, [], many[0][:3]]]
    with pytest.raises(ValueError, match="outside the vocabulary"):
        made.decode_many([many[0], [made.vocab]])


def test_it_comes_back_from_its_file_and_as_transformers_reads_it(own: Folder, tmp_path: Path) -> None:
    made = add_tokens(own, TAGS)
    made.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert (again.new_ids, again.known_ids) == (made.new_ids, made.known_ids)
    made.export(tmp_path / "out")
    read = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(read) == made.vocab
    assert read(TEXT, add_special_tokens=False).input_ids == made.encode(TEXT).tolist()
    assert read.decode(made.encode(TEXT).tolist(), skip_special_tokens=True) == TEXT
    assert [read(text, add_special_tokens=False).input_ids for text in TAGS] == [[i] for i in made.new_ids]


def test_files_that_list_added_tokens_list_the_new_ones(folder: Path, own: Folder) -> None:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    special = {"content": "<|endoftext|>", **flags, "special": True}
    files = {"tokenizer_config.json": json.dumps({"added_tokens_decoder": {"0": special}}), "added_tokens.json": "{}"}
    made = add_tokens(Folder(own._inner, files), ["<action>"])
    listed = json.loads(made.files["tokenizer_config.json"])["added_tokens_decoder"]
    assert listed[str(own.vocab)] == special | {"content": "<action>", "special": False}
    assert json.loads(made.files["added_tokens.json"]) == {"<action>": own.vocab}


def test_what_is_a_token_already_keeps_its_id(own: Folder, tmp_path: Path) -> None:
    """An exported folder has the tokens that its recipe names: nothing is new then, and nothing changes."""
    made = add_tokens(own, TAGS)
    made.export(tmp_path)
    again = add_tokens(Folder.from_folder(tmp_path), TAGS)
    assert again.new_ids == ()
    assert again.encode(TEXT).tolist() == made.encode(TEXT).tolist()
    piece = next(text for text in own.ids if text.isascii() and text.isalpha() and len(text) > 2)
    one = add_tokens(own, [piece, "<action>"])
    assert (one.ids[piece], one.new_ids) == (own.ids[piece], (own.vocab,))
    assert one.encode(f"x{piece}y").tolist().count(own.ids[piece]) == 1
    spare, grown = describe_added(one, [piece, "<action>"], own.vocab + 1), describe_added(one, [piece, "<action>"], own.vocab)
    assert spare[0] == f"1 token added, id {own.vocab}, in spare rows of the model's {own.vocab + 1}"
    assert grown[0].endswith(f"grow from {own.vocab} to {own.vocab + 1} rows")
    assert spare[1] == f"{piece!r} already is token {own.ids[piece]}: its row stays as it is"


@pytest.mark.parametrize(
    ("text", "why"),
    [("<|im_end|>", "a special token already"), ("Ġone", "spells ' one' as 'Ġone'"), ("né", "does not come back")],
)
def test_what_would_not_be_its_own_text_is_refused(own: Folder, text: str, why: str) -> None:
    own = add_tokens(own, [])
    if text == "Ġone" and text not in own.ids:
        text = next(t for t in own.ids if t.startswith("Ġ") and len(t) > 2)
        why = "spells"
    with pytest.raises(UserError, match=why) as refused:
        add_tokens(own, ["<action>", text])
    assert "data.tokenizer.add" in refused.value.message
    assert refused.value.fix


@pytest.mark.parametrize(
    ("add", "why"),
    [
        ([""], "empty"),
        (["  "], "blank"),
        ([" x"], "give 'x'"),
        (["a\nb"], "printed"),
        (["x", "y", "x"], "twice"),
        (["a\x00"], "printed"),
    ],
)
def test_recipes_name_texts_that_can_be_tokens(add: list[str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        FolderTokenizer(add=add)


@pytest.mark.skipif(
    not (FETCHED / "tokenizer.json").is_file(),
    reason="needs: windtunnel fetch smollm2-135m-instruct",
)
def test_a_published_tokenizer_takes_them_too(tmp_path: Path) -> None:
    """As transformers' own `add_tokens` does it: the same ids for the same text."""
    made = add_tokens(Folder.from_folder(FETCHED), TAGS)
    theirs = AutoTokenizer.from_pretrained(FETCHED)
    theirs.add_tokens(TAGS)
    assert made.encode(TEXT).tolist() == theirs(TEXT, add_special_tokens=False).input_ids
    made.export(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    talk = [{"role": "user", "content": "What now?"}, {"role": "assistant", "content": TEXT}]
    assert read.apply_chat_template(talk, return_dict=False) == theirs.apply_chat_template(talk, return_dict=False)
    assert read.decode(read(TEXT).input_ids, skip_special_tokens=True) == TEXT
