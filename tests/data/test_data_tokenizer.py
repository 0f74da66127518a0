"""Tokenizers: round trips, unknown characters, streaming, files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.data import BPE, Characters, StreamDecoder, Tokenizer, UnknownCharacter, load_tokenizer
from windtunnel.data.bpe import train_bpe
from windtunnel.data.documents import batch_of
from windtunnel.recipe import UserError

TEXTS = ["def add(a, b):\n    return a + b\n", "naïve café — 漢字 😀", "numbers 12345 and 3.14\r\n\r\n"]
unicode_text = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def bpe() -> BPE:
    return train_bpe(TEXTS * 20, 400)


@given(unicode_text)
def test_characters_round_trip_with_any_alphabet(text: str) -> None:
    tokenizer = Characters("".join(sorted(set(text) | {"x"})))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text)
    assert tokenizer.token_bytes()[ids].sum() == len(text.encode())
    assert tokenizer.bos not in ids.tolist()


@given(st.lists(unicode_text.filter(bool), min_size=1), st.sampled_from(["error", "skip"]))
def test_documents_are_encoded_as_prompts_are(texts: list[str], unknown: str) -> None:
    alphabet = "".join(sorted(set("".join(texts))))
    if unknown == "skip":
        alphabet = alphabet[::2]
    tokenizer = Characters(alphabet, unknown)
    ids, lengths, skipped = tokenizer.encode_documents(batch_of("file", [t.encode() for t in texts]))
    kept = ["".join(c for c in t if c in alphabet) for t in texts]
    assert lengths.tolist() == list(map(len, kept))
    assert tokenizer.decode(ids) == "".join(kept)
    assert skipped == Counter(c for t in texts for c in t if c not in alphabet)


def test_bos_is_zero_and_ids_are_stable() -> None:
    tokenizer = Characters("ba")
    assert tokenizer.bos == 0
    assert tokenizer.vocab == 3
    assert tokenizer.encode("ab", bos=True).tolist() == [0, 2, 1]
    assert tokenizer.decode([0, 2, 0, 1]) == "ab"
    assert tokenizer.token_bytes().tolist() == [0, 1, 1]
    assert tokenizer.dtype == np.uint8


def test_large_alphabets_widen_the_tokens() -> None:
    tokenizer = Characters("".join(map(chr, range(0x4E00, 0x4E00 + 255))))
    assert tokenizer.vocab == 256
    assert tokenizer.dtype == np.uint8
    assert tokenizer.decode(tokenizer.encode(tokenizer.alphabet)) == tokenizer.alphabet
    assert Characters("".join(map(chr, range(0x4E00, 0x4E00 + 256)))).dtype == np.uint16


def test_unknown_character_in_a_prompt_says_which_and_where() -> None:
    with pytest.raises(UnknownCharacter) as caught:
        Characters("ab").encode("ab=漢")
    assert caught.value.character == "="
    assert caught.value.offset == 2
    assert "'=' (U+003D)" in caught.value.message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, UserError)
    for text in ("\ud800", "\U0010ffff", "\0"):
        with pytest.raises(UnknownCharacter):
            Characters("ab").encode(text)


def test_alphabet_is_checked() -> None:
    with pytest.raises(UserError, match=r"'a' \(U\+0061\) is given twice"):
        Characters("aba")
    with pytest.raises(UserError, match="surrogate"):
        Characters("a\ud800")


@given(unicode_text)
def test_bpe_round_trips_any_text(text: str) -> None:
    tokenizer = _shared_bpe()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes()[ids].sum() == len(text.encode())


def test_bpe_learns_and_keeps_bos_for_itself(bpe: BPE) -> None:
    assert bpe.bos == 0
    assert 257 < bpe.vocab <= 400
    assert len(bpe.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    spelled = bpe.encode("<|bos|>")
    assert 0 not in spelled.tolist()
    ids, lengths, _ = bpe.encode_documents(batch_of("file", [b"<|bos|> x", TEXTS[1].encode()]))
    assert 0 not in ids.tolist()
    assert bpe.decode(ids[: lengths[0]]) == "<|bos|> x"
    assert bpe.decode(ids[lengths[0] :]) == TEXTS[1]
    assert bpe.encode("half \ud800 pair").dtype == np.uint16


@given(unicode_text)
def test_streaming_gives_the_same_text(text: str) -> None:
    tokenizer = _shared_bpe()
    decoder = StreamDecoder(tokenizer)
    parts = [decoder.push(i) for i in tokenizer.encode(text)]
    assert "".join(parts) + decoder.finish() == text


def test_streaming_holds_back_unfinished_characters(bpe: BPE) -> None:
    first, *others = (bpe.pieces.index(bytes([b])) for b in "😀".encode())
    decoder = StreamDecoder(bpe)
    assert decoder.push(first) == ""
    assert decoder.finish() == "\ufffd"
    decoder = StreamDecoder(bpe)
    assert [decoder.push(i) for i in (first, *others)] == ["", "", "", "😀"]


def test_saved_tokenizers_come_back(tmp_path: Path, bpe: BPE) -> None:
    for tokenizer in (Characters("abé漢\n", "skip"), bpe):
        tokenizer.save(tmp_path / "tokenizer.json")
        again: Tokenizer = load_tokenizer(tmp_path)
        assert type(again) is type(tokenizer)
        assert again.pieces == tokenizer.pieces
        assert again.encode("ab").tolist() == tokenizer.encode("ab").tolist()
    assert 0 not in load_tokenizer(tmp_path / "tokenizer.json").encode("<|bos|>").tolist()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"kind": "character"}', '{"model": 3}', '{"kind": "character", "alphabet": "aa"}']
)
def test_damaged_tokenizer_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError):
        load_tokenizer(tmp_path)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            Characters("ab").decode([wrong])


_cache: list[BPE] = []


def _shared_bpe() -> BPE:
    if not _cache:
        _cache.append(train_bpe(TEXTS * 20, 400))
    return _cache[0]
