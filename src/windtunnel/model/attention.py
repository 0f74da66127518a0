"""Attention over (B, T, H, D) tensors, on the fastest backend the device has."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# cuDNN's kernels are the fastest on Hopper; on other devices the next in the list that applies is taken.
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def deterministic(on: bool) -> None:
    """Choose kernels that give the same bits every time; to be called before the GPU's first matrix product.

    Attention's backward pass may otherwise add in the order in which blocks finish.
    """
    if on:
        # cuBLAS reads this when it first starts; without it PyTorch refuses deterministic products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    # Filling every fresh tensor costs a pass over memory and changes no result that is read.
    torch.utils.deterministic.fill_uninitialized_memory = False


def attend(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, window: int | None) -> Tensor:
    """Causal attention, each position over itself and at most `window` positions before it.

    Args:
        q_BTHD: queries (B, T, H, D); k_BTHD, v_BTHD: (B, T, KV, D) with H a multiple of KV.
        window: None for the whole past.

    Returns:
        (B, T, H, D).
    """
    q, k, v = (t.transpose(1, 2) for t in (q_BTHD, k_BTHD, v_BTHD))
    grouped = q.size(1) != k.size(1)
    T = q.size(2)
    if window is not None and window < T:
        position = torch.arange(T, device=q.device)
        distance = position[:, None] - position[None, :]
        mask = (distance >= 0) & (distance <= window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped).transpose(1, 2)
    with sdpa_kernel(BACKENDS, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)
