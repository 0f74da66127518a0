"""The module that is trained: transformers' blocks between embedding and head, with the loss in its forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from windtunnel.recipe import UserError

from .attention import register
from .loss import linear_cross_entropy


class Network(nn.Module):
    """Tokens and targets to their loss. The head is used inside this forward pass, where FSDP2 has gathered it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        config = model.config.get_text_config()
        # Granite divides the logits, Cohere multiplies them.
        self._scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy in nats.

        Args:
            tokens: (B, T) int64. targets: (B, T), the token after each; negative where there is none.

        Returns:
            losses (B, T) fp32, detached; and their sum, differentiable.
        """
        # Where the embedding is frozen the first block's input would be the one that needs no gradient, and
        # torch.compile would compile the block once more for it.
        embedded = self.model.get_input_embeddings()(tokens)
        if torch.is_grad_enabled() and not embedded.requires_grad:
            embedded.requires_grad_()
        hidden = self.model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
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
