"""From a config.json to a model on this rank, ready to train, with random weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from windtunnel.convert import block_of_experts, encode_blocks
from windtunnel.model import (
    FP8Experts,
    FrozenFP8,
    NewRows,
    base_weights,
    blocks_of,
    deterministic,
    expert_group,
    shared_experts_of,
    with_rows,
)
from windtunnel.recipe import HuggingFaceModel, Layout, LoRA, Recipe, UserError

from ..engine import COMPUTE, Feed, Parameters
from ..ranks import Ranks
from ..shards import fill, make_mesh, materialise, shard_model
from .attention import RECORDED, Attention, Kind, choose, special_scores
from .engine import HFEngine, HFJob, seed_of
from .in_place import work_in_place
from .network import Network, add_lora, cast_within, drops_out, freeze_in_fp8, prepare_blocks, share_experts, skeleton
from .optimizer import AdamW, States
from .token_rows import NAME as ROWS_NAME
from .token_rows import TokenRows
from .weights import load_weights


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
    attention: Kind | Literal["auto"] = "auto",
    exact: bool = False,
    keep_attention: bool = False,
    expert: int = 1,
    new: NewRows | None = None,
    recorded: bool = False,
    kept_blocks: int = 0,
) -> HFJob:
    """Return a causal language model, sharded over the ranks, with its optimizer.

    Args:
        raw_config: the mapping in a Hugging Face config.json.
        lora: None trains every weight; else only the adapters, beside frozen bf16 or fp8 weights.
        weights: how frozen weights are held: 'bf16', 'fp8' or 'fp8-experts'.
        master: fp32 weights; False: bf16 weights updated in place. Adapters are always fp32.
        states: precision of AdamW's moments; with master=False 'fp32' means bf16.
        recompute: 'block' keeps only each block's input and computes it again in the backward pass.
        compile: compile the blocks, one after the other.
        shard: 'full' shards weights, gradients and states; 'optimizer' keeps weights gathered during a step;
            'none' keeps all on every rank. On one rank they are the same.
        ranks: this one and the others.
        sequence: tokens of the longest sequence to come.
        seed: of random weights.
        compute: dtype of the products.
        folder: of its weights; None: they are random.
        attention: kernel for packed documents; 'auto' takes the fastest.
        exact: on a GPU, kernels that give the same bits every time.
        keep_attention: with recompute 'block', keep what attention has computed.
        expert: ranks that share the experts of each layer, where these are held as 'fp8-experts'.
        new: rows of tokens that were added to the model's own, which `raw_config` has room for.
        recorded: passes are recorded as CUDA graphs; 'auto' then takes an attention kernel that can be.
        kept_blocks: with recompute 'block', the last ones, which are not computed again.

    Raises:
        UserError: the model or the way it is to be held is not supported, or its passes cannot be recorded.
    """
    _check_held(weights, lora, expert)
    # All happens on 'meta' until `materialise`, so that no rank ever holds more of the model than its part. The order matters:
    # adapters decide what is trained, that the dtypes, those what FSDP2 shards, and `forward` is replaced before FSDP2's hooks.
    model = skeleton(raw_config)
    if recorded:
        _check_recorded(model, weights, shard, ranks)
    _check_length(model.config, sequence)
    model.train()
    blocks = blocks_of(model)
    if lora is not None:
        add_lora(model, blocks, lora, new)
        if weights == "fp8":
            freeze_in_fp8(blocks)
        elif weights == "fp8-experts":
            share_experts(blocks, expert_group(ranks.rank, ranks.world, expert), block_of_experts(folder))
    again = len(blocks) - kept_blocks if recompute == "block" else 0
    # Of experts on other ranks what surrounds them is compiled part by part, and made again without a compiler.
    if compile and weights != "fp8-experts":
        work_in_place(blocks[:again])
    # Before sharding, after which each rank would count its own part alone.
    counts = _count(model)
    _set_dtypes(model, trained=torch.float32 if master or lora is not None else compute, frozen=compute)
    mesh = make_mesh(ranks, shard)
    if mesh is None:
        cast_within([*blocks, *_norms(model)], compute)  # else FSDP2 does it
    prepare_blocks(blocks, recompute=again, compile=compile, random=drops_out(model), keep_attention=keep_attention)
    if compile:
        for norm in _norms(model):
            norm.forward = torch.compile(norm.forward, dynamic=False)
    attends = _attention(model, attention, ranks.device, compute, exact, recorded)
    network = Network(model, attends, compute, few_extents=recorded)
    if mesh is not None:
        # Sums over ranks in the dtype of what is updated: fp32 weights would gain nothing from sums in bf16.
        reduce = torch.float32 if master or lora is not None else compute
        shard_model(network, blocks, mesh, shard=shard, compute=compute, reduce=reduce)
    materialise(network, ranks.device)
    fill_weights(model, ranks.device, seed, folder, new)
    optimizer = AdamW(
        {name: p for name, p in model.named_parameters() if p.requires_grad},
        states="bf16" if states == "fp32" and not master and lora is None else states,
        group=None if mesh is None else mesh.get_group(),
        compiled=compile and ranks.device.type == "cuda",
        kept=recorded,
    )
    keep_gathered = shard == "optimizer" and ranks.world > 1
    return HFJob(network, optimizer, counts, ranks, sharded=mesh is not None, keep_gathered=keep_gathered, recorded=recorded)


FULL_RATE, ADAPTER_RATE = 1e-5, 2e-4
"""What stages.sft.learning_rate stands for where it is null."""


def build_hf_engine(recipe: Recipe, layout: Layout, ranks: Ranks, feed: Feed, config: dict[str, Any]) -> HFEngine:
    """Return the engine of a recipe's fine-tuning, or of the learner in its reinforcement learning.

    Args:
        recipe: with a stage of fine-tuning or of reinforcement learning.
        layout: how the work is spread.
        ranks: this one and the others.
        feed: what it is fed with.
        config: the mapping of a config.json.

    Raises:
        UserError: the model, or the way it is to be held or computed, is not supported.
    """
    model, stage = recipe.model, recipe.sft or recipe.rl
    assert isinstance(model, HuggingFaceModel)
    assert stage is not None
    if layout.precision == "fp8":
        raise UserError("stages.sft.precision: fp8 is not what this engine computes in", "--set stages.sft.precision=bf16")
    config = with_rows(config, feed.new)
    vocab = int((config.get("text_config") or config)["vocab_size"])
    if feed.vocab > vocab:
        raise UserError(
            f"data.tokenizer has {feed.vocab:,} tokens, and the model knows {vocab:,} (vocab_size)",
            "give the model's own tokenizer, or one with fewer tokens",
        )
    torch.set_float32_matmul_precision("highest" if layout.precision == "fp32" else "high")
    folder = base_weights(recipe)
    job = build_hf(
        config, lora=model.adapter, weights=model.weights, master=stage.master, states=stage.states,
        recompute="block" if layout.recompute == "block" else "none", compile=layout.compile, shard=layout.shard, ranks=ranks,
        sequence=layout.sequence, seed=recipe.seed, compute=COMPUTE[layout.precision], folder=folder,
        attention=stage.attention, exact=stage.deterministic, expert=layout.expert, new=feed.new, recorded=layout.recorded,
        kept_blocks=layout.kept_blocks,
    )  # fmt: skip
    rate = stage.learning_rate or (FULL_RATE if model.adapter is None else ADAPTER_RATE)
    return HFEngine(
        layout, ranks, feed, job, rate=rate, schedule=stage.schedule, seed=recipe.seed,
        weights=lambda: fill_weights(job.network.model, ranks.device, recipe.seed, folder, feed.new),
    )  # fmt: skip


def fill_weights(
    model: PreTrainedModel, device: torch.device, seed: int, folder: Path | None, new: NewRows | None = None
) -> None:
    """Fill a model whose memory is uninitialised: with random numbers, and from a folder of weights if there is one.

    Args:
        model: sharded or not.
        device: on which its memory is.
        seed: of the random numbers.
        folder: of weights, as Hugging Face has them; None: all stay random.
        new: rows for tokens that the folder's weights know nothing of.

    Raises:
        UserError: the folder's weights do not fit the model; see `load_weights`.
    """
    # Random first: adapters are in no file, nor is what a checkpoint of another head or of fewer tokens lacks.
    initialise(model, device, seed)
    if folder is not None:
        load_weights(model, folder, new)


def _check_held(weights: str, lora: LoRA | None, expert: int) -> None:
    """Refuse ways to hold frozen weights that this trainer does not know, or that make no sense. Raises UserError."""
    if weights not in ("bf16", "fp8", "fp8-experts"):
        raise UserError(f"model.weights: {weights} is not supported by this trainer", "set model.weights: bf16 or fp8")
    if weights != "bf16" and lora is None:
        raise UserError(
            f"model.weights: {weights} weights are frozen, and without an adapter nothing is trained", "set model.adapter"
        )
    if weights != "fp8-experts" and expert > 1:
        raise UserError(
            f"layout.expert: {expert} ranks share experts that are frozen in fp8, and model.weights is {weights}",
            "set model.weights: fp8-experts, or layout.expert: 1",
        )


def _check_recorded(model: PreTrainedModel, weights: str, shard: str, ranks: Ranks) -> None:
    """Refuse what is not recorded: the host's part in a pass, random numbers, exchanges with other ranks. Raises UserError."""
    launched = "--set stages.sft.graphs=false"
    if weights == "fp8-experts":
        raise UserError("stages.sft.graphs: tokens that travel to shared experts cannot be recorded", launched)
    if ranks.world > 1 and shard != "none":
        raise UserError(
            "stages.sft.graphs: passes that gather weights from other ranks are not recorded",
            f"--set layout.shard=none, or {launched}",
        )
    if drops_out(model):
        raise UserError("stages.sft.graphs: this model's config asks for dropout, which is not recorded", launched)


