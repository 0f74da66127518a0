"""Traces of steps on tensors without data: exact arithmetic, extrapolation, agreement with real steps and torch's tracker."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

from windtunnel.recipe import load_recipe
from windtunnel.train.trace import Depths, choose_depths, cut

pytestmark = pytest.mark.end_to_end

GIB = 2**30
CONFIG = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}  # fmt: skip
LAYOUT = {
    "ranks": 1, "micro_batch": 2, "accumulation": 1, "sequence": 512, "precision": "bf16", "compile": False, "device": "cuda",
    "shard": "full", "recompute": "none",
}  # fmt: skip
# Bytes of one parameter's fp32 weight and AdamW's moments.
HELD = 12
SPAWN = multiprocessing.get_context("spawn")


def parameters(layers: int) -> int:
    attention, mlp = 256 * (256 + 128 + 128 + 256), 3 * 256 * 704
    return 2 * 4096 * 256 + 256 + layers * (attention + mlp + 2 * 256)


def _traced(request: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own: a trace changes torch."""
    from windtunnel.train import TraceRequest, run_trace

    overrides = request.pop("overrides", ())
    recipe = load_recipe(request.pop("name", "sft"), overrides)
    return run_trace(TraceRequest(recipe=recipe, **request), lambda stage: None)


class Tracer:
    """One process for all traces: it imports once."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def trace(self, **request: Any) -> dict[str, Any]:
        return self.pool.apply(_traced, (request,))

    def causal(self, layout: dict[str, Any] | None = None, *overrides: str, **more: Any) -> dict[str, Any]:
        chosen = ["model.adapter=null", *overrides]
        return self.trace(overrides=chosen, layout=LAYOUT | (layout or {}), vocab=None, config=CONFIG, blocks=[0] * 9, **more)


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    with SPAWN.Pool(1) as pool:
        yield Tracer(pool)


def phase(trace: dict[str, Any], name: str) -> dict[str, float]:
    return next(entry["gib"] for entry in trace["phases"] if entry["name"] == name)


def total(trace: dict[str, Any], name: str) -> float:
    return sum(phase(trace, name).values())


@pytest.mark.parametrize("layout", [{"compile": True}, {"ranks": 4, "recompute": "block", "accumulation": 2}])
def test_a_few_blocks_stand_for_all(tracer: Tracer, layout: dict[str, Any]) -> None:
    few, whole = tracer.causal(layout), tracer.causal(layout, whole=True)
    assert few["traced_blocks"] == [3, 5]
    assert whole["traced_blocks"] == [9]
    assert few["peak_phase"] == whole["peak_phase"]
    assert few["peak_gib"] == pytest.approx(whole["peak_gib"], rel=0.005)
    for entry in few["phases"]:
        assert sum(entry["gib"].values()) == pytest.approx(total(whole, entry["name"]), rel=0.02), entry["name"]


def test_weights_and_states_are_counted_to_the_byte(tracer: Tracer) -> None:
    trace = tracer.causal()
    for ranks, found in ((1, trace), (4, tracer.causal({"ranks": 4}))):
        at = phase(found, "loss")
        # Rounded up to allocations of 512 bytes; norms have fewer rows than that.
        assert (at["weights"] + at["optimizer_states"]) * GIB == pytest.approx(HELD * parameters(9) / ranks, rel=0.002)
    assert phase(trace, "optimizer")["gradients"] * GIB == pytest.approx(4 * parameters(9), rel=0.01)
    assert trace["peak_gib"] == max(total(trace, entry["name"]) for entry in trace["phases"])


def test_recomputed_blocks_keep_their_inputs_alone(tracer: Tracer) -> None:
    kept, again = tracer.causal(), tracer.causal({"recompute": "block"})
    tokens = LAYOUT["micro_batch"] * LAYOUT["sequence"]
    inputs = 9 * tokens * CONFIG["hidden_size"] * 2
    assert phase(again, "backward, head")["activations"] * GIB == pytest.approx(inputs, rel=0.35)
    assert phase(kept, "backward, head")["activations"] > 5 * phase(again, "backward, head")["activations"]


def test_adapters_leave_no_gradients_of_the_frozen_weights(tracer: Tracer) -> None:
    trace = tracer.causal({}, "model.adapter={rank: 8}")
    at = phase(trace, "optimizer")
    assert at["gradients"] * GIB == pytest.approx(at["optimizer_states"] * GIB / 2, rel=0.05)
    assert at["gradients"] < 0.2 * at["weights"]


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_gpt_takes_the_path_of_a_gpu(tracer: Tracer, precision: str) -> None:
    overrides = ["model.depth=4", "model.sequence=512", f"stages.pretrain.precision={precision}"]
    layout = LAYOUT | {"shard": "optimizer", "precision": precision}
    trace = tracer.trace(name="charlm", overrides=overrides, layout=layout, vocab=4096, config=None, blocks=[])
    at = phase(trace, "loss")
    assert at["gradients"] == pytest.approx(at["weights"], rel=0.01)
    assert ("compute_weights" in at) == (precision == "fp8")
    assert trace["traced_blocks"] == [4]


def test_depths_have_the_same_ends() -> None:
    assert choose_depths([0] * 28) == Depths(3, 5, 28, 1, 2)
    assert choose_depths([0, 0, 0, *[1] * 58]) == Depths(6, 8, 61, 4, 2)  # dense first, then experts
    assert choose_depths([0] * 4) == Depths(4, 4, 4, 4, 0)
    for blocks in ([0, 1] * 16, [0, 0, 0, 1] * 12, [0, *[1, 2, 3] * 9]):
        depths = choose_depths(blocks)
        assert depths.large < depths.whole == len(blocks)
        for depth in (depths.small, depths.large):
            assert blocks[:depth][: depths.head] == blocks[: depths.head]
            assert blocks[:depth][-depths.tail :] == blocks[-depths.tail :]


def test_what_does_not_repeat_is_traced_whole() -> None:
    assert choose_depths([*[0] * 20, 1]) == Depths(21, 21, 21, 21, 0)


def test_lists_of_layers_are_cut_with_them() -> None:
    config = {"num_hidden_layers": 4, "layer_types": ["a", "b", "a", "b"], "rope": [1, 2, 3, 4]}
    assert cut(config, 2) == {"num_hidden_layers": 2, "layer_types": ["a", "b"], "rope": [1, 2, 3, 4]}
    assert cut({"text_config": config}, 3)["text_config"]["num_hidden_layers"] == 3
    assert json.dumps(config)  # unchanged and whole


def _ledger_and_torchs_tracker(world: int) -> tuple[int, int]:
    """Peaks in bytes of one step of a small FSDP2 model, as the ledger and as torch's own tracker have them."""
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from windtunnel.train.trace_ledger import MemoryLedger
    from windtunnel.train.trace_steps import fake_ranks

    found = []
    with fake_ranks(world):
        mesh = init_device_mesh("cpu", (world,))
        for kind in ("ledger", "tracker"):
            with FakeTensorMode():
                model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)))
                for block in model:
                    fully_shard(block, mesh=mesh)
                fully_shard(model, mesh=mesh)
                optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
                x = torch.zeros(4096, 256)
                with MemoryLedger() if kind == "ledger" else FSDPMemTracker(model, optimizer) as watch:
                    if isinstance(watch, MemoryLedger):
                        watch.hold(list(model.parameters()), "weights")
                    model(x).square().mean().backward()
                    optimizer.step()
                if isinstance(watch, MemoryLedger):
                    found.append(max(peak.total for peak in watch.peaks()))
                else:
                    found.append(watch.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
    return found[0], found[1]


@pytest.mark.parametrize("world", [1, 4])
def test_peaks_are_those_of_torchs_own_tracker(tracer: Tracer, world: int) -> None:
    ledger, theirs = tracer.pool.apply(_ledger_and_torchs_tracker, (world,))
    assert ledger == pytest.approx(theirs, rel=0.01)
