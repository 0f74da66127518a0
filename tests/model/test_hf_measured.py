"""What training and generation take, as torch and peft measure it: FLOPs, adapters, the cache."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from causal_configs import CASES, VARIANTS, small_config
from torch.utils.flop_counter import FlopCounterMode

from windtunnel.model import HFShape, hf_shape

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
SEQUENCE = 12


def small_model(config: dict[str, Any], folder: Path, device: str = "cpu") -> tuple[HFShape, torch.nn.Module]:
    (folder / "config.json").write_text(json.dumps(config))
    shape = hf_shape("config.json", base=folder)
    made = transformers.AutoConfig.for_model(**shape.raw, attn_implementation="eager", experts_implementation="eager")
    with torch.device(device):
        return shape, transformers.AutoModelForCausalLM.from_config(made)


@pytest.mark.parametrize("family", VARIANTS)
def test_flops_are_those_of_the_products_that_torch_counts(family: str, tmp_path: Path) -> None:
    """Eager attention multiplies the whole square, which is the convention; rotary tables are the rest that it counts."""
    shape, model = small_model(small_config(family, sliding_window=SEQUENCE, num_hidden_layers=3), tmp_path)
    tokens = torch.randint(0, shape.vocab, (2, SEQUENCE), generator=torch.Generator().manual_seed(1))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    rotary = sum(v for name, ops in counter.get_flop_counts().items() if name.endswith("rotary_emb") for v in ops.values())
    assert counter.get_total_flops() - rotary == shape.flops_per_token(SEQUENCE) * tokens.numel()


@pytest.mark.parametrize("targets", ["attention", "all"])
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_adapters_are_as_large_as_peft_makes_them(
    family: str, variant: int, targets: Literal["attention", "all"], tmp_path: Path
) -> None:
    shape, model = small_model(small_config(family, variant), tmp_path, "meta")
    before = sum(p.numel() for p in model.parameters())
    expected = {linear.module for block in shape.blocks for linear in block.linears if linear.adapted(targets)}
    adapter = peft.LoraConfig(r=4, target_modules=list(expected))
    # The blocks alone: on a whole mixture of experts peft would turn the MLP's names into adapters on stacked experts.
    peft.inject_adapter_in_model(adapter, model.model.layers)
    assert sum(p.numel() for p in model.parameters()) - before == shape.lora_parameters(4, targets)
    adapted = {name.split(".lora_A")[0].split(".", 1)[1] for name, _ in model.model.layers.named_parameters() if "lora_A" in name}
    assert adapted == expected
    routed = {linear.module for block in shape.blocks for linear in block.linears if linear.part in ("experts", "router")}
    assert not adapted & routed


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_a_token_takes_as_much_cache_as_transformers_keeps_for_it(family: str, variant: int, tmp_path: Path) -> None:
    shape, model = small_model(small_config(family, variant, sliding_window=SEQUENCE + 1), tmp_path)
    if shape.mla and int(transformers.__version__.split(".")[1]) < 17:
        pytest.skip("this transformers caches the keys and values that it expands from the latent vector")
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model.eval()(inputs_embeds=torch.randn(1, SEQUENCE, shape.dim), past_key_values=cache, use_cache=True)
    kept = sum(tensor.numel() for layer in cache.layers for tensor in (layer.keys, layer.values) if tensor is not None)
    assert kept == shape.kv_bytes(SEQUENCE, 1) == shape.kv_bytes_per_token(1) * SEQUENCE


def test_transformers_may_change_the_config_that_it_is_given() -> None:
    shape = hf_shape("llama-3.1-8b")
    before = copy.deepcopy(shape.raw)
    transformers.AutoConfig.for_model(**shape.raw)
    assert shape.raw == before
