"""What any number of ranks saved is read by any other number, in any cut, bit for bit."""

import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.checkpoint import CheckpointStore, Facts, Group, Saver, Slice, SpoiledWeights
from windtunnel.checkpoint.slices import boxes

sys.path.insert(0, str(Path(__file__).parent))
from checkpoint_ranks import cut, on_ranks, save_once, truth
from waiting import HANG

pytestmark = pytest.mark.end_to_end

SCRIPT = Path(__file__).with_name("checkpoint_ranks.py")
SHAPE = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@given(SHAPE, st.data())
def test_boxes_are_the_range_in_its_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = torch.arange(size).view(shape)
    found = [
        whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))].reshape(-1)
        for offsets, sizes in boxes(shape, start, stop)
    ]
    assert torch.cat([torch.empty(0, dtype=torch.long), *found]).tolist() == list(range(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 100))
def test_slices_of_some_ranks_are_slices_of_others(tmp_path_factory, before: int, after: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    store, whole = CheckpointStore(tmp_path_factory.mktemp("c")), truth(seed)

    def save(group: Group) -> None:
        model = {**whole, "sliced": cut(whole, group.rank, before)["cube"]}
        save_once(store, {"model": model, "optimizer": cut(whole, group.rank, before)}, Facts(1), group)

    on_ranks(before, save)
    found = store.newest_good()
    assert found is not None
    assert found.world == before
    for rank in range(after):
        mine = cut({name: torch.zeros_like(tensor) for name, tensor in whole.items()}, rank, after)
        found.load(mine, "optimizer")
        for name, wanted in cut(whole, rank, after).items():
            assert torch.equal(mine[name].local, wanted.local)
    weights = found.weights()
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.items())
    assert torch.equal(weights["sliced"], whole["cube"])


def test_what_is_replicated_is_written_once_and_spread_over_the_ranks(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    same = {f"layer{i}": torch.randn(1000) for i in range(8)}
    on_ranks(2, lambda group: save_once(store, {"model": same}, Facts(1), group))
    found = store.at(1)
    sizes = [found.files[f"model/__{rank}_0.distcp"].bytes for rank in range(2)]
    assert sum(sizes) < 8 * (4000 + 4096)
    assert max(sizes) < 1.2 * min(sizes)
    assert sorted(path.name for path in found.path.iterdir()) == ["checkpoint.json", "model"]


def launch(folder: Path) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder)]
    return [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]


def test_one_process_two_with_gloo_and_one_again(tmp_path: Path) -> None:
    whole = truth(3)
    save_once(CheckpointStore(tmp_path), {"model": whole}, Facts(1), Group())
    for process in launch(tmp_path):
        words = process.communicate(timeout=HANG)[0]
        assert process.returncode == 0, words
    found = CheckpointStore(tmp_path).newest_good(with_optimizer=True)
    assert found is not None
    assert (found.step, found.world, found.state) == (2, 2, {"from": 2})
    for part in ("model", "optimizer"):
        assert all(torch.equal(tensor, whole[name]) for name, tensor in found.part(part).tensors())
    assert not list(found.path.glob("rank-*"))


def test_a_rank_with_spoiled_weights_spoils_the_save_of_all(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save_once(store, {"model": truth(3)}, Facts(1), Group())

    def save(group: Group) -> None:
        slices = cut(truth(3), group.rank, 2)
        if group.rank == 1:
            slices["vector"].local[0] = float("nan")
        saver = Saver(store, {"model": slices}, group=group)
        saver.save(Facts(2))
        with pytest.raises(SpoiledWeights, match="weights after step 2 are not finite"):
            saver.wait(HANG)

    on_ranks(2, save)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_rank_that_never_writes_fails_the_save_and_leaves_nothing(tmp_path: Path) -> None:
    store, told = CheckpointStore(tmp_path), []
    save_once(store, {"model": truth(1)}, Facts(1), Group())

    def save(group: Group) -> None:
        made = Saver(
            store, {"model": cut(truth(1), group.rank, 2)}, group=group, part_timeout=0.2, on_event=lambda *e: told.append(e)
        )
        if group.rank == 0:
            made.save(Facts(2))
            with pytest.raises(Exception, match="rank 1 did not write its part"):
                made.wait()

    on_ranks(2, save)
    assert [event[0] for event in told] == ["checkpoint_failed"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_no_two_tensors_of_a_buffer_and_no_copy_of_it_are_needed() -> None:
    """Slices of one flat buffer are staged as one stretch, and each has a storage of its own."""
    from windtunnel.checkpoint.staging import Staging

    flat = torch.arange(1000.0)
    staging = Staging({name: flat[a:b] for name, a, b in (("x", 10, 500), ("y", 500, 510), ("z", 700, 900))})
    assert [host.numel() for _, host in staging._copies] == [500, 200]
    assert all(host.untyped_storage().nbytes() == host.nbytes for host in staging.host.values())
    flat += 1
    staging.begin()
    staging.finish()
    assert torch.equal(staging.host["y"], flat[500:510])
    assert Slice(flat[:6], (2, 3)).size() == torch.Size([2, 3])
