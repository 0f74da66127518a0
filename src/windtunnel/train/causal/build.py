"""From a config.json to a model on this rank, ready to train."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from windtunnel.recipe import LoRA, UserError

from ..ranks import Ranks
from .adapters import add_lora, freeze_in_fp8
from .initialise import initialise
from .job import CausalJob, Parameters
from .network import Network, blocks_of, drops_out, prepare_blocks, skeleton
from .optimizer import AdamW, States
from .shards import Sharding, make_mesh, shard_model


def build_causal(
    raw_config: dict[str, Any],
    *,
    lora: LoRA | None,
    weights: str,
    master: bool,
    states: States,
    recompute: Literal["none", "block"],
    compile: bool,
    shard: Sharding,
    ranks: Ranks,
    sequence: int,
    seed: int,
    compute: torch.dtype = torch.bfloat16,
) -> CausalJob:
    """A causal language model with random weights, sharded over the ranks, with its optimizer.

    Args:
        raw_config: the mapping in a Hugging Face config.json.
        lora: None trains every weight; else only the adapters, beside frozen bf16 or fp8 weights.
        weights: how frozen weights are held, 'bf16' or 'fp8'.
        master: fp32 weights; False: bf16 weights updated in place. Adapters are always fp32.
        states: precision of AdamW's moments; with master=False 'fp32' means bf16.
        recompute: 'block' keeps only each block's input and computes it again in the backward pass.
        shard: 'full' shards weights, gradients and states; 'optimizer' keeps weights gathered during a step;
            'none' keeps all on every rank. On one rank they are the same.
        sequence: tokens of the longest sequence to come.
        compute: dtype of the products.

    Raises:
        UserError: the model or the way it is to be held is not supported.
    """
    if weights not in ("bf16", "fp8"):
        raise UserError(f"model.weights: {weights} is not supported by this trainer", "set model.weights: bf16 or fp8")
    if weights == "fp8" and lora is None:
        raise UserError("model.weights: fp8 weights are frozen, and without an adapter nothing is trained", "set model.adapter")
    model = skeleton(raw_config)
    _check_length(model.config, sequence)
    model.train()
    blocks = blocks_of(model)
    if lora is not None:
        add_lora(model, blocks, lora)
        if weights == "fp8":
            freeze_in_fp8(blocks)
    counts = _count(model)
    _set_dtypes(model, trained=torch.float32 if master or lora is not None else compute, frozen=compute)
    prepare_blocks(blocks, recompute=recompute == "block", compile=compile, random=drops_out(model))
    if compile:
        _compile_rest(model)
    network = Network(model)
    sharded = make_mesh(ranks, shard)
    reduce = torch.float32 if master or lora is not None else compute
    buffers = shard_model(network, blocks, sharded, shard=shard, compute=compute, reduce=reduce)
    network.to_empty(device=ranks.device)
    initialise(model, ranks.device, seed)
    optimizer = AdamW(
        {name: p for name, p in model.named_parameters() if p.requires_grad},
        states="bf16" if states == "fp32" and not master and lora is None else states,
        group=sharded.group,
        compiled=compile and ranks.device.type == "cuda",
    )
    keep_gathered = shard == "optimizer" and ranks.world > 1
    return CausalJob(network, optimizer, counts, ranks, sharded, buffers, keep_gathered=keep_gathered)


def _check_length(config: Any, sequence: int) -> None:
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    if most is not None and sequence > most:
        raise UserError(
            f"model.sequence: {sequence} is more than the {most} positions of this model (max_position_embeddings)",
            f"set model.sequence to at most {most}, or give a config.json with a longer context",
        )
    chunk = getattr(text, "attention_chunk_size", None)
    if chunk is not None and sequence > chunk:
        raise UserError(
            f"model.sequence: this model attends within chunks of {chunk} tokens, which this trainer does not",
            f"set model.sequence to at most {chunk}",
        )


def _count(model: nn.Module) -> Parameters:
    """As they are before sharding; weights in fp8 count once, their scales not."""
    total = trained = 0
    for name, parameter in model.named_parameters():
        if name.endswith("_scale"):
            continue
        count = parameter.numel() * (2 if name.endswith("_fp8") else 1)
        total += count
        trained += count if parameter.requires_grad else 0
    return Parameters(total, trained)


def _set_dtypes(model: nn.Module, *, trained: torch.dtype, frozen: torch.dtype) -> None:
    """Parameters on 'meta' in the dtypes that they are held in; what is tied stays tied."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                # Packed fp8 is no number: its bytes are those of bf16 whatever is computed in.
                plain = frozen if not name.endswith(("_fp8", "_scale")) else torch.bfloat16
                dtype = trained if parameter.requires_grad else plain
                made[id(parameter)] = nn.Parameter(parameter.to(dtype), requires_grad=parameter.requires_grad)
            module._parameters[name] = made[id(parameter)]


def _compile_rest(model: nn.Module) -> None:
    """The norm before the head, the one part outside the blocks that costs memory when each operation is its own."""
    for name, module in model.base_model.named_children():  # type: ignore[union-attr,operator]
        if "norm" in name:
            module.forward = torch.compile(module.forward, dynamic=False)
