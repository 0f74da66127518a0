"""Documents as ids: the faster library gives the very ids that the other one does, and steps aside where it would not."""

from __future__ import annotations

import json
import sys
import sysconfig
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.data import BPE, load_tokenizer
from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe
from windtunnel.data.documents import batch_of
from windtunnel.data.subwords import Subwords

LIBRARY = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
ODD = [
    "<|bos|> and <|im_end|>",
    "a\r\n\r\n  b \t\n",
    "it's I'LL 'ſ 12345",
    "日本語、テキスト。 e\u0301 😀👩‍👩‍👧 \u0085\u00a0\u200b",
    "x" * 5000,
    "ab" * 3000,
]


@pytest.fixture(scope="module")
def bpe() -> BPE:
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in LIBRARY]
    return train_bpe([*texts, "naïve café 日本語 テキスト"], 2000, (CHATML_START, CHATML_END))


def same_ids(tokenizer: BPE, texts: list[str]) -> None:
    """Both libraries cut these alike."""
    assert tokenizer._fast is not None
    batch = batch_of("file", [text.encode() for text in texts])
    ids, lengths, _ = tokenizer.encode_documents(batch)
    slow, counts, _ = Subwords.encode_documents(tokenizer, batch)
    assert lengths.tolist() == counts.tolist()
    assert np.array_equal(ids, slow)
    assert ids.dtype == slow.dtype


def test_a_whole_corpus_has_the_same_ids(bpe: BPE) -> None:
    same_ids(bpe, [path.read_text(encoding="utf-8", errors="replace") for path in LIBRARY])


def test_odd_text_has_the_same_ids(bpe: BPE) -> None:
    same_ids(bpe, ODD)
    assert bpe.bos not in bpe.encode_documents(batch_of("file", [ODD[0].encode()]))[0].tolist()


def test_characters_of_every_sort_have_the_same_ids_in_every_company(bpe: BPE) -> None:
    # Nearly all letters are of scripts without cases, one like the other.
    codes = [code for code in range(1, sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cs", "Co", "Cn")]
    characters = [chr(code) for code in codes if unicodedata.category(chr(code)) != "Lo" or code % 29 == 0]
    assert len(characters) > 15_000
    # Between letters, digits, signs and blanks, each of which takes in others.
    same_ids(bpe, ["".join(f"a{c}b 1{c}2 .{c}, {c} \n{c}'{c}s" for c in characters)])


@given(st.text(alphabet=st.one_of(st.sampled_from("aab 's12\n\r\t.,é日"), st.characters(codec="utf-8")), max_size=60))
def test_any_text_has_the_same_ids(text: str) -> None:
    same_ids(_shared(), [text, f"x{text}"])


def test_runs_that_the_faster_library_gives_up_on_are_encoded_all_the_same(bpe: BPE) -> None:
    same_ids(bpe, [" " * 1_500_000, "e" * 100_000])


def test_a_tokenizer_that_was_made_otherwise_keeps_its_own_library(tmp_path: Path, bpe: BPE) -> None:
    content = json.loads(bpe.content)
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+|\W"
    (tmp_path / "words.json").write_text(json.dumps(content))
    content = json.loads(bpe.content)
    content["model"]["merges"][0], content["model"]["merges"][1] = content["model"]["merges"][1::-1]
    (tmp_path / "order.json").write_text(json.dumps(content))
    for name in ("words.json", "order.json"):
        other = load_tokenizer(tmp_path / name)
        assert isinstance(other, BPE)
        assert other._fast is None
        ids, _, _ = other.encode_documents(batch_of("file", [b"self, a_b"]))
        assert ids.tolist() == other.encode("self, a_b").tolist()


_made: list[BPE] = []


def _shared() -> BPE:
    if not _made:
        _made.append(train_bpe([path.read_text(encoding="utf-8", errors="replace") for path in LIBRARY[:10]], 500))
    return _made[0]
