"""Ranks of a save: as threads of this process, and, run as a script, as processes with gloo between them."""

import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.checkpoint import CheckpointStore, Facts, Group, Saver, Slice

sys.path.append(str(Path(__file__).parents[1]))  # as a script it sees its own folder alone
from waiting import HANG


@dataclass
class Board:
    """What the threads of a group hand each other."""

    world: int
    given: dict[int, Any] = field(default_factory=dict)
    back: list[Any] | None = None

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.world, timeout=HANG)


@dataclass(frozen=True)
class Threads(Group):
    """A group whose ranks are threads."""

    board: Board | None = None

    def gather(self, mine: Any) -> list[Any] | None:
        assert self.board is not None
        self.board.given[self.rank] = mine
        self.board.barrier.wait()
        found = [self.board.given[rank] for rank in range(self.world)] if self.rank == 0 else None
        self.board.barrier.wait()
        return found

    def scatter(self, theirs: list[Any] | None) -> Any:
        assert self.board is not None
        if self.rank == 0:
            self.board.back = theirs
        self.board.barrier.wait()
        assert self.board.back is not None
        mine = self.board.back[self.rank]
        self.board.barrier.wait()
        return mine


def on_ranks(world: int, work: Callable[[Group], Any]) -> list[Any]:
    """Call `work` with each rank's group, all at once; returns what each gave."""
    board = Board(world)
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, [Threads(rank, world, None, board) for rank in range(world)]))


def save_once(store: CheckpointStore, parts: Mapping[str, Mapping[str, Any]], facts: Facts, group: Group, **rest: Any) -> Saver:
    """Save and wait."""
    saver = Saver(store, parts, group=group, **rest)
    saver.save(facts)
    assert saver.wait(HANG) is not None
    return saver


SHAPES = {"matrix": (7, 5), "vector": (11,), "number": (), "none": (0, 3), "cube": (3, 4, 5), "table": (1000, 3)}


def truth(seed: int) -> dict[str, torch.Tensor]:
    """The whole tensors."""
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return made | {
        "half": torch.randn(33, generator=generator).bfloat16(),
        "codes": torch.randint(0, 255, (64,)).byte() * 0 + seed,
    }


def cut(tensors: Mapping[str, torch.Tensor], rank: int, world: int) -> dict[str, Slice]:
    """This rank's slices: an equal share of every flattened tensor, which begins anywhere in it."""
    parts = {}
    for name, tensor in tensors.items():
        flat, size = tensor.reshape(-1), -(-tensor.numel() // world)
        start = min(flat.numel(), rank * size)
        parts[name] = Slice(flat[start : start + size].clone(), tuple(tensor.shape), start)
    return parts


def _process(folder: Path) -> None:
    """Load what one process saved, in other cuts and as DTensors; then save it so."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store, wanted = CheckpointStore(folder), truth(3)
    mesh = init_device_mesh("cpu", (world,))
    slices = cut({name: torch.zeros_like(tensor) for name, tensor in wanted.items()}, rank, world)
    shards = {name: distribute_tensor(torch.zeros_like(wanted[name]), mesh, [Shard(0)]) for name in ("matrix", "cube", "half")}
    assert all(isinstance(shard, DTensor) for shard in shards.values())
    checkpoint = store.at(1)
    checkpoint.load(slices)
    checkpoint.load(shards)
    for name, mine in cut(wanted, rank, world).items():
        assert torch.equal(slices[name].local, mine.local), name
    for name, shard in shards.items():
        assert torch.equal(shard.full_tensor(), wanted[name]), name
    group = Group(rank, world, dist.group.WORLD)
    saver = Saver(store, {"model": {**slices, **shards}, "optimizer": cut(wanted, rank, world)}, group=group)
    saver.save(Facts(2, {"from": world}))
    saver.wait(HANG)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _process(Path(sys.argv[1]))
