"""The loader's promises: every token once an epoch, resume by position, no leaks of threads or errors."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.data import BatchLoader, TokenFile, ValidationBatches
from windtunnel.data.tokens import SequenceOrder
from windtunnel.recipe import UserError


def token_file(folder: Path, count: int, dtype: str = "uint32") -> TokenFile:
    """Token i of the file is i, so that a batch shows which tokens it holds."""
    path = folder / f"{count}.bin"
    np.arange(count, dtype=dtype).tofile(path)
    return TokenFile(path, dtype, count)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


def global_rows(loader_ranks: list[BatchLoader], steps: int) -> list[int]:
    """First tokens of all rows in global order: micro-batch, rank, row."""
    rows = []
    for _ in range(steps * loader_ranks[0].accumulation):
        for loader in loader_ranks:
            x, _ = loader.next_batch()
            rows += x[:, 0].tolist()
    return rows


def ranks(
    tokens: TokenFile, world: int, micro: int, accumulation: int, sequence: int, seed: int, position: int = 0
) -> list[BatchLoader]:
    return [
        BatchLoader(
            tokens,
            sequence=sequence,
            micro_batch=micro,
            accumulation=accumulation,
            rank=r,
            world=world,
            seed=seed,
            position=position,
        )
        for r in range(world)
    ]


def close(loaders: list[BatchLoader]) -> None:
    for loader in loaders:
        loader.close()


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(2, 400),
    sequence=st.integers(1, 17),
    world=st.integers(1, 4),
    micro=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 3),
)
def test_every_token_is_a_target_once_an_epoch(
    folder: Path, count: int, sequence: int, world: int, micro: int, accumulation: int, seed: int, epoch: int
) -> None:
    tokens = token_file(folder, count)
    loaders = ranks(tokens, world, micro, accumulation, sequence, seed, epoch * tokens.sequences(sequence))
    total = tokens.sequences(sequence)
    seen: Counter[int] = Counter()
    taken = 0
    while taken < total:
        for loader in loaders:
            x, y = loader.next_batch()
            for row_x, row_y in zip(x, y, strict=True):
                if taken < total:
                    real = row_y >= 0
                    assert (row_y[real] == row_x[real] + 1).all()
                    seen.update(row_y[real].tolist())
                taken += 1
    close(loaders)
    assert seen == Counter(range(1, count))


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(2, 300),
    layouts=st.permutations([(1, 12, 1), (2, 3, 2), (3, 2, 2), (4, 3, 1), (6, 1, 2), (12, 1, 1)]),
    steps=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_resume_on_another_world_size_continues_exactly(
    folder: Path, count: int, layouts: list[tuple[int, int, int]], steps: int, seed: int
) -> None:
    tokens = token_file(folder, count)
    (world, micro, accumulation), (world2, micro2, accumulation2) = layouts[:2]
    straight = ranks(tokens, 1, 12, 1, 5, seed)
    expected = global_rows(straight, 2 * steps)
    before = ranks(tokens, world, micro, accumulation, 5, seed)
    found = global_rows(before, steps)
    position = before[0].position
    assert {loader.position for loader in before} == {12 * steps}
    after = ranks(tokens, world2, micro2, accumulation2, 5, seed, position)
    found += global_rows(after, steps)
    close([*straight, *before, *after])
    assert found == expected


def test_position_counts_whole_steps_only(folder: Path) -> None:
    (loader,) = ranks(token_file(folder, 200), 1, 2, 3, 10, 0)
    positions = []
    for _ in range(7):
        loader.next_batch()
        positions.append(loader.position)
    loader.close()
    assert positions == [0, 0, 6, 6, 6, 12, 12]
    assert loader.sequences == 20
    assert loader.epoch == 0
    assert loader.epochs == pytest.approx(0.6)


def test_skip_leaves_out_exactly_those_steps(folder: Path) -> None:
    tokens = token_file(folder, 500)
    (straight,), (skipping,) = ranks(tokens, 1, 2, 2, 10, 3), ranks(tokens, 1, 2, 2, 10, 3)
    rows = global_rows([straight], 6)
    found = global_rows([skipping], 2)
    skipping.skip(3)
    found += global_rows([skipping], 1)
    assert skipping.position == straight.position
    assert found == rows[:8] + rows[20:]
    skipping.next_batch()
    with pytest.raises(AssertionError, match="middle of a step"):
        skipping.skip(1)
    close([straight, skipping])


def test_epochs_differ_and_seeds_differ() -> None:
    order = SequenceOrder(1000, seed=5)
    first, second = order(0, 1000), order(1000, 1000)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert (first != second).any()
    assert (SequenceOrder(1000, seed=6)(0, 1000) != first).any()
    assert (order(990, 20) == np.concatenate([first[-10:], second[:10]])).all()


def test_the_order_is_fixed_forever() -> None:
    """Runs resume under other versions of NumPy: these numbers must never change."""
    assert SequenceOrder(10, seed=1337)(0, 20).tolist() == FIXED


FIXED = [2, 4, 5, 6, 9, 7, 3, 8, 0, 1, 8, 3, 7, 9, 0, 1, 6, 5, 2, 4]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_ids_survive_their_narrow_types(tmp_path: Path, dtype: str) -> None:
    values = np.array([0, 1, 2**8 - 1, 2**16 - 1, 2**31 - 1, 7, 0, 9], dtype=np.uint64)
    values = np.minimum(values, min(np.iinfo(dtype).max, 2**31 - 1)).astype(dtype)
    values.tofile(tmp_path / "t.bin")
    (loader,) = ranks(TokenFile(tmp_path / "t.bin", dtype, 8), 1, 1, 1, 7, 0)
    x, y = loader.next_batch()
    loader.close()
    assert str(x.dtype) == str(y.dtype) == "torch.int64"
    assert x[0].tolist() == values[:-1].tolist()
    assert y[0].tolist() == values[1:].tolist()


def test_batches_do_not_change_after_they_were_given(folder: Path) -> None:
    (loader,) = ranks(token_file(folder, 2000), 1, 2, 1, 8, 0)
    batches = [loader.next_batch() for _ in range(30)]
    copies = [(x.clone(), y.clone()) for x, y in batches]
    for _ in range(30):
        loader.next_batch()
    loader.close()
    assert all((x == a).all() and (y == b).all() for (x, y), (a, b) in zip(batches, copies, strict=True))


def test_the_thread_ends_and_its_errors_surface(tmp_path: Path) -> None:
    path = tmp_path / "gone.bin"
    (loader,) = ranks(TokenFile(path, "uint8", 100), 1, 1, 1, 8, 0)
    with pytest.raises(FileNotFoundError):
        loader.next_batch()
    np.arange(100, dtype=np.uint8).tofile(path)
    loader.next_batch()  # recovers once the cause is gone
    assert loader.wait_seconds > 0
    loader.close()
    loader.close()
    assert not [t for t in threading.enumerate() if t.name == "prefetch"]
    with pytest.raises(RuntimeError, match="closed"):
        loader.next_batch()


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(2, 300),
    sequence=st.integers(1, 17),
    world=st.integers(1, 5),
    micro=st.integers(1, 4),
    limit=st.none() | st.integers(1, 400),
)
def test_validation_covers_the_beginning_once_over_all_ranks(
    folder: Path, count: int, sequence: int, world: int, micro: int, limit: int | None
) -> None:
    tokens = token_file(folder, count)
    seen: Counter[int] = Counter()
    numbers = set()
    for rank in range(world):
        batches = ValidationBatches(tokens, sequence=sequence, micro_batch=micro, rank=rank, world=world, limit=limit)
        number = 0
        for x, y in batches:
            assert x.shape == y.shape == (micro, sequence)
            assert (y[y >= 0] == x[y >= 0] + 1).all()
            seen.update(y[y >= 0].tolist())
            number += 1
        assert number == len(batches)
        numbers.add(number)
    assert len(numbers) == 1
    assert seen == Counter(range(1, 1 + min(count - 1, limit or count)))


@pytest.mark.gpu
def test_batches_reach_the_gpu_unharmed(tmp_path: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    values = np.random.default_rng(0).integers(0, 60_000, 3_000_001).astype(np.uint16)
    values.tofile(tmp_path / "t.bin")
    tokens = TokenFile(tmp_path / "t.bin", "uint16", len(values))

    def loader(device: str) -> BatchLoader:
        return BatchLoader(tokens, sequence=2048, micro_batch=8, accumulation=2, rank=0, world=1, seed=1, device=device)

    with loader("cuda") as fast, loader("cpu") as plain:
        for _ in range(400):  # more than two epochs: host buffers and device memory are used again and again
            x, y = fast.next_batch()
            expected_x, expected_y = plain.next_batch()
            busy = torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda")
            assert x.is_cuda
            assert (x.cpu() == expected_x).all()
            assert (y.cpu() == expected_y).all()
            del busy
    for (x, y), (a, b) in zip(
        ValidationBatches(tokens, sequence=2048, micro_batch=8, device="cuda"),
        ValidationBatches(tokens, sequence=2048, micro_batch=8),
        strict=True,
    ):
        assert (x.cpu() == a).all()
        assert (y.cpu() == b).all()


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 120),
    sequence=st.integers(1, 17),
    micro=st.integers(1, 3),
    world=st.integers(1, 3),
    limit=st.none() | st.integers(1, 150),
    dtype=st.sampled_from(["uint8", "uint16", "uint32"]),
)
def test_masking_targets_never_changes_inputs(
    folder: Path, count: int, sequence: int, micro: int, world: int, limit: int | None, dtype: str
) -> None:
    """Token i of the file is i: inputs count up from the row's start, whatever is missing among the targets."""
    tokens = token_file(folder, count, dtype)
    loaders = ranks(tokens, world, micro, 1, sequence, 3)
    for loader in loaders:
        for _ in range(tokens.sequences(sequence) + 1):
            check_rows(*loader.next_batch(), count)
    close(loaders)
    for rank in range(world):
        used = tokens.targets(limit) + 1
        for x, y in ValidationBatches(tokens, sequence=sequence, micro_batch=micro, rank=rank, world=world, limit=limit):
            check_rows(x, y, used)


def check_rows(x: torch.Tensor, y: torch.Tensor, count: int) -> None:
    assert x.shape == y.shape
    assert x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
    for inputs, targets in zip(x.tolist(), y.tolist(), strict=True):
        if targets[0] == -1:  # an empty row
            assert set(inputs) == {0}
            continue
        here = range(inputs[0], min(inputs[0] + len(inputs) + 1, count))
        assert inputs == [*here, *[0] * len(inputs)][: len(inputs)]
        assert targets == [*here[1:], *[-1] * len(inputs)][: len(inputs)]


def test_an_id_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    np.array([1, 2, 3, 4, 9, 5], dtype=np.uint16).tofile(path)
    (loader,) = ranks(TokenFile(path, "uint16", 6, vocab=9), 1, 1, 1, 5, 0)
    with pytest.raises(UserError, match=r"t\.bin: sequence 0 has token id 9 at offset 4, and the vocabulary has 9"):
        loader.next_batch()
    with pytest.raises(UserError, match="token id 9"):
        list(ValidationBatches(TokenFile(path, "uint16", 6, vocab=9), sequence=5, micro_batch=1))
