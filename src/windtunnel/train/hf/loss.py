"""Output head and cross-entropy in one, chunk of tokens by chunk, so that all logits never exist at once."""

from __future__ import annotations

import torch
from torch import Tensor

# Logits that exist at a time: 1 GiB in bf16.
CHUNK_LOGITS = 2**29
LEAST_CHUNK = 256


def chunk_tokens(vocab: int) -> int:
    """Tokens whose logits are computed at a time."""
    return max(LEAST_CHUNK, CHUNK_LOGITS // vocab // LEAST_CHUNK * LEAST_CHUNK)


def linear_cross_entropy(x_BTC: Tensor, weight: Tensor, targets_BT: Tensor, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats of the logits x W^T, without ever holding them all.

    The gradients of x and W are computed chunk by chunk in the forward pass.

    Args:
        weight: (V, C) in the dtype of x. targets_BT: negative where there is none.
        chunk: tokens at a time; None: `chunk_tokens`.

    Returns:
        losses (B, T) fp32, detached, 0 where there is no target; and their sum, differentiable.
    """
    x_NC = x_BTC.reshape(-1, x_BTC.size(-1))
    losses, total = _LinearCrossEntropy.apply(x_NC, weight, targets_BT.reshape(-1), chunk or chunk_tokens(weight.size(0)))
    return losses.view(targets_BT.shape), total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, targets, chunk):  # type: ignore[no-untyped-def]
        need_x, need_w = ctx.needs_input_grad[:2]
        grad_x = torch.empty_like(x) if need_x else None
        # Several chunks add up in fp32; one chunk's product is final.
        wide = torch.float32 if x.size(0) > chunk else weight.dtype
        grad_w = torch.zeros_like(weight, dtype=wide) if need_w else None
        losses = torch.empty(x.size(0), dtype=torch.float32, device=x.device)
        for start in range(0, x.size(0), chunk):
            part = slice(start, start + chunk)
            logits = x[part] @ weight.T
            losses[part] = _loss_and_gradient_(logits, targets[part], need_x or need_w)
            if grad_x is not None:
                torch.mm(logits, weight, out=grad_x[part])
            if grad_w is not None:
                _add_product_(grad_w, logits.T, x[part])
            del logits
        ctx.save_for_backward(grad_x, None if grad_w is None else grad_w.to(weight.dtype))
        ctx.mark_non_differentiable(losses)
        return losses, losses.sum()

    @staticmethod
    def backward(ctx, _, grad):  # type: ignore[no-untyped-def]
        grad_x, grad_w = ctx.saved_tensors
        # Each is used once, so they are scaled where they lie.
        scaled = [None if g is None else g.mul_(grad.to(g.dtype)) for g in (grad_x, grad_w)]
        return scaled[0], scaled[1], None, None


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, in total's dtype whatever the factors'."""
    if total.dtype == a.dtype:
        torch.addmm(total, a, b, out=total)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _loss_and_gradient_(logits: Tensor, targets: Tensor, gradient: bool) -> Tensor:
    """Losses (N,) of logits (N, V); the logits are overwritten by the gradient of the losses' sum."""
    if logits.is_cuda:
        from .triton_loss import loss_and_gradient_

        return loss_and_gradient_(logits, targets, gradient)
    wide = logits.float()
    logsumexp = torch.logsumexp(wide, dim=1)
    valid = targets >= 0
    safe = targets.clamp(min=0)[:, None]
    losses = torch.where(valid, logsumexp - wide.gather(1, safe)[:, 0], 0.0)
    if gradient:
        probability = torch.exp(wide - logsumexp[:, None])
        probability.scatter_add_(1, safe, torch.full_like(safe, -1, dtype=probability.dtype))
        logits.copy_(probability * valid[:, None])
    return losses
