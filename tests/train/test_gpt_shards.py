"""A GPT whose weights and gradients are sharded over two ranks trains as one whose weights are whole on each."""

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from conftest import TINY, events, final_weights, losses, set_ranks, train_in_processes
from waiting import HANG

from windtunnel.recipe import Layout, load_recipe
from windtunnel.run import RunFolder
from windtunnel.train import Ranks, train

NewRun = Callable[..., Path]
VOCAB = 300
CASES: dict[str, tuple[str, ...]] = {
    "plain": (),
    # Three blocks, five matrices of a shape and tables on two ranks: nothing comes out even.
    "uneven": (
        "model.depth=3", "model.aspect=9", "model.head_dim=10", "model.kv_heads=1", "model.mlp=swiglu",
        "stages.pretrain.optimizer.clip=0.05",
    ),
}  # fmt: skip
BOTH = ("optimizer", "full")


def layout(shard: str, *, ranks: int = 2, accumulation: int = 1, precision: str = "fp32") -> Layout:
    return Layout(ranks, 4, accumulation, 32, precision, False, "cpu", shard=shard)


# Steps of the two, side by side in the same processes


def outcome(recipe: object, spread: Layout, ranks: Ranks, folder: Path) -> dict[str, object]:
    """Losses of five steps, with a validation, an export and a new beginning among them; the weights before and after."""
    from windtunnel.train import local_part
    from windtunnel.train.gpt import build_gpt_engine
    from windtunnel.train.trial import random_feed

    feed = random_feed(spread, ranks, VOCAB, folder, 0)
    engine = build_gpt_engine(recipe, spread, ranks, feed)  # type: ignore[arg-type]
    begun = dict(engine.export(torch.float32))
    taken = [engine.step(i + 1, 0.1).result() for i in range(3)]
    validated = engine.validate()
    taken += [engine.step(i + 4, 0.1).result() for i in range(2)]
    sizes = {name: local_part(value).numel() for name, value in engine.state_dict().tensors.items() if name.startswith("model.")}
    ended = dict(engine.export(torch.float32))
    engine.validate()  # leaves the root's weights gathered
    engine.start_over(0)
    again = dict(engine.export(torch.float32))
    once_more = engine.step(1, 0.1).result()
    engine.close()
    return {
        "begun": begun, "ended": ended, "again": again, "sizes": sizes, "validated": validated.loss,
        "losses": [result.loss for result in taken], "norms": [result.gradient_norm for result in taken],
        "once_more": once_more.loss,
    }  # fmt: skip


def child(rank: int, port: int, out: str, text: str) -> None:
    from windtunnel.train import group_shards
    from windtunnel.train.ranks import join_ranks

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    found: dict[tuple[str, ...], dict[str, object]] = {}
    folder = Path(out)
    with join_ranks("cpu") as ranks:
        for name, sets in CASES.items():
            recipe = load_recipe(Path(text), sets)
            for shard in BOTH:
                found[name, shard] = outcome(recipe, layout(shard), ranks, folder)
                found[name, shard, "twice"] = outcome(recipe, layout(shard, accumulation=2), ranks, folder)
            at_once, group_shards.ROUND_BYTES = group_shards.ROUND_BYTES, 0
            found[name, "full", "one by one"] = outcome(recipe, layout("full"), ranks, folder)
            group_shards.ROUND_BYTES = at_once
        for shard in BOTH:
            found[shard, "bf16"] = outcome(load_recipe(Path(text)), layout(shard, precision="bf16"), ranks, folder)
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:  # type: ignore[type-arg]
    """What each of two processes got, of every case and both ways to hold weights."""
    out = tmp_path_factory.mktemp("shards")
    (out / "tiny.yaml").write_text(TINY)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sys.path.insert(0, str(Path(__file__).parent))
    mp.spawn(child, (port, str(out), str(out / "tiny.yaml")), nprocs=2)
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(2)]


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("name", CASES)
def test_sharded_weights_are_trained_as_whole_ones(name: str, together: list[dict]) -> None:  # type: ignore[type-arg]
    """Bit for bit where a step is one micro-batch: two numbers have one sum, whoever adds them."""
    for found in together:
        whole, sharded = found[name, "optimizer"], found[name, "full"]
        assert sharded["losses"] == whole["losses"]
        assert sharded["losses"][-1] < sharded["losses"][0]
        assert (sharded["validated"], sharded["once_more"]) == (whole["validated"], whole["once_more"])
        np.testing.assert_allclose(sharded["norms"], whole["norms"], rtol=1e-5)
    for weights in ("begun", "ended", "again"):
        assert_equal(together[0][name, "full"][weights], together[0][name, "optimizer"][weights])
    assert_equal(together[0][name, "full"]["begun"], together[0][name, "full"]["again"])
    assert not together[1][name, "full"]["ended"], "the first rank alone receives what is exported"


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_add_up(name: str, together: list[dict]) -> None:  # type: ignore[type-arg]
    """Sums of four numbers depend on their order, and Muon iterates on what comes of it."""
    for found in together:
        np.testing.assert_allclose(found[name, "full", "twice"]["losses"], found[name, "optimizer", "twice"]["losses"], rtol=2e-4)


