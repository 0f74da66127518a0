"""The module that is trained: transformers' blocks between embedding and head, with attention and loss of our own; adapters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from windtunnel.data import Batch, bucketed
from windtunnel.model import (
    ExpertGroup,
    FP8Experts,
    NewRows,
    asks_for_dropout,
    freeze_experts_fp8,
    freeze_linear_fp8,
    holds_experts,
    linears,
    share_experts_fp8,
)
from windtunnel.recipe import LoRA, UserError

from .attention import Attention, Packed, register
from .loss import ObjectiveBatch, TokenObjective, linear_cross_entropy
from .token_rows import NAME as ROWS_NAME
from .token_rows import TokenRows, train_rows


class Network(nn.Module):
    """Tokens and targets to their loss. The head is used inside this forward pass, where FSDP2 has gathered it.

    Attributes:
        temperature: logits are divided by it.
        few_extents: numbers and lengths of documents are rounded up to a few, for passes that may be recorded.
    """

    def __init__(self, model: PreTrainedModel, attention: Attention, compute: torch.dtype, few_extents: bool = False) -> None:
        super().__init__()
        self.model, self.attention, self._compute = model, attention, compute
        self.temperature, self.few_extents = 1.0, few_extents
        config = model.config.get_text_config()
        self._cap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
        # Granite divides the logits, Cohere multiplies them.
        self._scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)

    def given(self, batch: Iterable[Tensor]) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
        """Return what to call this with for a `Batch`, or for (tokens, targets)."""
        if not isinstance(batch, Batch):
            tokens, targets = batch
            return (tokens, targets), {}
        more: dict[str, Any] = {"factors": batch.weights, "rows": batch.target_rows}
        if batch.document_ids is not None:
            extent = batch.extent
            if self.few_extents and extent is not None:
                documents, longest = extent.tolist()
                B, T = batch.document_ids.shape
                extent = torch.tensor(bucketed(documents, longest, B * T, T))
            packed = self.attention.of_documents(batch.document_ids, batch.cu_seqlens, extent)
            more |= {"positions": batch.position_ids, "packed": packed}
        if isinstance(batch, ObjectiveBatch):
            more["objective"] = batch.objective
        return (batch.input_ids, batch.targets), more

    def forward(
        self, tokens: Tensor, targets: Tensor, positions: Tensor | None = None, packed: Packed | None = None,
        factors: Tensor | None = None, rows: Tensor | None = None, objective: TokenObjective | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the cross-entropy in nats, and the sum of it or of an objective's losses.

        Args:
            tokens: (B, T) int64.
            targets: (B, T), the token after each; negative where there is none.
            positions: (B, T) of packed sequences, counted from 0 in each document; None: 0 to T - 1.
            packed: the documents, each of which attends to itself alone; None: one a sequence.
            factors: of each target's loss (B, T); see `linear_cross_entropy`.
            rows: flat positions to score; see there.
            objective: makes another loss of the targets' log-probabilities; see there.

        Returns:
            losses (B, T) fp32, detached, without factors; and the sum of factor times loss, differentiable.
        """
        # Where the embedding is frozen the first block's input would be the only one that needs no gradient, and
        # torch.compile would compile the block once more for it.
        embedding: Any = self.model.get_input_embeddings()
        embedded = embedding(tokens).to(self._compute)
        if (own := TokenRows.of(embedding)) is not None:
            embedded = own.embed(tokens, embedded, getattr(embedding, "embed_scale", None))
        if torch.is_grad_enabled() and not embedded.requires_grad:
            embedded.requires_grad_()
        if packed is None:
            packed = self.attention.of_rows(tokens)
        # Blocks hand on what they do not know, so that `attend` gets the documents.
        more: dict[str, Any] = {} if packed is None else {"packed": packed}
        if positions is not None:
            more["position_ids"] = positions
        hidden = self.model.base_model(inputs_embeds=embedded, use_cache=False, **more).last_hidden_state
        scale, more = self._scale / self.temperature, {}
        if self._cap:
            more["cap"] = (self._scale / self._cap, self._cap / self.temperature)
        elif scale != 1.0:
            hidden = hidden * scale
        head: Any = self.model.get_output_embeddings()
        weight = head.weight.to(self._compute)
        if (own := TokenRows.of(head)) is not None:
            more |= {"trained": own.rows.to(self._compute), "first": own.first}
        return linear_cross_entropy(hidden, weight, targets, factors_BT=factors, rows=rows, objective=objective, **more)


def skeleton(raw_config: dict[str, Any]) -> PreTrainedModel:
    """Build transformers' model of a config without memory (on the device 'meta').

    Raises:
        UserError: transformers cannot build it, or it computes what this trainer does not.
    """
    # Whatever a config can be wrong in ends in some exception there: of validation, arithmetic, or shapes.
    try:
        config = AutoConfig.for_model(**raw_config)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=register(), dtype=torch.float32)
    except Exception as error:
        raise UserError(
            f"model.config: transformers cannot build {raw_config.get('model_type')}: {error}",
            "give the config.json of a causal language model whose attention supports SDPA",
        ) from error
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise UserError(
            f"model.config: {raw_config['model_type']} has a head that is more than one matrix, which this trainer does not",
            "choose a model without, such as Llama, Qwen, OLMo or Mistral",
        )
    return model


