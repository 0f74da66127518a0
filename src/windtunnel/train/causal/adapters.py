"""LoRA adapters on the blocks' linear layers, through peft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from windtunnel.model import freeze_experts_fp8, freeze_linear_fp8, holds_experts
from windtunnel.recipe import LoRA, UserError


def linears(blocks: Sequence[nn.Module], targets: str) -> list[nn.Linear]:
    """Linear layers of the blocks: attention's projections, or those of dense and shared-expert MLPs too.

    Routers, and gates of a single channel, are not among them.
    """
    found: list[nn.Linear] = []
    for block in blocks:
        for name, module in block.named_modules():
            if not isinstance(module, nn.Linear) or module.out_features == 1 or "router" in name or name.endswith(".gate"):
                continue
            if targets == "all" or "attn" in name or "attention" in name:
                found.append(module)
    return found


def add_lora(model: nn.Module, blocks: Sequence[nn.Module], lora: LoRA) -> None:
    """Freeze every parameter of the model and put trained adapters beside the blocks' linear layers, in place."""
    from peft import LoraConfig, inject_adapter_in_model

    # A bare list of blocks: of a whole model peft may read the type and adapt experts' tensors unasked.
    bare = nn.ModuleList(blocks)
    wanted = {id(module) for module in linears(blocks, lora.targets)}
    names = [name for name, module in bare.named_modules() if id(module) in wanted]
    if not names:
        raise UserError("model.adapter: this model's blocks have no linear layers for adapters", "set model.adapter: null")
    alpha: Any = lora.alpha  # peft says int and takes any number
    config = LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=names, lora_dropout=0.0)
    inject_adapter_in_model(config, bare, low_cpu_mem_usage=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)


def freeze_in_fp8(blocks: Sequence[nn.Module]) -> None:
    """The blocks' frozen linear layers and experts to fp8, in place; adapters, norms and routers stay."""
    for block in blocks:
        for linear in linears([block], "all"):
            if not linear.weight.requires_grad:
                freeze_linear_fp8(linear)
        for module in block.modules():
            if holds_experts(module):
                freeze_experts_fp8(module)
