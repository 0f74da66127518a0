"""Attention over documents of any lengths, one behind the other, as one operation that torch.compile does not look into."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from windtunnel.model import flash_kernels


@functools.cache
def document_kernels() -> Any:
    """Return the module with FlashAttention-4's kernels where it has those that documents need, else None."""
    found = flash_kernels()
    return found if hasattr(found, "_flash_attn_fwd") and hasattr(found, "_flash_attn_bwd") else None


@torch.library.custom_op("windtunnel::document_attention", mutates_args=())
def document_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, extent: Tensor, scale: float, window: int, kind: str
) -> tuple[Tensor, Tensor]:
    """Attend causally within documents; torch.compile sees one operation.

    Args:
        q: (N, H, D); N tokens of all documents, one behind the other.
        k: (N, KV, D).
        v: (N, KV, E).
        starts: as `Packed`.
        extent: as `Packed`; read by the host, on which it is.
        scale: of the scores.
        window: positions that one sees, itself included; 0: all before it.
        kind: 'flash4', 'varlen' or 'split'.

    Returns:
        (N, H, E), and the logarithms of the softmax's sums (H, N) fp32.
    """
    documents, longest = extent.tolist()
    # `starts` has room for as many documents as there are tokens, so that its shape never changes.
    bounds, left = starts[: documents + 1], window - 1 if window else None
    if kind == "split":
        return _split(q, k, v, bounds.tolist(), scale, window)
    if kind == "flash4":
        found = document_kernels()._flash_attn_fwd(
            q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=longest, max_seqlen_k=longest, softmax_scale=scale,
            causal=True, window_size_left=left, window_size_right=0 if window else None, return_lse=True,
        )  # fmt: skip
    else:
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, bounds, bounds, longest, longest, 0.0, True, False, scale=scale, **_sides(window)
        )
    return found[0], found[1]


@document_attention.register_fake
def _(q, k, v, starts, extent, scale, window, kind):  # type: ignore[no-untyped-def]
    return q.new_empty(*q.shape[:2], v.size(2)), q.new_empty(q.size(1), q.size(0), dtype=torch.float32)


@torch.library.custom_op("windtunnel::document_attention_backward", mutates_args=())
def document_attention_backward(
    grad: Tensor, kept: list[Tensor], starts: Tensor, extent: Tensor, scale: float, window: int, kind: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; the same bits every time where PyTorch is told to be deterministic.

    Args:
        grad: (N, H, E), of the output.
        kept: q, k and v, the output and the sums' logarithms.
        starts: as in `document_attention`.
        extent: as there.
        scale: as there.
        window: as there.
        kind: as there.
    """
    documents, longest = extent.tolist()
    bounds, grad = starts[: documents + 1], grad.contiguous()
    q, k, v, out, sums = kept
    if kind == "split":
        return _split_backward(grad, kept, bounds.tolist(), scale, window)
    if kind == "flash4":
        found = document_kernels()._flash_attn_bwd(
            q, k, v, out, grad, sums, scale, True, window_size_left=window - 1 if window else None,
            window_size_right=0 if window else None, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=longest,
            max_seqlen_k=longest, deterministic=torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
    else:
        # Without dropout no random numbers are drawn, and their state is not read.
        none = torch.zeros(2, dtype=torch.uint64, device=q.device)
        with _strict_determinism():
            found = torch.ops.aten._flash_attention_backward(
                grad, q, k, v, out, sums, bounds, bounds, longest, longest, 0.0, True, none, none[:0], scale=scale,
                **_sides(window),
            )  # fmt: skip
    return found[0].contiguous(), found[1].contiguous(), found[2].contiguous()


@document_attention_backward.register_fake
def _(grad, kept, starts, extent, scale, window, kind):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in kept[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, starts, extent, *ctx.chosen = inputs
    ctx.save_for_backward(q, k, v, *output, starts, extent)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *kept, starts, extent = ctx.saved_tensors
    return *document_attention_backward(grad, kept, starts, extent, *ctx.chosen), None, None, None, None, None


document_attention.register_autograd(_differentiate, setup_context=_keep)


@contextlib.contextmanager
def _strict_determinism() -> Iterator[None]:
    """Demand determinism where PyTorch was told to warn of its lack: its FlashAttention repeats itself only then."""
    warns = torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    if warns:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if warns:
            torch.use_deterministic_algorithms(True, warn_only=True)


def _sides(window: int) -> dict[str, int]:
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


def _split(q: Tensor, k: Tensor, v: Tensor, bounds: list[int], scale: float, window: int) -> tuple[Tensor, Tensor]:
    out, sums = q.new_empty(*q.shape[:2], v.size(2)), q.new_empty(q.size(1), q.size(0), dtype=torch.float32)
    for start, end in _filled(bounds):
        part = slice(start, end)
        one = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            # PyTorch's CPU kernel is causal by itself; with a window the mask says everything.
            *_heads_first(q, k, v, part),
            0.0,
            not window,
            attn_mask=_near(end - start, window, q),
            scale=scale,
        )
        out[part], sums[:, part] = one[0][0].transpose(0, 1), one[1][0].view(q.size(1), -1)
    return out, sums


def _split_backward(
    grad: Tensor, kept: list[Tensor], bounds: list[int], scale: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, out, sums = kept
    results = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    for start, end in _filled(bounds):
        part = slice(start, end)
        ours, theirs = (t[part].transpose(0, 1)[None] for t in (grad, out))
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            ours, *_heads_first(q, k, v, part), theirs, sums[None, :, part].contiguous(), 0.0, not window,
            attn_mask=_near(end - start, window, q), scale=scale,
        )  # fmt: skip
        for result, one in zip(results, found, strict=True):
            # Heads that share keys and values add up their gradients.
            shared = one[0].unflatten(0, (result.size(1), -1)).sum(1)
            result[part] = shared.transpose(0, 1)
    return results  # type: ignore[return-value]


def _filled(bounds: list[int]) -> Iterator[tuple[int, int]]:
    """Yield where documents begin and end, but for empty ones: they round a number up, and the CPU's kernel cannot do them."""
    return ((start, end) for start, end in itertools.pairwise(bounds) if start < end)


def _heads_first(q: Tensor, k: Tensor, v: Tensor, part: slice) -> tuple[Tensor, ...]:
    """Return one document's (1, H, L, D), keys and values repeated for the heads that share them."""
    return tuple(t[part].transpose(0, 1).repeat_interleave(q.size(1) // t.size(1), 0)[None] for t in (q, k, v))


def _near(length: int, window: int, like: Tensor) -> Tensor | None:
    if not window:
        return None
    at = torch.arange(length)
    distance = at[:, None] - at[None, :]
    return torch.where((distance >= 0) & (distance < window), 0.0, -torch.inf).to(like.dtype)