@pytest.mark.parametrize("name", CASES)
def test_matrices_may_be_made_whole_one_by_one(name: str, together: list[dict]) -> None:  # type: ignore[type-arg]
    for found in together:
        np.testing.assert_allclose(found[name, "full", "one by one"]["losses"], found[name, "full"]["losses"], rtol=2e-5)


def test_in_bf16_the_gradient_of_a_micro_batch_is_rounded_before_it_is_summed(together: list[dict]) -> None:  # type: ignore[type-arg]
    whole, sharded = (together[0][shard, "bf16"] for shard in BOTH)
    assert sharded["losses"][0] == whole["losses"][0], "weights are cast, then gathered: the same numbers"
    np.testing.assert_allclose(sharded["losses"], whole["losses"], rtol=5e-3)
    np.testing.assert_allclose(sharded["norms"], whole["norms"], rtol=2e-2)


@pytest.mark.parametrize("name", CASES)
def test_ranks_hold_parts_that_make_up_the_whole(name: str, together: list[dict]) -> None:  # type: ignore[type-arg]
    parts = [found[name, "full"]["sizes"] for found in together]
    whole = together[0][name, "optimizer"]["sizes"]
    assert {tensor: parts[0][tensor] + parts[1][tensor] for tensor in whole} == whole
    assert abs(sum(parts[0].values()) - sum(parts[1].values())) < 0.1 * sum(whole.values())


# Runs


def spread_over(folder: Path, ranks: int, shard: str) -> None:
    with RunFolder.open(folder, write=True) as run:
        set_ranks(run, ranks)
        run.manifest["plan"]["layout"]["shard"] = shard
        run.update(plan=run.manifest["plan"])


def new(new_run: NewRun, shard: str, ranks: int = 2) -> Path:
    folder = new_run("budget.steps=25", "checkpoints.every=5 steps")
    spread_over(folder, ranks, shard)
    return folder


def train_together(folder: Path) -> None:
    process = train_in_processes(folder, 2)
    printed = process.communicate(timeout=HANG)[0]
    assert process.returncode == 0, printed


def kill_after_a_checkpoint(folder: Path) -> None:
    """Two ranks, until there is another one than before."""
    there = set((folder / "checkpoints").glob("step-????????"))
    process = train_in_processes(folder, 2)
    while not set((folder / "checkpoints").glob("step-????????")) - there and process.poll() is None:
        time.sleep(0.02)
    process.kill()


@pytest.mark.timeout(300)
def test_a_killed_sharded_run_goes_on_bit_for_bit(new_run: NewRun) -> None:
    folder, killed = new(new_run, "full"), new(new_run, "full")
    train_together(folder)
    kill_after_a_checkpoint(killed)
    train_together(killed)
    assert "resumed" in events(killed)
    assert losses(killed) == losses(folder)
    one, other = final_weights(folder), final_weights(killed)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.timeout(300)
def test_a_run_goes_on_with_weights_held_otherwise(new_run: NewRun) -> None:
    whole, moved = new(new_run, "optimizer", ranks=1), new(new_run, "full")
    assert train(whole) == 0
    kill_after_a_checkpoint(moved)
    for shard in ("optimizer", "full"):
        spread_over(moved, 2, shard)
        kill_after_a_checkpoint(moved)
    spread_over(moved, 1, "optimizer")
    assert train(moved) == 0
    assert events(moved).count("resumed") >= 2
    alone, found = losses(whole), losses(moved)
    assert found.keys() == alone.keys()
    assert max(abs(found[step] - value) for step, value in alone.items()) < 2e-4
