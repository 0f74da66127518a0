"""The module that is trained: transformers' blocks between embedding and head, with adapters, attention and loss of our own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from windtunnel.model import freeze_experts_fp8, freeze_linear_fp8, holds_experts
from windtunnel.recipe import LoRA, UserError

from .loss import linear_cross_entropy


class Network(nn.Module):
    """Tokens and targets to their loss. The head is used inside this forward pass, where FSDP2 has gathered it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        config = model.config.get_text_config()
        # Granite divides the logits, Cohere multiplies them.
        self._scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)

    def forward(
        self, tokens: Tensor, targets: Tensor, positions: Tensor | None = None, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy in nats.

        Args:
            tokens: (B, T) int64.
            targets: (B, T), the token after each; negative where there is none.
            positions: (B, T) of packed sequences, counted from 0 in each document; None: 0 to T - 1.
            documents: (B, T), equal within a packed document, which attends to itself alone; None: one a sequence.

        Returns:
            losses (B, T) fp32, detached; and their sum, differentiable.
        """
        # Where the embedding is frozen the first block's input would be the one that needs no gradient, and
        # torch.compile would compile the block once more for it.
        embedded = self.model.get_input_embeddings()(tokens)
        if torch.is_grad_enabled() and not embedded.requires_grad:
            embedded.requires_grad_()
        # Blocks hand on what they do not know, so that `attend` gets the documents.
        packed = {} if documents is None else {"position_ids": positions, "documents": documents}
        hidden = self.model.base_model(inputs_embeds=embedded, use_cache=False, **packed).last_hidden_state
        if self._scale != 1.0:
            hidden = hidden * self._scale
        return linear_cross_entropy(hidden, self.model.get_output_embeddings().weight, targets)


def skeleton(raw_config: dict[str, Any]) -> PreTrainedModel:
    """transformers' model of a config, without memory (on the device 'meta').

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
    text, head = config.get_text_config(), model.get_output_embeddings()
    missing = [
        what
        for what, there in (
            ("softcapped logits", getattr(text, "final_logit_softcapping", None)),
            ("softcapped attention", getattr(text, "attn_logit_softcapping", None)),
            ("attention sinks", any(name.endswith("sinks") for name, _ in model.named_parameters())),
            ("a head that is more than one matrix", not isinstance(head, nn.Linear) or head.bias is not None),
        )
        if there
    ]
    if missing:
        raise UserError(
            f"model.config: {raw_config['model_type']} has {' and '.join(missing)}, which this trainer does not",
            "choose a model without, such as Llama, Qwen, OLMo or Mistral",
        )
    return model


def blocks_of(model: PreTrainedModel) -> list[nn.Module]:
    """The transformer blocks, first to last."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise UserError(f"model.config: {type(model).__name__} has no list of {count} blocks", "choose another model")


def drops_out(model: PreTrainedModel) -> bool:
    """Does the config ask for dropout anywhere?"""
    values = model.config.get_text_config().to_dict().items()
    return any("dropout" in key or key.endswith("pdrop") for key, value in values if isinstance(value, float) and value > 0)


def prepare_blocks(blocks: Sequence[nn.Module], *, recompute: bool, compile: bool, random: bool) -> None:
    """Let each block be computed again in the backward pass, compiled, or both.

    The blocks' `forward` is replaced, not their call, so that FSDP2's hooks stay outside: parameters are
    gathered once for a block's backward pass, and nothing of them is traced.

    Args:
        random: whether a block draws random numbers, which must be the same the second time.
    """
    for block in blocks:
        forward: Callable[..., Any] = block.forward
        if recompute:
            forward = functools.partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=random)
        if compile:
            forward = torch.compile(forward, dynamic=False)
        block.forward = forward  # type: ignore[method-assign]


# Attention

NAME = "windtunnel"

# On Hopper PyTorch's own FlashAttention is far slower than cuDNN's; elsewhere the next that applies is taken.
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def register() -> str:
    """Make `attend` known to transformers; returns the name for `attn_implementation`.

    transformers builds no mask for an implementation whose masks it does not know, so that none is ever held.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    return NAME


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    documents: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend causally over whole sequences, or within their documents.

    Args:
        query: (B, H, T, D). key, value: (B, KV, T, D); H is a multiple of KV.
        sliding_window: positions that one sees, itself included.
        documents: (B, T), equal within a packed document; None: a sequence is one.

    Returns:
        (B, T, H, D), and None where others return weights.
    """
    if attention_mask is not None or any(others.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise UserError(
            f"model: {type(module).__name__} needs attention masks, softcaps, sinks or biases, which this trainer does not have",
            "choose a model without them, such as Llama, Qwen, OLMo or Mistral",
        )
    T = query.size(2)
    mask = None
    window = T if sliding_window is None else sliding_window
    if window < T or documents is not None:
        at = torch.arange(T, device=query.device)
        mask = at[:, None] >= at[None, :]
        if window < T:
            mask = mask & (at[:, None] - at[None, :] < window)
        if documents is not None:
            mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
    with sdpa_kernel(BACKENDS, set_priority=True):
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling,
            enable_gqa=query.size(1) != key.size(1),
        )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


# Adapters


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
