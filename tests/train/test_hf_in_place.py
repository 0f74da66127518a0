"""Layers that work in place: what transformers and peft compute, forward and backward, with fewer wide tensors alive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hf_models import MODELS, job_of
from torch import nn

from windtunnel.model import blocks_of
from windtunnel.model.hf_blocks import shape_from_config
from windtunnel.plan.hf_kept import WORKS_IN_PLACE
from windtunnel.recipe import LoRA
from windtunnel.train.hf import in_place
from windtunnel.train.hf.network import add_lora, skeleton

LORA = LoRA(rank=4, alpha=16)


def block_pair(config: dict[str, Any], lora: LoRA | None) -> tuple[nn.Module, nn.Module]:
    """The same block's MLP twice, the second working in place."""
    made = []
    for _ in range(2):
        model = skeleton(config)
        if lora is not None:
            add_lora(model, blocks_of(model), lora)
        block = blocks_of(model)[0].to_empty(device="cpu")
        torch.manual_seed(3)
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.3)
        made.append(block)
    in_place.work_in_place([made[1]])
    assert any(type(module).__name__.startswith("InPlace") for module in made[1].modules())
    return made[0].mlp, made[1].mlp


@pytest.mark.parametrize("lora", [None, LORA, LoRA(rank=3, targets="attention")])
@pytest.mark.parametrize("family", ["llama", "qwen2", "olmo2", "granite"])
def test_an_mlp_and_its_gradients_are_what_they_were(family: str, lora: LoRA | None) -> None:
    plain, ours = block_pair(MODELS[family], lora)
    x = torch.randn(2, 7, plain.gate_proj.in_features)
    said = []
    for module in (plain, ours):
        given = x.clone().requires_grad_()
        out = module(given)
        (out * torch.arange(out.numel()).view_as(out).cos()).sum().backward()
        grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        said.append((out.detach(), given.grad, grads))
    (out, toward, grads), (our_out, our_toward, our_grads) = said
    torch.testing.assert_close(our_out, out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_toward, toward, rtol=1e-4, atol=1e-4)
    assert our_grads.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(our_grads[name], grad, rtol=1e-4, atol=1e-4)


def test_other_formulas_are_left_alone() -> None:
    for family in ("gemma2", "phi3"):
        block = blocks_of(skeleton(MODELS[family]))[0]
        in_place.work_in_place([block])
        assert not any(type(module).__name__.startswith("InPlace") for module in block.modules())


def test_plans_count_on_it_where_it_is() -> None:
    other = MODELS["llama"] | {"hidden_act": "gelu"}
    for family, config in [*MODELS.items(), ("llama", other)]:
        model = skeleton(config)
        in_place.work_in_place(blocks_of(model))
        dense = not any("experts" in name for name, _ in model.named_modules())
        there = any(type(module).__name__.startswith("InPlace") for module in model.modules())
        planned = family in WORKS_IN_PLACE and shape_from_config(family, config, family).gates_by_silu
        assert not dense or there == planned, family


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{}, {"lora": LORA}, {"kept_blocks": 1}, {"kept_blocks": 1, "lora": LORA}])
def test_compiled_steps_are_those_of_the_plain_formulas(chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 100, (2, 33))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    sums = []
    for replaced in (True, False):
        torch._dynamo.reset()
        if not replaced:
            monkeypatch.setattr("windtunnel.train.hf.build.work_in_place", lambda blocks: None)
        with job_of("llama", compile=True, compute=torch.float32, recompute="block", **chosen) as job:
            sums.append(torch.stack([job.step([batch], 64, 1e-3) for _ in range(4)]))
    torch.testing.assert_close(sums[0], sums[1], rtol=2e-4, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_gives_what_autograd_gives(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate, up, grad = (torch.randn(33, 1531, device="cuda", dtype=dtype) for _ in range(3))
    wide = [t.float().requires_grad_() for t in (gate, up)]
    product = torch.nn.functional.silu(wide[0]) * wide[1]
    product.backward(grad.float())
    in_place.swiglu_backward_(grad, gate, up)
    near = {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for found, wanted in ((grad, product.detach()), (gate, wide[0].grad), (up, wide[1].grad)):
        torch.testing.assert_close(found.float(), wanted, **near)
