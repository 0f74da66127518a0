"""Attention over (B, T, H, D) tensors, causal or not, on the fastest backend the device has.

On Hopper and Blackwell that is FlashAttention-4 where it is installed (the extra `hopper`): fastest, with
windows, and with a backward pass that can be made to give the same bits every time. Else cuDNN through
PyTorch, whose backward pass adds in the order in which blocks happen to finish; when determinism is
asked for, PyTorch's FlexAttention takes its place in training.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# cuDNN's kernels are PyTorch's fastest on Hopper; on other devices the next in the list that applies is taken.
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def deterministic(on: bool) -> None:
    """Choose kernels that give the same bits every time; to be called before the GPU's first matrix product."""
    if on:
        # cuBLAS reads this when it first starts; without it PyTorch refuses deterministic products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    # Filling every fresh tensor costs a pass over memory and changes no result that is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def attend(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, window: int | None, causal: bool = True) -> Tensor:
    """Attend from each position to itself and at most `window` positions before it; not causal: to all positions.

    Args:
        q_BTHD: queries (B, T, H, D).
        k_BTHD: keys (B, T, KV, D) with H a multiple of KV.
        v_BTHD: values (B, T, KV, D).
        window: None for the whole past, and where attention is not causal.
        causal: whether positions see nothing that comes after them.

    Returns:
        (B, T, H, D).
    """
    window = None if window is None or window >= q_BTHD.size(1) else window
    assert causal or window is None
    exact = torch.are_deterministic_algorithms_enabled()
    if _flash_applies(q_BTHD):
        flash = flash_kernels().flash_attn_func
        # The right side of the window is closed by causality.
        sides = (None, None) if window is None else (window, 0)
        out: Tensor = flash(q_BTHD, k_BTHD, v_BTHD, causal=causal, window_size=sides, deterministic=exact)[0]
        return out
    q, k, v = (t.transpose(1, 2) for t in (q_BTHD, k_BTHD, v_BTHD))
    grouped = q.size(1) != k.size(1)
    if exact and q.is_cuda and q.requires_grad:
        blocks = _block_mask(q.size(2), window, q.device) if causal else None
        return _flex()(q, k, v, block_mask=blocks, enable_gqa=grouped).transpose(1, 2)
    if window is not None:
        position = torch.arange(q.size(2), device=q.device)
        distance = position[:, None] - position[None, :]
        mask = (distance >= 0) & (distance <= window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped).transpose(1, 2)
    with sdpa_kernel(BACKENDS, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped).transpose(1, 2)


@functools.cache
def flash_kernels() -> Any:
    """Return the module with FlashAttention-4's kernels where it is installed and loads, else None."""
    # It compiles them at each start, some ten seconds, unless it is told before its import to keep them on disk.
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    try:
        from flash_attn.cute import interface
    except (ImportError, OSError, RuntimeError):
        return None
    return interface


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _flash_applies(q: Tensor) -> bool:
    if not q.is_cuda or q.dtype not in (torch.bfloat16, torch.float16) or q.size(-1) not in (64, 128):
        return False
    return _capability(q.device)[0] in (9, 10) and flash_kernels() is not None


@functools.cache
def _flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)  # type: ignore[return-value]


@functools.lru_cache(maxsize=16)
def _block_mask(T: int, window: int | None, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = query >= key
        return near if window is None else near & (query - key <= window)

    return create_block_mask(visible, None, None, T, T, device=device)  # type: ignore[arg-type]