def _attention(
    model: PreTrainedModel, wanted: Kind | Literal["auto"], device: torch.device, compute: torch.dtype, exact: bool,
    recorded: bool,
) -> Attention:  # fmt: skip
    text = model.config.get_text_config()
    window = getattr(text, "sliding_window", None)
    on_gpu = device.type == "cuda"
    if on_gpu:
        deterministic(exact)
        # What has no such kernel, as some models' experts, goes on without.
        torch.use_deterministic_algorithms(exact, warn_only=True)
    special = special_scores(model)
    # Embedding and head are no layers, and one of them outweighs all blocks of a small model.
    inner = sum(p.numel() for p in model.parameters() if text.vocab_size not in p.shape)
    layer = inner // max(text.num_hidden_layers, 1)
    kind = choose(wanted, device, compute, text, special, layer, recorded=recorded)
    if recorded and kind not in RECORDED:
        other = "" if wanted == "auto" else "--set stages.sft.attention=auto, or "
        raise UserError(f"stages.sft.graphs: attention by {kind} is not recorded", f"{other}--set stages.sft.graphs=false")
    return Attention(kind, frozenset([window] if window else []), exact=exact and on_gpu, special=special is not None)


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
    """Count parameters as they are before sharding; weights in fp8 count once, their scales not."""
    total = trained = 0
    for name, parameter in model.named_parameters():
        if name.endswith("_scale"):
            continue
        count = parameter.numel() * (2 if name.endswith("_fp8") else 1)
        total += count
        trained += count if parameter.requires_grad else 0
    total += sum(module.shared_experts.parameters for module in shared_experts_of(model).values())
    return Parameters(total, trained)


