"""Shapes of Hugging Face models against what transformers and peft build from the same config, on the meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_configs import CASES, VARIANTS, bare_config, small_config

from windtunnel.model import HFShape, hf_shape, known_models

transformers = pytest.importorskip("transformers")


def build(config: dict[str, Any]) -> torch.nn.Module:
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(made)


def shape_of(config: dict[str, Any], folder: Path) -> HFShape:
    (folder / "config.json").write_text(json.dumps(config))
    return hf_shape(str(folder))


def elements(model: torch.nn.Module, part: str = "") -> int:
    """Parameters and saved buffers whose name contains `part`; tied ones once."""
    saved = dict(model.named_parameters())
    kept = model.state_dict(keep_vars=True)
    saved |= {name: tensor for name, tensor in kept.items() if not isinstance(tensor, torch.nn.Parameter)}
    return sum(tensor.numel() for name, tensor in saved.items() if part in name)


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_counts_equal_what_transformers_builds(family: str, variant: int, tmp_path: Path) -> None:
    shape = shape_of(small_config(family, variant), tmp_path)
    model = build(shape.raw)
    assert shape.parameters == elements(model)
    assert shape.buffer_parameters == elements(model) - sum(p.numel() for p in model.parameters())
    assert shape.embedding_parameters == model.get_input_embeddings().weight.numel()
    assert shape.head_matrix_parameters == model.get_output_embeddings().weight.numel()
    assert shape.tied == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    assert shape.final_norm_parameters == elements(model, "model.norm.")
    for i, block in enumerate(shape.blocks):
        layer = model.model.layers[i]
        assert block.parameters == elements(layer)
        assert block.attention_parameters + sum(n.parameters for n in block.norms if "self_attn" in n.module) == elements(
            layer, "self_attn."
        )
        assert block.expert_parameters == elements(layer, ".experts.")
        assert block.mlp_parameters == elements(layer, "mlp.") - elements(layer, ".experts.")


@pytest.mark.parametrize("family", VARIANTS)
def test_missing_keys_mean_what_transformers_takes_them_for(family: str, tmp_path: Path) -> None:
    shape = shape_of(bare_config(family), tmp_path)
    model = build(shape.raw)
    assert shape.parameters == elements(model)
    assert shape.max_positions == model.config.max_position_embeddings


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_every_matrix_has_the_name_and_size_that_transformers_gives_it(family: str, variant: int, tmp_path: Path) -> None:
    shape = shape_of(small_config(family, variant), tmp_path)
    model = build(shape.raw)
    for i, block in enumerate(shape.blocks):
        tensors = dict(model.model.layers[i].named_parameters())
        for linear in block.linears:
            weight = tensors.get(f"{linear.module}.weight", tensors.get(linear.module))
            assert weight is not None, linear.module
            assert sorted(weight.shape[-2:]) == sorted((linear.inputs, linear.outputs))
            assert weight.numel() == linear.matrix_parameters
            assert linear.bias == (f"{linear.module}.bias" in tensors or f"{linear.module}_bias" in tensors)
        for norm in block.norms:
            weight = tensors.get(f"{norm.module}.weight")
            assert norm.parameters == (0 if weight is None else weight.numel())


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_windows_are_as_wide_as_those_that_transformers_masks_with(family: str, variant: int, tmp_path: Path) -> None:
    """The attention weights of the last of 12 tokens say what it sees."""
    config = small_config(family, variant)
    if config.get("sliding_window") or family in ("olmo3", "gemma2", "gemma3_text", "gpt_oss", "qwen2_moe", "qwen3_moe"):
        config["sliding_window"] = 3
    shape = shape_of(config, tmp_path)
    made = transformers.AutoConfig.for_model(**{**shape.raw, "attn_implementation": "eager"})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    seen: list[int] = []
    for block in model.model.layers:
        block.self_attn.register_forward_hook(lambda _module, _inputs, out: seen.append(int((out[1][0, 0, -1] > 0).sum())))
    with torch.no_grad():
        model(inputs_embeds=torch.randn(1, 12, shape.dim), use_cache=False)
    assert seen == [block.visible(12) for block in shape.blocks]
    assert shape.windows == tuple(block.window for block in shape.blocks)


@pytest.mark.parametrize("name", known_models())
def test_built_in_models_at_full_size(name: str) -> None:
    shape = hf_shape(name)
    model = build(shape.raw)
    assert shape.parameters == elements(model)
    assert type(model).__name__ == shape.raw["architectures"][0]
    assert shape.max_positions == model.config.max_position_embeddings
