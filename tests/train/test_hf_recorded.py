"""Recorded passes of fine-tuning: they give what launched ones give, in few recordings; and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import ALONE, MODELS, VOCAB, drawn, engine_on, job_of, packed, weights_of
from hypothesis import given
from hypothesis import strategies as st
from recordings import Again, Recorder

from windtunnel.checkpoint import CheckpointStore, Facts
from windtunnel.data import Batch, BatchLoader, ConversationFile, bucketed
from windtunnel.data.packing import pack_ids
from windtunnel.model.recording import RUNS_BEFORE
from windtunnel.recipe import LoRA, UserError
from windtunnel.train.checkpoints import make_saver, restore_engine
from windtunnel.train.hf import HFEngine, HFJob, engine
from windtunnel.train.ranks import Ranks

WIDTH = 160
# Documents of a row: batches of them differ in how many there are, up to 16 or 64, and in the longest, up to 128 or 160.
PACKS = ((90, 60), (150,), (9,) * 17, (40,) * 3)
BUCKETS = 3
ROUNDS = 3 * (RUNS_BEFORE + 2)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Again]:
    """What is recorded from now on, in the place of CUDA graphs."""
    recorder = Recorder()
    monkeypatch.setattr(engine, "CudaRecorder", lambda stage: recorder)
    return recorder.made


def packs(number: int) -> Batch:
    """Two sequences of packed documents, another batch for each number."""
    rows = [(0, 1), (2, 2), (3, 0)][number % 3]
    return packed([drawn(PACKS[row], 10 * number + i) for i, row in enumerate(rows)], WIDTH)


def several(number: int) -> list[Batch]:
    return [packs(number), packs(number + 1)]


def results(
    job: HFJob, batches: Callable[[int], list[Any]], steps: int = ROUNDS, mark_at: int | None = None
) -> list[list[float]]:
    tokens = sum(2 * WIDTH for _ in batches(0))
    torch.manual_seed(0)  # bf16 weights are rounded at random
    sums = [job.step(batches(i), tokens, 3e-3, (lambda _: None) if i == mark_at else None) for i in range(steps)]
    return [one.tolist() for one in sums]


WAYS: dict[str, dict[str, Any]] = {
    "every weight": {},
    "tied": {"model": "qwen2", "recompute": "block"},
    "window": {"model": "mistral"},
    "adapter": {"lora": LoRA(rank=3), "compute": torch.bfloat16},
    "fp8": {"lora": LoRA(rank=3), "weights": "fp8", "compute": torch.bfloat16},
    "bf16": {"master": False, "compute": torch.bfloat16},
}


@pytest.mark.parametrize("way", WAYS)
def test_recorded_steps_are_those_that_are_launched_bit_for_bit(
    way: str, recordings: list[Again], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = dict(WAYS[way])
    config = MODELS[chosen.pop("model", "llama")] | {"max_position_embeddings": 256}
    found = []
    for most in (0, engine.MOST_RECORDINGS):  # none is made, or all: both round what a batch is
        monkeypatch.setattr(engine, "MOST_RECORDINGS", most)
        with job_of(config, recorded=True, sequence=WIDTH, **chosen) as job:
            found.append((results(job, several), weights_of(job)))
        assert len(recordings) == (BUCKETS if most else 0)
    (launched, weights), (recorded, others) = found
    assert launched == recorded
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_what_is_rounded_for_recordings_changes_the_results_by_rounding_alone(
    micro_batches: int, recordings: list[Again]
) -> None:
    def some(number: int) -> list[Batch]:
        return several(number)[:micro_batches]

    config = MODELS["llama"] | {"max_position_embeddings": 256}
    found = []
    for recorded in (False, True):
        with job_of(config, recorded=recorded, sequence=WIDTH) as job:
            found.append(torch.tensor(results(job, some)))
    assert recordings
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


def test_rows_of_text_are_recorded_too(recordings: list[Again]) -> None:
    def rows(number: int) -> list[Batch]:
        tokens = torch.randint(0, VOCAB, (2, WIDTH + 1), generator=torch.Generator().manual_seed(number))
        return [Batch(tokens[:, :-1], tokens[:, 1:], weights=torch.rand(2, WIDTH, generator=torch.Generator().manual_seed(1)))]

    config = MODELS["llama"] | {"max_position_embeddings": 256}
    found = []
    for recorded in (False, True):
        with job_of(config, recorded=recorded, sequence=WIDTH) as job:
            found.append(results(job, rows, 6))
    assert found[0] == found[1]
    assert len(recordings) == 1


def test_so_many_recordings_and_no_more(recordings: list[Again], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_RECORDINGS", 1)
    config = MODELS["llama"] | {"max_position_embeddings": 256}
    with job_of(config, recorded=True, sequence=WIDTH) as job:
        results(job, several)
    assert len(recordings) == 1


def test_a_marked_step_and_those_after_it_are_launched(recordings: list[Again]) -> None:
    config = MODELS["llama"] | {"max_position_embeddings": 256}
    found = []
    for mark_at in (None, 7):
        with job_of(config, recorded=True, sequence=WIDTH) as job:
            found.append(results(job, several, mark_at=mark_at))
            replayed = [each.work for each in recordings]
        for each in recordings:
            each.work = _never
        assert replayed
    assert found[0] == found[1]


def _never() -> None:
    raise AssertionError("a recording of another job")


class Packs:
    """The batches of a step follow from its number alone."""

    accumulation, epochs, step_sequences, wait_seconds = 2, 0.0, 1, 0.0

    def __init__(self) -> None:
        self.position = 0
        self._left: Iterator[Batch] = iter(())

    def next_batch(self) -> Batch:
        """The next of them."""
        found = next(self._left, None)
        if found is None:
            self._left = iter(several(self.position))
            self.position += 1
            found = next(self._left)
        return found

    def seek(self, position: int) -> None:
        """Begin with the batches of this step."""
        self.position, self._left = position, iter(())

    def close(self) -> None:
        """Nothing runs."""


def engine_over(job: HFJob) -> HFEngine:
    made = engine_on(job)
    made.feed.batches.close()
    object.__setattr__(made.feed, "batches", Packs())
    object.__setattr__(made.layout, "accumulation", 2)
    return made


def test_a_recorded_run_goes_on_and_begins_again_as_if_it_had_never_been_left(recordings: list[Again], tmp_path: Path) -> None:
    config = MODELS["qwen2"] | {"max_position_embeddings": 256}

    def steps(of: HFEngine, first: int, last: int) -> list[tuple[float, float]]:
        done = [of.step(step + 1, 0.5).result() for step in range(first, last)]
        return [(result.loss, result.gradient_norm) for result in done]

    with job_of(config, recorded=True, sequence=WIDTH) as job:
        made = engine_over(job)
        start = steps(made, 0, 10)
        saver = make_saver(made, CheckpointStore(tmp_path), ALONE)
        saver.save(Facts(10, made.state_dict().facts))
        assert saver.wait() is not None
        wanted, weights = steps(made, 10, 14), weights_of(job)
        assert len(recordings) == BUCKETS
        made.start_over(0)
        assert steps(made, 0, 10) == start
    with job_of(config, recorded=True, sequence=WIDTH) as job:
        made = engine_over(job)
        restore_engine(made, CheckpointStore(tmp_path).at(10))
        assert steps(made, 10, 14) == wanted
        assert all(torch.equal(weights[name], tensor) for name, tensor in weights_of(job).items())


@given(
    documents=st.integers(1, 5000), longest=st.integers(1, 4096), rows=st.sampled_from([1, 3, 16]),
    sequence=st.sampled_from([32, 100, 2048, 4096]),
)  # fmt: skip
def test_extents_are_rounded_up_to_what_there_can_be(documents: int, longest: int, rows: int, sequence: int) -> None:
    positions = rows * sequence
    documents, longest = min(documents, positions), min(longest, sequence)
    count, length = bucketed(documents, longest, positions, sequence)
    assert documents <= count <= positions
    assert longest <= length <= sequence
    assert bucketed(count, length, positions, sequence) == (count, length)
    least = max(16, positions // 256)
    assert count < 2 * max(documents, least, 1)
    assert length < 2 * max(longest, 64) + 1


def test_batches_that_are_recorded_score_few_numbers_of_positions(tmp_path: Path) -> None:
    draw, parts = np.random.default_rng(0), []
    for _ in range(300):
        length = int(draw.integers(2, 900))
        learned = draw.random(length) < draw.random()
        learned[-1] = True
        parts.append(pack_ids(draw.integers(0, 9, length), learned))
    np.concatenate(parts).tofile(tmp_path / "t.bin")
    file = ConversationFile(tmp_path / "t.bin", "uint32", sum(map(len, parts)), 9)
    for few, most in ((False, 99), (True, 8)):
        with BatchLoader(file, sequence=1024, micro_batch=4, accumulation=1, rank=0, world=1, seed=1, few_shapes=few) as batches:
            sizes = set()
            for _ in range(file.sequences(1024) // 4):
                batch = batches.next_batch()
                assert batch.target_rows is not None
                rows = batch.target_rows.tolist()
                there = (batch.targets.flatten() >= 0).nonzero()[:, 0].tolist()
                assert len(set(rows)) == len(rows) <= 4096
                assert set(there) <= set(rows)
                sizes.add(len(rows))
            assert len(sizes) <= most
            assert all(size % (512 if few else 256) == 0 for size in sizes)


@pytest.mark.parametrize(
    ("chosen", "says", "fix"),
    [
        ({"config": "llama", "attention": "mask"}, "attention by mask", "attention=auto"),
        ({"config": "gemma2"}, "attention by mask", "graphs=false"),
        ({"config": MODELS["llama"] | {"attention_dropout": 0.1}}, "dropout", "graphs=false"),
        ({"config": "qwen3_moe", "lora": LoRA(rank=2), "weights": "fp8-experts"}, "shared experts", "graphs=false"),
        ({"config": "llama", "ranks": Ranks(0, 2, torch.device("cpu"), None)}, "other ranks", "layout.shard=none"),
    ],
    ids=["mask", "capped", "dropout", "experts", "sharded"],
)
def test_what_cannot_be_recorded_is_refused_by_name(chosen: dict[str, Any], says: str, fix: str, recordings: list[Again]) -> None:
    with pytest.raises(UserError) as error, job_of(recorded=True, **chosen):
        pass
    assert error.value.message.startswith("stages.sft.graphs: ")
    assert says in error.value.message
    assert fix in (error.value.fix or "")