def drops_out(model: PreTrainedModel) -> bool:
    """Return whether the config asks for dropout anywhere."""
    return asks_for_dropout(model.config.get_text_config().to_dict())


def cast_within(modules: Iterable[nn.Module], compute: torch.dtype) -> None:
    """Let modules compute with their trained parameters cast to `compute`; gradients come in the parameters' own dtype.

    The cast is part of the module's forward pass, so that a compiler sees it and nothing of it outlives the module.
    What is frozen is held as it is computed with.
    """
    for module in modules:
        if any(p.requires_grad and p.dtype != compute for p in module.parameters()):
            module.forward = _Cast(module, compute)


class _Cast:
    """A module's own forward pass with cast parameters."""

    def __init__(self, module: nn.Module, compute: torch.dtype) -> None:
        self._inner, self._compute = _Inner(module), compute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trained = {name: p.to(self._compute) for name, p in self._inner.named_parameters() if p.requires_grad}
        return torch.func.functional_call(self._inner, trained, args, kwargs)


class _Inner(nn.Module):
    """A module that calls another's own forward pass, whatever that module's `forward` is set to later."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self._forward = module, module.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the other module's own forward pass."""
        return self._forward(*args, **kwargs)


def prepare_blocks(
    blocks: Sequence[nn.Module], *, recompute: int, compile: bool, random: bool, keep_attention: bool = False
) -> None:
    """Let each block be computed again in the backward pass, compiled, or both.

    The blocks' `forward` is replaced, not their call, so that FSDP2's hooks stay outside: parameters are
    gathered once for a block's backward pass, and nothing of them is traced.

    Args:
        blocks: changed in place.
        recompute: of so many blocks, the first ones, keep only the input, and compute them again in the backward pass.
        compile: compile each block; where experts are shared among ranks, what surrounds them.
        random: whether a block draws random numbers, which must be the same the second time.
        keep_attention: what attention has computed is kept, as much memory as the block's input, not computed again.
    """
    again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": random}
    if keep_attention:
        again["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _kept)
    for number, block in enumerate(blocks):
        travels = any(isinstance(module, FP8Experts) for module in block.modules())
        if compile and travels:
            # How many rows arrive is known only when they do: what surrounds the experts is compiled, part by part.
            for part in _parts_without_experts(block):
                part.forward = torch.compile(part.forward, dynamic=False)
        forward: Callable[..., Any] = block.forward
        if number < recompute:
            forward = functools.partial(checkpoint, forward, **again)
        if compile and not travels:
            forward = torch.compile(forward, dynamic=False)
        block.forward = forward  # type: ignore[method-assign]


def _parts_without_experts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest submodules, from the outside in, that hold no shared experts."""
    for child in module.children():
        if not any(isinstance(part, FP8Experts) for part in child.modules()):
            yield child
        elif not isinstance(child, FP8Experts):
            yield from _parts_without_experts(child)


def _kept(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operation in (
        torch.ops.windtunnel.document_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    )
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


# Adapters


def add_lora(model: PreTrainedModel, blocks: Sequence[nn.Module], lora: LoRA, new: NewRows | None = None) -> None:
    """Freeze every parameter of the model and put trained adapters beside the blocks' linear layers, in place.

    Args:
        model: changed in place.
        blocks: of that model, in order.
        lora: rank and scale of the adapters, and which layers get one.
        new: rows of new tokens, which no adapter of the blocks could teach: they are trained beside the frozen tables.

    Raises:
        UserError: the blocks have no linear layers, or new tokens cannot be trained in this embedding.
    """
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
    if new is not None:
        train_rows(model, new)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def is_adapter(name: str) -> bool:
    """Return whether a module or parameter of that name is trained beside a frozen weight."""
    return ".lora_" in name or f".{ROWS_NAME}" in name


def freeze_in_fp8(blocks: Sequence[nn.Module]) -> None:
    """Hold the blocks' frozen linear layers and experts in fp8, in place; adapters, norms and routers stay."""
    for block in blocks:
        for linear in linears([block], "all"):
            if not linear.weight.requires_grad:
                freeze_linear_fp8(linear)
        for module in block.modules():
            if holds_experts(module):
                freeze_experts_fp8(module)


def share_experts(blocks: Sequence[nn.Module], group: ExpertGroup, block: tuple[int, int]) -> None:
    """Share the blocks' routed experts out over the ranks of a group, frozen in fp8 with a scale for each block of weights.

    Raises:
        UserError: there are none, or they cannot be shared out.
    """
    found = [module for one in blocks for module in one.modules() if holds_experts(module)]
    if not found:
        raise UserError("model.weights: fp8-experts, and this model has no routed experts", "set model.weights: bf16 or fp8")
    for module in found:
        share_experts_fp8(module, group, block)
