"""Output head and loss in one, chunk by chunk, so that all logits never exist at once."""

from __future__ import annotations

import torch
from torch import Tensor

from .fused import wide

# Tokens whose logits exist at a time: 8192 x 32768 in bf16 is half a GiB.
CHUNK = 8192


def capped_cross_entropy(x_BTC: Tensor, weight: Tensor, targets_BT: Tensor, vocab: int, softcap: float) -> tuple[Tensor, Tensor]:
    """Apply head and loss in one, without ever holding all logits.

    logits = softcap * tanh(x W^T / softcap) over the first `vocab` rows of `weight`; the loss is
    cross-entropy in nats. The gradients of x and W are computed chunk by chunk in the forward pass.

    Returns:
        losses (B, T) fp32, detached, 0 where the target is negative; and their sum, differentiable.
    """
    losses, _, total = scored_cross_entropy(x_BTC, weight, targets_BT, vocab, softcap, hits=False)
    return losses, total


def scored_cross_entropy(
    x_BTC: Tensor, weight: Tensor, targets_BT: Tensor, vocab: int, softcap: float, *, hits: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return `capped_cross_entropy` that also tells, if `hits`, where the largest logit is the target's.

    Returns:
        losses (B, T), hits (B, T) bool or None, and the sum of the losses.
    """
    x_NC = x_BTC.reshape(-1, x_BTC.size(-1))
    losses, right, total = _CappedCrossEntropy.apply(x_NC, weight, targets_BT.reshape(-1), vocab, softcap, hits)
    return losses.view(targets_BT.shape), right.view(targets_BT.shape) if hits else None, total


class _CappedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, targets, vocab, softcap, hits):  # type: ignore[no-untyped-def]
        need_x, need_w = ctx.needs_input_grad[:2]
        # Cast once, not for each chunk.
        w = weight.to(x.dtype)
        grad_x = torch.empty_like(x) if need_x else None
        # Chunks add up: in bf16 a small chunk's gradient would vanish beside the sum.
        grad_w = torch.zeros_like(weight, dtype=wide(x[:0]).dtype) if need_w else None
        losses = torch.empty(x.size(0), dtype=wide(x[:0]).dtype, device=x.device)
        right = torch.empty(x.size(0) if hits else 0, dtype=torch.bool, device=x.device)
        for start in range(0, x.size(0), CHUNK):
            part = slice(start, start + CHUNK)
            logits = x[part] @ w.T
            if hits:
                right[part] = logits[:, :vocab].argmax(1) == targets[part]
            losses[part] = _loss_and_gradient_(logits, targets[part], vocab, softcap, need_x or need_w)
            if grad_x is not None:
                torch.mm(logits, w, out=grad_x[part])
            if grad_w is not None:
                _add_product_(grad_w, logits.T, x[part])
        ctx.save_for_backward(grad_x, grad_w)
        ctx.weight = weight
        ctx.mark_non_differentiable(losses, right)
        return losses, right, losses.sum()

    @staticmethod
    def backward(ctx, _losses, _right, grad):  # type: ignore[no-untyped-def]
        grad_x, grad_w = ctx.saved_tensors
        if grad_x is not None:
            grad_x = grad_x * grad.to(grad_x.dtype)
        if grad_w is not None and ctx.weight.grad is not None:
            # One pass rather than autograd's two; autograd then has nothing to add.
            ctx.weight.grad.addcmul_(grad_w, grad)
            grad_w = None
        return grad_x, None if grad_w is None else grad_w * grad, None, None, None, None


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to total, in fp32 whatever the factors'."""
    if total.is_cuda and a.dtype != torch.float32:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total += a @ b


def _loss_and_gradient_(logits: Tensor, targets: Tensor, vocab: int, softcap: float, gradient: bool) -> Tensor:
    """Return the losses (N,) of raw logits (N, V); the logits are overwritten by the gradient of the losses' sum."""
    if logits.is_cuda:
        from .triton_loss import loss_and_gradient_

        return loss_and_gradient_(logits, targets, vocab, softcap, gradient)
    capped = torch.tanh(wide(logits) / softcap)
    scaled = softcap * capped
    # Rows that fill the table up take no probability, and get no gradient.
    scaled[:, vocab:] = float("-inf")
    logsumexp = torch.logsumexp(scaled, dim=1)
    valid = targets >= 0
    safe = targets.clamp(min=0)[:, None]
    losses = torch.where(valid, logsumexp - scaled.gather(1, safe)[:, 0], 0.0)
    if gradient:
        probability = torch.exp(scaled - logsumexp[:, None])
        probability.scatter_add_(1, safe, torch.full_like(safe, -1, dtype=probability.dtype))
        logits.copy_(probability * (1 - capped.square()) * valid[:, None])
    return losses
