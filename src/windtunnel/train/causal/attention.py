"""Attention for transformers' models: PyTorch's fused kernels, causal without a mask, cuDNN's first."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from windtunnel.recipe import UserError

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
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention over whole sequences.

    Args:
        query: (B, H, T, D). key, value: (B, KV, T, D); H is a multiple of KV.
        sliding_window: positions that one sees, itself included.

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
    if sliding_window is not None and sliding_window < T:
        at = torch.arange(T, device=query.device)
        mask = (at[:, None] >= at[None, :]) & (at[:, None] - at[None, :] < sliding_window)
    with sdpa_kernel(BACKENDS, set_priority=True):
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling,
            enable_gqa=query.size(1) != key.size(1),
        )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None
