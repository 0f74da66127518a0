"""Several sources by weight: shares that hold at any position, every sequence of each source once an epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.data import BatchLoader, ConversationFile, MixtureFile, ValidationBatches, prepare
from windtunnel.data.mixture import MixtureOrder
from windtunnel.data.tokens import TokenFile
from windtunnel.recipe import (
    ArithmeticCorpus,
    BPETokenizer,
    CharacterTokenizer,
    ConversationCorpus,
    MixtureCorpus,
    Recipe,
    Source,
    TextCorpus,
    load_recipe,
)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    raw=st.lists(st.floats(0.01, 10), min_size=4, max_size=4),
    seed=st.integers(0, 2**64 - 1),
    first=st.integers(0, 10_000),
)
def test_any_position_can_be_entered_and_shares_hold(counts: list[int], raw: list[float], seed: int, first: int) -> None:
    weights = raw[: len(counts)]
    order = MixtureOrder(counts, weights, seed)
    whole = order(0, 400)
    again = MixtureOrder(counts, weights, seed)
    assert np.concatenate([again(a, 100) for a in (0, 100, 200, 300)]).tolist() == whole.tolist()
    edges = np.cumsum([0, *counts])
    sources = np.searchsorted(edges, whole, side="right") - 1
    for k, count in enumerate(counts):
        assert order.visits(k, 400) == int((sources == k).sum())
        assert abs(order.visits(k, first) - first * weights[k] / sum(weights)) < 20
        rows = whole[sources == k][:count] - edges[k]
        assert len(set(rows.tolist())) == len(rows)


def mixture(tmp_path: Path) -> MixtureFile:
    parts = []
    for k, count in enumerate((101, 61)):
        path = tmp_path / f"{k}.bin"
        (np.arange(count, dtype=np.uint16) + 1000 * k).tofile(path)
        parts.append(TokenFile(path, "uint16", count, 2000))
    return MixtureFile(tmp_path, "uint16", 162, 2000, parts=tuple(parts), weights=(3.0, 1.0), names=("a", "b"))


def test_ranks_and_resuming_change_nothing(tmp_path: Path) -> None:
    file = mixture(tmp_path)

    def loader(**options: int) -> BatchLoader:
        settings = {"micro_batch": 2, "accumulation": 1, "rank": 0, "world": 1, "seed": 5} | options
        return BatchLoader(file, sequence=10, **settings)  # type: ignore[arg-type]

    with loader(micro_batch=4) as one:
        alone = [one.next_batch().input_ids.tolist() for _ in range(30)]
    with loader(rank=0, world=2) as a, loader(rank=1, world=2) as b:
        assert [a.next_batch().input_ids.tolist() + b.next_batch().input_ids.tolist() for _ in range(30)] == alone
    with loader(micro_batch=4, position=40) as late:
        assert [late.next_batch().input_ids.tolist() for _ in range(20)] == alone[10:]
    second = sum(row[0] >= 1000 for batch in alone for row in batch)
    assert second == pytest.approx(30, abs=3)
    epochs = file.epochs_of_sources(10, 5, 120)
    assert epochs == {"a": (120 - second) / 10, "b": second / 6}


def test_validation_takes_every_source(tmp_path: Path) -> None:
    file = mixture(tmp_path)
    for limit in (None, 40):
        batches = ValidationBatches(file, sequence=10, micro_batch=3, limit=limit)
        targets = np.concatenate([b.targets.numpy().ravel() for b in batches])
        assert int((targets >= 0).sum()) == batches.targets == (160 if limit is None else 40)
        assert {int(t) // 1000 for t in targets[targets >= 0]} == {0, 1}


def recipe(tokenizer: Any, *sources: Source) -> Recipe:
    charlm = load_recipe("charlm")
    corpus = MixtureCorpus(sources=list(sources))
    data = charlm.data.model_copy(update={"corpus": corpus, "tokenizer": tokenizer, "validation": 0.1})
    return charlm.model_copy(update={"data": data})


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(), BPETokenizer(vocab_size=300)])
def test_documents_of_two_kinds_share_a_tokenizer(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"Line {i}, naïve.\n" * 9}) + "\n" for i in range(200)))
    sources = [
        Source(corpus=TextCorpus(files=[str(path)]), weight=2, name="book"),
        Source(corpus=ArithmeticCorpus(documents=3000), weight=1),
    ]
    made = prepare(recipe(tokenizer, *sources), tmp_path / "cache")
    assert isinstance(made.train, MixtureFile)
    assert made.train.names == ("book", "arithmetic-2")
    assert made.train.weights == (2.0, 1.0)
    assert made.tokenizer.decode(made.train.parts[1].array[1:20]).startswith("H")
    assert "naïve" in made.tokenizer.decode(made.train.parts[0].array[1:200])
    assert prepare(recipe(tokenizer, *sources), tmp_path / "cache").checksum == made.checksum
    (made.folder / "1" / "train.bin").write_bytes(b"damaged")
    assert not prepare(recipe(tokenizer, *sources), tmp_path / "cache").reused


def test_conversations_are_mixed_and_packed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = [{"prompt": f"{name} {i}?", "completion": f"{name} is {i}."} for i in range(150)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sources = [Source(corpus=ConversationCorpus(files=[str(tmp_path / f"{n}.jsonl")]), name=n) for n in ("a", "b")]
    made = prepare(recipe(BPETokenizer(vocab_size=300), *sources), tmp_path / "cache")
    assert isinstance(made.train, MixtureFile)
    assert all(isinstance(part, ConversationFile) for part in made.train.parts)
    with BatchLoader(made.train, sequence=64, micro_batch=3, accumulation=1, rank=0, world=1, seed=1) as loader:
        batch = loader.next_batch()
    assert batch.document_ids is not None
    assert (batch.targets >= 0).any()
    held_out = sum(int((b.targets >= 0).sum()) for b in ValidationBatches(made.validation, sequence=64, micro_batch=2))
    assert held_out == sum(int(p.packing(64).targets.sum()) for p in made.validation.parts)  # type: ignore[attr-defined]
