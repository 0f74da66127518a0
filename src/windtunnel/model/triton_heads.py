"""GPU kernels behind `fused.fused_split_heads`: one pass over queries, keys and values each way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fused import EPSILON, GATE_RANGE

TOKENS = 16


@triton.jit
def _forward(
    qkv, cos, sin, gate, extra, q, k, v, factor, N, T, gate_stride, HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr,
    GATED: tl.constexpr, EPS: tl.constexpr, GAIN: tl.constexpr, RANGE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(1)
    live = (token < N)[:, None]
    d = tl.arange(0, HALF)[None, :]
    source = qkv + (token[:, None] * (HEADS + 2 * KV) + head) * (2 * HALF) + d
    a = tl.load(source, mask=live, other=0.0).to(tl.float32)
    b = tl.load(source + HALF, mask=live, other=0.0).to(tl.float32)
    if head < HEADS + KV:
        angle = (token % T)[:, None] * HALF + d
        c = tl.load(cos + angle)
        s = tl.load(sin + angle)
        x = a * c - b * s
        y = b * c + a * s
        f = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / (2 * HALF) + EPS)
        tl.store(factor + token * (HEADS + KV) + head, f, mask=token < N)
        x = x * (f * GAIN)[:, None]
        y = y * (f * GAIN)[:, None]
        if head < HEADS:
            at = q + (token[:, None] * HEADS + head) * (2 * HALF) + d
        else:
            at = k + (token[:, None] * KV + head - HEADS) * (2 * HALF) + d
    else:
        x = a
        y = b
        kv = head - HEADS - KV
        offset = (token[:, None] * KV + kv) * (2 * HALF) + d
        if GATED:
            g = RANGE * tl.sigmoid(tl.load(gate + token * gate_stride + kv, mask=token < N, other=0.0).to(tl.float32))[:, None]
            x += g * tl.load(extra + offset, mask=live, other=0.0).to(tl.float32)
            y += g * tl.load(extra + offset + HALF, mask=live, other=0.0).to(tl.float32)
        at = v + offset
    tl.store(at, x.to(q.dtype.element_ty), mask=live)
    tl.store(at + HALF, y.to(q.dtype.element_ty), mask=live)


@triton.jit
def _backward(
    dq, dk, dv, q, k, factor, cos, sin, gate, extra, dqkv, dgate, dextra, N, T, gate_stride,
    dq_b, dq_t, dq_h, dk_b, dk_t, dk_h, dv_b, dv_t, dv_h,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, GATED: tl.constexpr,
    GAIN: tl.constexpr, RANGE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(1)
    live = (token < N)[:, None]
    d = tl.arange(0, HALF)[None, :]
    batch, time = token // T, token % T
    target = dqkv + (token[:, None] * (HEADS + 2 * KV) + head) * (2 * HALF) + d
    if head < HEADS + KV:
        if head < HEADS:
            source = dq + (batch * dq_b + time * dq_t + head * dq_h)[:, None] + d
            saved = q + (token[:, None] * HEADS + head) * (2 * HALF) + d
        else:
            source = dk + (batch * dk_b + time * dk_t + (head - HEADS) * dk_h)[:, None] + d
            saved = k + (token[:, None] * KV + head - HEADS) * (2 * HALF) + d
        f = tl.load(factor + token * (HEADS + KV) + head, mask=token < N, other=0.0)[:, None]
        x = tl.load(saved, mask=live, other=0.0).to(tl.float32) / GAIN
        y = tl.load(saved + HALF, mask=live, other=0.0).to(tl.float32) / GAIN
        dx = tl.load(source, mask=live, other=0.0).to(tl.float32) * GAIN
        dy = tl.load(source + HALF, mask=live, other=0.0).to(tl.float32) * GAIN
        mean = ((tl.sum(x * dx, 1) + tl.sum(y * dy, 1)) / (2 * HALF))[:, None]
        dx = (dx - x * mean) * f
        dy = (dy - y * mean) * f
        angle = time[:, None] * HALF + d
        c = tl.load(cos + angle)
        s = tl.load(sin + angle)
        da = dx * c + dy * s
        db = dy * c - dx * s
    else:
        kv = head - HEADS - KV
        source = dv + (batch * dv_b + time * dv_t + kv * dv_h)[:, None] + d
        da = tl.load(source, mask=live, other=0.0).to(tl.float32)
        db = tl.load(source + HALF, mask=live, other=0.0).to(tl.float32)
        if GATED:
            offset = (token[:, None] * KV + kv) * (2 * HALF) + d
            s1 = tl.sigmoid(tl.load(gate + token * gate_stride + kv, mask=token < N, other=0.0).to(tl.float32))
            e1 = tl.load(extra + offset, mask=live, other=0.0).to(tl.float32)
            e2 = tl.load(extra + offset + HALF, mask=live, other=0.0).to(tl.float32)
            raw = (tl.sum(da * e1, 1) + tl.sum(db * e2, 1)) * RANGE * s1 * (1 - s1)
            tl.store(dgate + token * KV + kv, raw.to(dgate.dtype.element_ty), mask=token < N)
            scale = (RANGE * s1)[:, None]
            tl.store(dextra + offset, (da * scale).to(dextra.dtype.element_ty), mask=live)
            tl.store(dextra + offset + HALF, (db * scale).to(dextra.dtype.element_ty), mask=live)
    tl.store(target, da.to(dqkv.dtype.element_ty), mask=live)
    tl.store(target + HALF, db.to(dqkv.dtype.element_ty), mask=live)


def split_forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, gate: Tensor | None, extra: Tensor | None, heads: int, kv_heads: int, gain: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v and the norm factors (B, T, heads + kv_heads) of qkv (B, T, heads + 2 kv_heads, D); D / 2 a power of two."""
    B, T, _, D = qkv.shape
    qkv = qkv.contiguous()
    gated = gate is not None and extra is not None
    gate, extra = (qkv.new_empty(0) if t is None else t.contiguous() for t in (gate, extra))
    q = qkv.new_empty(B, T, heads, D)
    k, v = (qkv.new_empty(B, T, kv_heads, D) for _ in range(2))
    factor = qkv.new_empty(B, T, heads + kv_heads, dtype=torch.float32)
    grid = (triton.cdiv(B * T, TOKENS), heads + 2 * kv_heads)
    _forward[grid](
        qkv, cos, sin, gate, extra, q, k, v, factor, B * T, T, kv_heads,
        HEADS=heads, KV=kv_heads, HALF=D // 2, GATED=gated, EPS=EPSILON, GAIN=gain, RANGE=GATE_RANGE, TOKENS=TOKENS,
    )  # fmt: skip
    return q, k, v, factor


def split_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, q: Tensor, k: Tensor, factor: Tensor, cos: Tensor, sin: Tensor,
    gate: Tensor | None, extra: Tensor | None, gain: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of qkv, gate and extra (the last two empty without a gate)."""
    B, T, heads, D = q.shape
    kv_heads = k.size(2)
    gated = gate is not None and extra is not None
    gate, extra = (dq.new_empty(0) if t is None else t.contiguous() for t in (gate, extra))
    dq, dk, dv = (t if t.stride(-1) == 1 else t.contiguous() for t in (dq, dk, dv))
    dqkv = dq.new_empty(B, T, heads + 2 * kv_heads, D)
    dgate = torch.empty_like(gate)
    dextra = torch.empty_like(extra)
    grid = (triton.cdiv(B * T, TOKENS), heads + 2 * kv_heads)
    _backward[grid](
        dq, dk, dv, q, k, factor, cos, sin, gate, extra, dqkv, dgate, dextra, B * T, T, kv_heads,
        *dq.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
        HEADS=heads, KV=kv_heads, HALF=D // 2, GATED=gated, GAIN=gain, RANGE=GATE_RANGE, TOKENS=TOKENS,
    )  # fmt: skip
    return dqkv, dgate, dextra
