"""From a config.json to a model on this rank, ready to train, with random weights."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from windtunnel.model import FrozenFP8
from windtunnel.recipe import HuggingFaceModel, Layout, LoRA, Recipe, UserError

from ..engine import COMPUTE, Feed, Parameters
from ..ranks import Ranks
from .engine import HFEngine, HFJob
from .network import Network, add_lora, blocks_of, drops_out, freeze_in_fp8, prepare_blocks, skeleton
from .optimizer import AdamW, States
from .shards import fill, make_mesh, shard_model
from .weights import load_weights, weights_folder


def build_hf(
    raw_config: dict[str, Any],
    *,
    lora: LoRA | None,
    weights: str,
    master: bool,
    states: States,
    recompute: Literal["none", "block"],
    compile: bool,
    shard: str,
    ranks: Ranks,
    sequence: int,
    seed: int,
    compute: torch.dtype = torch.bfloat16,
    folder: Path | None = None,
) -> HFJob:
    """Return a causal language model, sharded over the ranks, with its optimizer.

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
        folder: of its weights; None: they are random.

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
    fill_weights(model, ranks.device, seed, folder)
    optimizer = AdamW(
        {name: p for name, p in model.named_parameters() if p.requires_grad},
        states="bf16" if states == "fp32" and not master and lora is None else states,
        group=sharded.group,
        compiled=compile and ranks.device.type == "cuda",
    )
    keep_gathered = shard == "optimizer" and ranks.world > 1
    return HFJob(network, optimizer, counts, ranks, sharded, buffers, keep_gathered=keep_gathered)


FULL_RATE, ADAPTER_RATE = 1e-5, 2e-4
"""What stages.sft.learning_rate stands for where it is null."""


def build_hf_engine(recipe: Recipe, layout: Layout, ranks: Ranks, feed: Feed, config: dict[str, Any]) -> HFEngine:
    """Return the engine of a recipe's fine-tuning.

    Args:
        config: the mapping of a config.json.

    Raises:
        UserError: the model, or the way it is to be held or computed, is not supported.
    """
    model, stage = recipe.model, recipe.sft
    assert isinstance(model, HuggingFaceModel)
    assert stage is not None
    if layout.precision == "fp8":
        raise UserError("stages.sft.precision: fp8 is not what this engine computes in", "--set stages.sft.precision=bf16")
    vocab = int((config.get("text_config") or config)["vocab_size"])
    if feed.vocab > vocab:
        raise UserError(
            f"data.tokenizer has {feed.vocab:,} tokens, and the model knows {vocab:,} (vocab_size)",
            "give the model's own tokenizer, or one with fewer tokens",
        )
    torch.set_float32_matmul_precision("highest" if layout.precision == "fp32" else "high")
    given = stage.init_from
    folder = None if given == "random" else (weights_folder(given or "") if given else None) or weights_folder(model.config)
    job = build_hf(
        config, lora=model.adapter, weights=model.weights, master=stage.master, states=stage.states,
        recompute="block" if layout.recompute == "block" else "none", compile=layout.compile, shard=layout.shard, ranks=ranks,
        sequence=layout.sequence, seed=recipe.seed, compute=COMPUTE[layout.precision], folder=folder,
    )  # fmt: skip
    rate = stage.learning_rate or (FULL_RATE if model.adapter is None else ADAPTER_RATE)
    return HFEngine(
        layout, ranks, feed, job, rate=rate, schedule=stage.schedule, seed=recipe.seed,
        weights=lambda: fill_weights(job.network.model, ranks.device, recipe.seed, folder),
    )  # fmt: skip


def fill_weights(model: PreTrainedModel, device: torch.device, seed: int, folder: Path | None) -> None:
    """Fill a model whose memory is uninitialised: with random numbers, and from a folder of weights if there is one."""
    initialise(model, device, seed)
    if folder is not None:
        load_weights(model, folder)


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


# Random weights


@torch.no_grad()
def initialise(model: PreTrainedModel, device: torch.device, seed: int) -> None:
    """Fill a model whose parameters and buffers lie on `device` uninitialised, sharded or not.

    One module at a time is made whole in fp32, so that no rank ever holds more than its largest one.
    Each module's numbers depend on the seed and on its name alone.
    """
    devices = [device] if device.type == "cuda" else []
    done: set[int] = set()
    with torch.random.fork_rng(devices=devices):
        for name, module in model.named_modules():
            own = {key: p for key, p in module._parameters.items() if p is not None and id(p) not in done}
            if not own and not module._buffers:
                continue
            done.update(id(p) for p in own.values())
            torch.manual_seed(_seed(seed, name.replace(".base_layer", "")))  # with an adapter or without
            whole = _whole(module, device)
            if ".lora_" in name:
                _initialise_adapter(name, whole)
            else:
                model._init_weights(whole)
            for key, full in _stored(module, whole).items():
                if key in own:
                    fill(own[key], full)


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()) >> 1


def _whole(module: nn.Module, device: torch.device) -> nn.Module:
    """A stand-in of the module with its own parameters whole in fp32; it shares the buffers."""
    # Not copy.copy, which would construct anew a module that FSDP2 has wrapped.
    whole = object.__new__(type(module))
    whole.__dict__.update(module.__dict__)
    shapes = {key: p.shape for key, p in module._parameters.items() if p is not None}
    frozen = FrozenFP8.of(module)
    if frozen is not None:
        shapes = frozen.original_shapes(shapes)
    whole._parameters = {key: None for key in module._parameters} | {  # type: ignore[assignment]
        key: nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device)) for key, shape in shapes.items()
    }
    return whole


def _stored(module: nn.Module, whole: nn.Module) -> dict[str, Tensor]:
    full: dict[str, Tensor] = {key: p.detach() for key, p in whole._parameters.items() if p is not None}
    frozen = FrozenFP8.of(module)
    return full if frozen is None else frozen.encode(full)


def _initialise_adapter(name: str, whole: nn.Module) -> None:
    """LoRA's A as peft does it, B zero, so that an adapter changes nothing at first."""
    for parameter in whole.parameters(recurse=False):
        if ".lora_B" in name:
            parameter.zero_()
        else:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
