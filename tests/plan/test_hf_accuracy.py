"""Plans beside what was measured and counted: the committed measurements, and what the engine's blocks really keep."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from windtunnel.model import hf_shape
from windtunnel.plan import make_plan
from windtunnel.plan.engine_fsdp import loss_chunk
from windtunnel.plan.hf_kept import kept
from windtunnel.plan.hf_work import Workload
from windtunnel.recipe import LayoutChoice, LoRA, load_recipe
from windtunnel.rig import parse_rig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results" / "planning-h200.json"


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's reader of configurations."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import planning

    return planning


@pytest.mark.parametrize("split", ["calibrate", "held_out"])
def test_memory_and_time_are_near_what_was_measured(planning: ModuleType, split: str) -> None:
    measured = json.loads(RESULTS.read_text())["configs"]
    entries = {entry["name"]: entry["trial"] for entry in measured if not planning.again(entry)}
    memory, seconds = [], []
    for config in planning.load_configs():
        if config.split != split or config.name not in entries:
            continue
        trial, plan = entries[config.name], config.plan()
        assert plan.layout == config.layout()
        if trial["failure"] is not None:
            assert trial["out_of_memory"]
            assert not plan.fits, f"{config.name} is said to fit and ran out"
            continue
        memory.append(abs(plan.reserved_gib / trial["reserved_gib"] - 1))
        seconds.append(abs(plan.step_seconds / trial["step_seconds"] - 1))
    assert len(memory) >= 12
    assert statistics.median(memory) <= 0.03
    assert max(memory) <= 0.08
    assert statistics.median(seconds) <= 0.08
    assert max(seconds) <= 0.20


def test_constants_were_fitted_to_one_half_only(planning: ModuleType) -> None:
    import fit_planning

    held_out = {config.name for config in planning.load_configs() if config.split == "held_out"}
    read = {m.config.name for base in ("charlm", "sft") for m in fit_planning.read(base)}
    assert read
    assert not read & held_out


def test_one_rank_holds_gradients_where_they_were_cast_to(planning: ModuleType) -> None:
    from windtunnel.plan.types import OUTSIDE_ALLOCATOR

    # What is computed again keeps no copies of weights, so that the row holds although its engine gathered.
    name = "qwen2.5-7b-full-2k-near"
    entry = next(e for e in json.loads(RESULTS.read_text())["configs"] if e["name"] == name)
    config = next(c for c in planning.load_configs() if c.name == name)
    assert "one buffer" not in entry["before"]
    plan = config.plan()
    idle = {*OUTSIDE_ALLOCATOR, "fragmentation"}
    held = sum(gib for component, gib in plan.components.items() if component not in idle)
    assert held == pytest.approx(entry["trial"]["allocated_gib"], rel=0.003)
    alone = [moment for moment in plan.timeline if moment.name.startswith("backward")]
    assert len(alone) == 4
    assert not any("communication" in moment.components for moment in alone), "of what is no collective there is no buffer"
    overrides = [*config.overrides, f"stages.sft.batch_tokens={2 * plan.layout.batch_tokens}"]
    twice = make_plan(load_recipe("sft", overrides), parse_rig("H200"))
    assert twice.layout.accumulation == 2
    assert any("communication" in moment.components for moment in twice.timeline), "gradients that are added to others"


def test_what_was_measured_before_a_change_is_fitted_as_it_was(planning: ModuleType) -> None:
    import fit_planning

    rows = {m.config.name: m for m in fit_planning.read("sft")}
    row, several = rows["qwen2.5-0.5b-full-2k"], rows["qwen2.5-7b-full-4k-x4"]
    assert not row.before
    assert not several.before
    old, constants = replace(row, before=(fit_planning.ONE_BUFFER,)), fit_planning.HFConstants()
    as_it_was, now = (fit_planning.hf_seconds(one)(constants) for one in (old, row))
    trained, micro, moved = old.trial["trained"], old.config.accumulation, 4.8e12 * constants.bandwidth_efficiency
    assert as_it_was["step"] - now["step"] == pytest.approx(8 * micro * trained / moved, rel=0.01), "8 bytes a micro-batch"
    assert as_it_was["forward"] == now["forward"]


DENSE = dict(
    hidden_size=96, intermediate_size=352, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
    vocab_size=512, max_position_embeddings=256, tie_word_embeddings=False,
)  # fmt: skip
SPARSE = DENSE | dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40, decoder_sparse_step=1, norm_topk_prob=True)
T = 64


@pytest.mark.parametrize("way", ["weights", "adapters", "attention"])
@pytest.mark.parametrize(
    ("family", "compiled"),
    [("llama", False), ("qwen3_moe", False)]
    + [pytest.param(family, True, marks=pytest.mark.slow) for family in ("llama", "qwen3", "olmo2", "qwen3_moe")],
)
def test_what_blocks_keep_is_what_was_counted(family: str, compiled: bool, way: str, tmp_path: Path) -> None:
    lora = None if way == "weights" else LoRA(rank=4, alpha=8.0, targets="all" if way == "adapters" else "attention")
    config = {"model_type": family} | (SPARSE if "moe" in family else DENSE)
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = hf_shape(str(tmp_path))
    work = Workload(shape, "stages.sft", T, T, lora, "bf16", True, "fp32", "bf16", compiled, 1, LayoutChoice())
    planned = kept(shape.blocks[1], work).whole
    counted = _bytes_kept(config, lora, compiled, layers=3) - _bytes_kept(config, lora, compiled, layers=2)
    assert planned == pytest.approx(counted / T, rel=0.03)


def _bytes_kept(config: dict[str, Any], lora: LoRA | None, compiled: bool, layers: int) -> int:
    """Bytes of all tensors of T tokens that autograd keeps in one forward pass of the engine."""
    import torch

    from windtunnel.train.hf import build_hf
    from windtunnel.train.ranks import Ranks

    torch._dynamo.reset()
    job = build_hf(
        config | {"num_hidden_layers": layers}, lora=lora, weights="bf16", master=True, states="fp32", recompute="none",
        compile=compiled, shard="full", ranks=Ranks(0, 1, torch.device("cpu"), None), sequence=T, seed=0,
    )  # fmt: skip
    tokens = torch.randint(0, 512, (1, T))
    job.step([(tokens, tokens)], T, 1e-4)
    sizes: dict[int, int] = {}
    alive = []  # so that no address is used twice

    def pack(tensor: Any) -> Any:
        if any(size % T == 0 for size in tensor.shape):
            alive.append(tensor)
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        job.network(tokens, tokens)
    return sum(sizes.values())


def test_chunks_of_logits_are_the_engines() -> None:
    from windtunnel.train.hf.loss import chunk_tokens

    for vocab in (512, 32_000, 50_304, 128_256, 151_936, 262_144):
        assert loss_chunk(vocab) == chunk_tokens(vocab)


def test_one_rank_reserves_what_is_alive() -> None:
    overrides = ["model.config=qwen2.5-7b", "model.adapter=null", "layout.shard=full", "stages.sft.micro_batch=1"]
    recipe = load_recipe("sft", overrides)
    one, two = (make_plan(recipe, parse_rig(rig)).components["fragmentation"] for rig in ("H200", "2xH200"))
    assert two > one + 2, "pools of other streams idle only where there are other ranks"


@pytest.mark.parametrize(("dim", "hidden"), [(256, 384), (1024, 128)])
def test_what_experts_in_fp8_keep_and_need_is_what_was_counted(dim: int, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every storage that operations allocate, while a layer's experts run forward in bf16 on a CPU."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter
    from torch.utils.weak import WeakIdKeyDictionary

    from windtunnel.model import BlockFP8, ExpertGroup, fp8_experts  # type: ignore[attr-defined]
    from windtunnel.model.expert_parallel import through_experts
    from windtunnel.model.fp8_experts import _Product
    from windtunnel.plan.hf_work import fine_tuning

    class Live(TorchDispatchMode):
        now = peak = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for tensor in tree_iter(out):
                if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in seen:
                    seen[storage] = True
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.gone, storage.nbytes())
            return out

        def gone(self, size: int) -> None:
            self.now -= size

    monkeypatch.setattr(fp8_experts, "DECODED_BYTES", 1)  # one expert at a time, which is little here
    count, K, N = 16, 8, 256
    seen: WeakIdKeyDictionary = WeakIdKeyDictionary()
    weights = []
    for rows, columns, parts in ((hidden, dim, 2), (dim, hidden, 1)):
        codes = torch.zeros(count, parts, rows, columns).to(torch.float8_e4m3fn)
        seen[codes.untyped_storage()] = True
        weights.append(BlockFP8(codes, torch.ones(count, parts, -(-rows // 128), -(-columns // 128)), (128, 128)))

    def local(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        gate, up = _Product.apply(rows, weights[0], counts).chunk(2, -1)
        return _Product.apply(torch.nn.functional.silu(gate) * up, weights[1], counts)

    x = torch.randn(N, dim, dtype=torch.bfloat16, requires_grad=True)
    chosen, shares = torch.stack([torch.randperm(count)[:K] for _ in range(N)]), torch.rand(N, K, requires_grad=True)
    with Live() as live:
        out = through_experts(x, chosen, shares, count=count, group=ExpertGroup(), local=local)
    sets = ["model.config=qwen3-30b-a3b", "model.weights=fp8-experts", "model.adapter.targets=attention"]
    work = fine_tuning(load_recipe("sft", sets))
    block = work.shape.blocks[0]
    assert block.experts is not None
    experts = replace(block.experts, count=count, per_token=K, hidden=hidden)
    counted = kept(replace(block, dim=dim, experts=experts), work)
    assert live.now - out.untyped_storage().nbytes() == pytest.approx(N * counted.routed, rel=0.1)
    assert live.peak == pytest.approx(N * 2 * K * (2 * dim + 4 * hidden), rel=0.1)
