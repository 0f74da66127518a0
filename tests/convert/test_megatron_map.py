"""The map between Hugging Face's tensors and Megatron-Core's: what transformers writes, every bit there and back, and slices."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from windtunnel.convert import (
    Ranks,
    from_slices,
    join,
    layers_of_stages,
    megatron_parameters,
    megatron_problem,
    rank_shapes,
    rank_slice,
    separate,
)
from windtunnel.recipe import UserError

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 96}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "vocab_size": 248, "head_dim": 16},
    "qwen2": {**SMALL, "vocab_size": 256, "tie_word_embeddings": True},
    "qwen3": {**SMALL, "vocab_size": 256, "head_dim": 32},
    "qwen3_moe": {**SMALL, "vocab_size": 256, "head_dim": 32, "num_experts": 8, **EXPERTS},
    "deepseek_v3": {
        **SMALL, "num_key_value_heads": 8, "vocab_size": 248, "n_routed_experts": 8, **EXPERTS, "first_k_dense_replace": 1,
        "n_shared_experts": 2, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "n_group": 2, "topk_group": 1,
    },
    "deepseek_v3-plain-queries": {
        **SMALL, "num_key_value_heads": 8, "vocab_size": 248, "n_routed_experts": 4, **EXPERTS, "first_k_dense_replace": 0,
        "n_shared_experts": 1, "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "n_group": 2, "topk_group": 1, "model_type": "deepseek_v3",
    },
}  # fmt: skip
FAMILIES = tuple(CONFIGS)


def config_of(name: str) -> dict[str, Any]:
    return {"model_type": name, **CONFIGS[name]}


def random_sources(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=made).bfloat16() for p in megatron_parameters(config) for name, shape in p.sources}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_map_names_every_tensor_that_transformers_writes_with_its_shape(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = config_of(name)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        written = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no dict
    raw = json.loads((tmp_path / "config.json").read_text())
    mapped = dict(source for parameter in megatron_parameters(raw) for source in parameter.sources)
    assert mapped == written


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_every_bit_survives_the_way_there_and_back_in_slices_too(name: str, tensor: int) -> None:
    config = config_of(name)
    sources = random_sources(config)
    back: dict[str, torch.Tensor] = {}
    for parameter in megatron_parameters(config):
        whole = join(parameter, [sources[each] for each, _ in parameter.sources])
        assert tuple(whole.shape) == parameter.shape
        slices = [rank_slice(parameter, whole, rank, tensor) for rank in range(tensor)]
        assert {tuple(each.shape) for each in slices} == {parameter.on_ranks(tensor)}
        assert torch.equal(from_slices(parameter, slices), whole)
        back |= dict(zip([each for each, _ in parameter.sources], separate(parameter, whole), strict=True))
    assert back.keys() == sources.keys()
    for each, tensor_there in sources.items():
        assert torch.equal(back[each], tensor_there)


def test_queries_keys_and_values_are_interleaved_by_group() -> None:
    (parameter,) = [
        p for p in megatron_parameters(config_of("llama")) if p.name == "decoder.layers.0.self_attention.linear_qkv.weight"
    ]
    rows = {"q": 8 * 16, "k": 4 * 16, "v": 4 * 16}
    marks = {"q": 0, "k": 1000, "v": 2000}  # row r of part p holds marks[p] + r
    sources = [(torch.arange(rows[part]) + marks[part]).float()[:, None].expand(-1, 64) for part in "qkv"]
    whole = join(parameter, sources)[:, 0]
    # Group 1: queries of heads 2 and 3, key head 1, value head 1.
    group = whole.view(4, 4, 16)[1]
    assert group[:, 0].tolist() == [32, 48, 1016, 2016]


def test_a_slice_of_gate_and_up_has_a_part_of_each() -> None:
    (parameter,) = [p for p in megatron_parameters(config_of("llama")) if p.name == "decoder.layers.0.mlp.linear_fc1.weight"]
    gate, up = torch.zeros(96, 64), torch.ones(96, 64)
    part = rank_slice(parameter, join(parameter, [gate, up]), 1, 2)
    assert part[:, 0].tolist() == [0.0] * 48 + [1.0] * 48


@pytest.mark.parametrize("name", FAMILIES)
def test_ranks_together_hold_the_model_once(name: str) -> None:
    config = config_of(name)
    experts = config.get("n_routed_experts") or config.get("num_experts") or 0
    for tensor, expert, pipeline in itertools.product((1, 2), (1, 2) if experts else (1,), (1, 2, 3)):
        ranks, parameters = Ranks(tensor, expert, pipeline), megatron_parameters(config)
        assert megatron_problem(config, ranks) is None
        held = 0
        for stage in range(pipeline):
            for local, shape in rank_shapes(parameters, ranks, stage).items():
                size = torch.Size(shape).numel()
                split = ".experts." in local
                shared = any(
                    p.split is not None and local.split("layers.")[-1].partition(".")[2] in p.name
                    for p in parameters
                    if p.expert is None
                )
                copy_of_tied = local == "output_layer.weight" and "output_layer.weight" not in {p.name for p in parameters}
                held += 0 if copy_of_tied else size * (expert if split else tensor if shared else 1)
        assert held == sum(torch.Size(p.shape).numel() for p in parameters)


def test_layers_are_shared_out_evenly() -> None:
    assert [len(stage) for stage in layers_of_stages(61, 8)] == [8, 8, 8, 8, 8, 7, 7, 7]
    assert [list(stage) for stage in layers_of_stages(3, 2)] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (Ranks(tensor=3), "8 heads cannot be shared out over 3"),
        (Ranks(tensor=8), "4 key-value heads cannot be shared out over 8"),
        (Ranks(expert=3), "8 experts cannot be shared out over 3"),
        (Ranks(pipeline=4), "3 layers cannot be shared out over 4"),
        (Ranks(tensor=4), "250 rows or columns of embedding.word_embeddings.weight over 4 ranks"),
    ],
)
def test_ranks_that_cannot_share_a_model_are_told_why(ranks: Ranks, words: str) -> None:
    problem = megatron_problem(config_of("qwen3_moe") | {"vocab_size": 250}, ranks)
    assert problem is not None
    assert words in problem


def test_tables_of_the_vocabulary_are_not_padded() -> None:
    """Bridge 0.6 leaves should_pad_vocab False for a model that it reads: a rank has its part of the rows that are there."""
    config = config_of("llama") | {"vocab_size": 128_256}
    held = rank_shapes(megatron_parameters(config), Ranks(tensor=4), 0)
    assert held["embedding.word_embeddings.weight"] == held["output_layer.weight"] == (32_064, 64)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
def test_biases_that_megatron_bridge_would_leave_out_are_refused(family: str, key: str) -> None:
    assert megatron_parameters(config_of(family) | {key: False})
    with pytest.raises(UserError, match=f"{family} with {key} has no map"):
        megatron_parameters(config_of(family) | {key: True})


def test_models_without_a_map_are_refused() -> None:
    with pytest.raises(UserError, match="'gpt2' has no map"):
        megatron_parameters({"model_type": "gpt2"})
    with pytest.raises(UserError, match="dense layers"):
        megatron_parameters(config_of("qwen3_moe") | {"mlp_only_layers": [0]})
