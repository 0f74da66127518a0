"""A job's weights as others know them: names, values, adapters merged, whatever the model's family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import MODELS, VOCAB, batch, job_of, losses_of, weights_of
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from windtunnel.recipe import LoRA
from windtunnel.train import HFJob, hub_config, hub_weights, whole_weights
from windtunnel.train.hf import plain_model


def stir(job: HFJob) -> None:
    """Noise in every weight, so that none is silent."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in job.network.parameters():
            own: Any = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            own += (0.02 * torch.randn(own.shape, generator=draw)).to(own.dtype)


@pytest.mark.parametrize("family", MODELS)
def test_files_are_those_that_transformers_itself_would_save(family: str, tmp_path: Path) -> None:
    with job_of(family) as job:
        stir(job)
        plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS[family]))
        left = plain.load_state_dict(weights_of(job), strict=False)
        assert not left.unexpected_keys
        published = dict(hub_weights(job, torch.float32))
    plain.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert published.keys() == saved.keys()
    assert all(torch.equal(published[name], tensor) for name, tensor in saved.items())


def test_experts_stand_apart_as_engines_expect_them() -> None:
    with job_of("mixtral") as job:
        published = dict(hub_weights(job, torch.bfloat16))
    assert published["model.layers.1.block_sparse_moe.experts.3.w1.weight"].shape == (128, 64)
    assert published["model.layers.1.block_sparse_moe.experts.3.w2.weight"].shape == (64, 128)
    assert {tensor.dtype for tensor in published.values()} == {torch.bfloat16}
    assert all(tensor.is_contiguous() for tensor in published.values())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3_moe", "deepseek_v3"])
def test_an_adapter_merged_computes_what_the_learner_does(family: str) -> None:
    with job_of(family, lora=LoRA(rank=3, alpha=12.0)) as job:
        stir(job)
        losses_of(job, 2)
        x, y = batch()
        job.network.eval()
        with torch.no_grad():
            wanted = job.network(x, y)[0]
        weights = {name: t for group in whole_weights(job, torch.float32) for name, t in group.items()}
        plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS[family]))
        left = plain.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys
    assert set(left.missing_keys) <= ({"lm_head.weight"} if plain.config.tie_word_embeddings else set())
    plain.tie_weights()
    with torch.no_grad():
        logits = plain.eval()(input_ids=x).logits
    found = torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), y.reshape(-1), reduction="none").view_as(wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


def test_weights_frozen_in_fp8_come_out_as_they_are_computed_with() -> None:
    with job_of("llama", lora=LoRA(rank=3), weights="fp8", compute=torch.bfloat16) as job:
        weights = {name: t for group in whole_weights(job, torch.bfloat16) for name, t in group.items()}
        held = weights_of(job)
    name = "model.layers.0.mlp.down_proj"  # its adapter is fresh: it adds nothing
    packed, scale = (held[f"{name}.base_layer.weight_{part}"] for part in ("fp8", "scale"))
    assert torch.equal(weights[f"{name}.weight"], packed.view(torch.float8_e4m3fn).bfloat16() * scale)
    assert not [name for name in weights if "fp8" in name or "scale" in name or "lora" in name or "base_layer" in name]


def test_what_is_published_are_the_masters_even_after_a_forward_pass() -> None:
    with job_of("llama", compute=torch.bfloat16) as job:
        stir(job)
        x, y = batch()
        with torch.no_grad():
            job.network(x, y)
        found = dict(hub_weights(job, torch.float32))["lm_head.weight"]
        assert found.dtype == torch.float32
        assert not torch.equal(found, found.bfloat16().float())
        losses_of(job, 1)
        assert not torch.equal(dict(hub_weights(job, torch.float32))["lm_head.weight"], found), "a copy, not the memory itself"


def test_the_config_builds_the_same_model() -> None:
    with job_of("qwen2") as job:
        content = hub_config(job, torch.bfloat16)
    assert content["architectures"] == ["Qwen2ForCausalLM"]
    assert content["tie_word_embeddings"] is True
    again = AutoConfig.for_model(**content)
    assert {key: getattr(again, key) for key in MODELS["qwen2"]} == MODELS["qwen2"]


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "deepseek_v3"])
def test_the_copy_that_answers_is_the_model_that_its_files_give(family: str, tmp_path: Path) -> None:
    with job_of(family) as job:
        stir(job)
        copied = plain_model(job, torch.bfloat16)
    copied.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    # bf16 has too few digits for the frequencies of rotary embeddings.
    assert all(buffer.dtype == torch.float32 for name, buffer in copied.named_buffers() if name.endswith("inv_freq"))
    tokens = batch(2, 60)[0]
    with torch.no_grad():
        assert torch.equal(copied(tokens).logits, loaded(tokens).logits)
