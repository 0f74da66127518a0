"""Byte-level BPE by tiktoken: the same ids as Hugging Face's library, or none."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe
from windtunnel.data.fast_bpe import GPT2, KNOWN, LLAMA, QWEN, FastBPE
from windtunnel.data.subwords import WORDS

TEXTS = [
    "The price of 12.34 is +5.6% from its fifty-day average; it's 1,000,000 more than we'LL say.\n\nWhy?  Because\t'tis so.\r\n",
    "Ticker: ZABC\nAs of: 2024-03-15\nrsi_14: 61.2\n  indented\n\n\nend   ",
    "naïve café — “quoted” … ½ ² Ω Привет 中文字 かな カナ 한국어 😀 x",
] * 20


def made(words: str | None = None, **changed: Any) -> dict[str, Any]:
    """Return the content of a tokenizer.json, trained on a few texts."""
    inner = tokenizers.Tokenizer.from_str(train_bpe(TEXTS, 700, (CHATML_START, CHATML_END)).content)
    if words == GPT2:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif words is not None:
        split = pre_tokenizers.Split(tokenizers.Regex(words), "isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    content: dict[str, Any] = json.loads(inner.to_str())
    return content | changed


def ids_of(fast: FastBPE, text: str) -> list[int] | None:
    found = fast.encode(text)
    return None if found is None else np.frombuffer(found, dtype=np.uint32).tolist()


def both(content: dict[str, Any]) -> tuple[FastBPE, tokenizers.Tokenizer]:
    fast = FastBPE.of(json.dumps(content), [WORDS])
    assert fast is not None
    return fast, tokenizers.Tokenizer.from_str(json.dumps(content))


CUTS = [WORDS, GPT2, QWEN, LLAMA]
PAIRS = {words: both(made(words)) for words in CUTS}
PIECES = ["\n", " ", "\t", "\r\n", "'s", "'LL", "12", "ab", "Z", "é", "—", "中", "😀", ".", "<", "%"]
PIECES += ["\u00a0", "\x1c", "\x85", CHATML_END]


@given(st.sampled_from(CUTS), st.lists(st.sampled_from(PIECES) | st.text(st.characters(codec="utf-8"), max_size=3), max_size=20))
@settings(max_examples=400, deadline=None)
def test_the_ids_are_the_same_or_none(words: str, pieces: list[str]) -> None:
    fast, slow = PAIRS[words]
    text = "".join(pieces)
    found = ids_of(fast, text)
    assert found in (None, slow.encode(text, add_special_tokens=False).ids)
    if text.isascii():
        assert found is not None


@pytest.mark.parametrize("words", CUTS)
def test_both_libraries_put_every_known_character_into_the_same_words(words: str) -> None:
    fast, slow = PAIRS[words]
    drawn = random.Random(1)
    known = [chr(code) for first, last in KNOWN for code in range(first, last + 1)]
    # Each between others of every kind: letters, figures, blanks, signs and line ends.
    around = [f"{drawn.choice(PIECES[:12])}{c}{drawn.choice(PIECES[:12])}" for c in known]
    texts = ["".join(around[i : i + 40]) for i in range(0, len(around), 40)]
    wanted = [found.ids for found in slow.encode_batch_fast(texts, add_special_tokens=False)]
    for text, ids in zip(texts, wanted, strict=True):
        assert ids_of(fast, text) == ids, text


def test_what_may_differ_is_not_taken() -> None:
    content = made()
    model, added = content["model"], content["added_tokens"]
    merges = model["merges"]
    unknown = made(r"\p{L}+|[^\p{L}]+")
    others = [
        unknown,
        content | {"model": model | {"merges": [merges[1], merges[0], *merges[2:]]}},  # ids out of the order of merges
        content | {"model": model | {"merges": merges[:-1]}},  # a token that no merge makes
        content | {"model": model | {"dropout": 0.1}},
        content | {"normalizer": {"type": "NFKC"}},
        content | {"added_tokens": [added[0] | {"lstrip": True}, *added[1:]]},
        content | {"pre_tokenizer": None},
    ]
    assert FastBPE.of(json.dumps(content), [WORDS]) is not None
    assert [FastBPE.of(json.dumps(other), [WORDS]) for other in others] == [None] * len(others)
    assert FastBPE.of(json.dumps(content), []) is None


def test_a_token_that_its_own_bytes_do_not_become_is_not_taken() -> None:
    """Of 'abc' by (ab, c), where (b, c) comes first: alone it becomes a, bc, but tiktoken would join these."""
    content = made()
    vocab = {text: i for text, i in content["model"]["vocab"].items() if len(text) == 1 or text.startswith("<|")}
    base = len(vocab)
    merges = [["b", "c"], ["a", "b"], ["ab", "c"]]
    vocab |= {"bc": base, "ab": base + 1, "abc": base + 2}
    model = content["model"] | {"vocab": vocab, "merges": merges}
    assert FastBPE.of(json.dumps(content | {"model": model}), [WORDS]) is None


def test_text_that_is_not_normal_is_left_to_the_other_library() -> None:
    fast, slow = both(made(normalizer={"type": "NFC"}))
    assert fast.encode("cafe\u0301") is None
    assert ids_of(fast, "café") == slow.encode("café", add_special_tokens=False).ids


def test_a_byte_that_is_no_token_is_left_to_the_other_library() -> None:
    content = made()
    vocab = {text: i for text, i in content["model"]["vocab"].items() if text != "~"}
    fast, slow = both(content | {"model": content["model"] | {"vocab": vocab}})
    assert fast.encode("about ~5") is None
    assert ids_of(fast, "about 5") == slow.encode("about 5", add_special_tokens=False).ids