def _set_dtypes(model: nn.Module, *, trained: torch.dtype, frozen: torch.dtype) -> None:
    """Give parameters on 'meta' the dtypes that they are held in; what is tied stays tied."""
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


def _norms(model: nn.Module) -> list[nn.Module]:
    """Return what has parameters between the blocks and the head: norms, which cost memory unless they are compiled."""
    return [module for name, module in model.base_model.named_children() if "norm" in name]  # type: ignore[union-attr,operator]


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
            if isinstance(module, FP8Experts):
                _draw_experts(module, name, seed, float(model.config.get_text_config().initializer_range))
                continue
            if (not own and not module._buffers) or f".{ROWS_NAME}" in name:
                continue  # the rows of new tokens come with their table
            done.update(id(p) for p in own.values())
            torch.manual_seed(seed_of(seed, name.replace(".base_layer", "")))  # with an adapter or without
            whole = _whole(module, device)
            if ".lora_" in name:
                _initialise_adapter(name, whole)
            else:
                model._init_weights(whole)
            for key, full in _stored(module, whole).items():
                if key in own:
                    fill(own[key], full)
                    if (rows := TokenRows.of(module)) is not None and key == "weight":
                        rows.begin(full)


def _draw_experts(module: FP8Experts, name: str, seed: int, spread: float) -> None:
    """Fill this rank's experts with random weights, each by its own number, whatever the number of ranks."""
    for key in module.shared_experts.shapes:
        weights = module.weights(key)
        parts, rows, columns = weights.codes.shape[1:]
        for place, expert in enumerate(module.shared_experts.own):
            torch.manual_seed(seed_of(seed, f"{name}.{key}.{expert}"))
            drawn = torch.empty(parts, rows, columns, device=weights.codes.device).normal_(std=spread)
            for part in range(parts):
                codes, scale = encode_blocks(drawn[part], weights.block)
                weights.codes[place, part].copy_(codes.view(weights.codes.dtype))
                weights.scale[place, part].copy_(scale)


def _whole(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a stand-in of the module with its own parameters whole in fp32; it shares the buffers."""
    # Not copy.copy, which would construct anew a module that FSDP2 has wrapped.
    whole = object.__new__(type(module))
    # Transformers' own `_init_weights` asks for the type and attributes of a module: a stand-in has them all.
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
    """Fill LoRA's A as peft does and B with zeros, so that an adapter changes nothing at first."""
    for parameter in whole.parameters(recurse=False):
        if ".lora_B" in name:
            parameter.zero_()
        else:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
