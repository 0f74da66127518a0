"""Output head and cross-entropy in one, chunk of tokens by chunk, so that all logits never exist at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from windtunnel.data import Batch

# Logits that exist at a time: 1 GiB in bf16.
CHUNK_LOGITS = 2**29
LEAST_CHUNK = 256


class TokenObjective(Protocol):
    """A loss that is a function of each target's log-probability.

    Attributes:
        share: what this micro-batch adds to the number by which the step's sum of losses is divided.
    """

    share: float

    def __call__(self, log_probabilities: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (n,) of targets, and their derivatives by the log-probabilities (n,), all fp32.

        Args:
            log_probabilities: (n,) fp32 in nats.
            at: (n,) int64, flattened positions of these targets; where a position has no target what is returned is dropped.
        """


@dataclass
class ObjectiveBatch(Batch):
    """A micro-batch whose loss is no cross-entropy; `weights` are not used."""

    objective: TokenObjective | None = None


def chunk_tokens(vocab: int) -> int:
    """Return the tokens whose logits are computed at a time."""
    return max(LEAST_CHUNK, CHUNK_LOGITS // vocab // LEAST_CHUNK * LEAST_CHUNK)


def even_chunks(count: int, most: int) -> int:
    """Return how many of `count` rows to take at a time: at most `most`, as many each time, in whole tiles of a product."""
    times = max(1, -(-count // most))
    return min(most, -(-count // times // LEAST_CHUNK) * LEAST_CHUNK)


def linear_cross_entropy(
    x_BTC: Tensor, weight: Tensor, targets_BT: Tensor, chunk: int | None = None, *,
    factors_BT: Tensor | None = None, rows: Tensor | None = None, trained: Tensor | None = None, first: int = 0,
    objective: TokenObjective | None = None, cap: tuple[float, float] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the cross-entropy in nats of the logits x W^T, without ever holding them all, or the sum of another loss.

    The gradients of x and W are computed chunk by chunk in the forward pass.

    Args:
        x_BTC: what the head is applied to, (B, T, C).
        weight: (V, C) in the dtype of x.
        targets_BT: the token of each position; negative where there is none.
        chunk: positions at a time; None: `chunk_tokens`.
        factors_BT: of each target's loss in the sum; None: all are 1.
        rows: flat positions to score, each once, among them every one that has a target: where few have one, the
            logits of the others are never computed. None: all.
        trained: (n, C) in the dtype of x, in place of W's rows [first, first + n) and differentiable beside a frozen W: its
            gradient takes n columns of the logits, not W's whole.
        first: W's row in whose place the first row of `trained` stands.
        objective: makes the summed loss of a target's log-probability; None: it is its negative times the factor.
        cap: (a, b) of logits that are b tanh(a x W^T) (Gemma 2); None: they are x W^T.

    Returns:
        cross-entropies (B, T) fp32, detached, without their factors, 0 where there is no target; and the sum of factor times
        loss, differentiable in x, W and `trained`.
    """
    assert objective is None or factors_BT is None
    x_NC, flat = x_BTC.reshape(-1, x_BTC.size(-1)), targets_BT.reshape(-1)
    factors = None if factors_BT is None else factors_BT.reshape(-1).float()
    chunk = chunk or chunk_tokens(weight.size(0))
    losses, total = _LinearCrossEntropy.apply(x_NC, weight, trained, flat, (first, factors, rows, chunk, objective, cap))
    return losses.view(targets_BT.shape), total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, trained, targets, how):  # type: ignore[no-untyped-def]
        need_x, need_w, need_t = ctx.needs_input_grad[:3]
        first, factors, rows, chunk, objective, cap = how
        count = targets.numel() if rows is None else rows.numel()
        chunk = even_chunks(count, chunk)
        # Of what is not scored the gradient is zero.
        grad_x = (torch.empty_like if rows is None else torch.zeros_like)(x) if need_x else None
        losses = torch.zeros(x.size(0), dtype=torch.float32, device=x.device)
        # Several chunks add up in fp32; one chunk's product is final.
        wide = torch.float32 if count > chunk else weight.dtype
        grad_w = torch.zeros_like(weight, dtype=wide) if need_w else None
        grad_t = torch.zeros_like(trained, dtype=wide) if need_t else None
        own = slice(first, first + (0 if trained is None else trained.size(0)))
        change = None if trained is None else trained - weight[own]
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for start in range(0, count, chunk):
            part = slice(start, start + chunk)
            if rows is None:
                x_part, target, factor = x[part], targets[part], None if factors is None else factors[part]
            else:
                x_part, target, factor = (None if t is None else t.index_select(0, rows[part]) for t in (x, targets, factors))
            logits = x_part @ weight.T
            # The new tokens' columns are computed again by the rows that are trained: the frozen table's are only
            # placeholders.
            if trained is not None:
                logits[:, own] = x_part @ trained.T
            slope = None if cap is None else _cap_(logits, *cap)
            if objective is not None:
                at = torch.arange(start, start + target.numel(), device=x.device) if rows is None else rows[part]
                # The objective needs log-probabilities first, so that logits are kept until its derivative is known: that is
                # the factor of the gradient.
                value, derivative = objective(-_loss_and_gradient_(logits, target, None, False), at)
                factor = -derivative  # the cross-entropy is minus the log-probability
                total += torch.where(target >= 0, value, 0.0).sum()
            loss = _loss_and_gradient_(logits, target, factor, need_x or need_w or need_t)
            if slope is not None:
                logits.mul_(slope)
            if rows is None:
                losses[part] = loss
                if grad_x is not None:
                    torch.mm(logits, weight, out=grad_x[part])
                    _add_changed_(grad_x[part], logits[:, own], change)
            else:
                losses.index_copy_(0, rows[part], loss)
                if grad_x is not None:
                    grad_x.index_copy_(0, rows[part], _add_changed_(logits @ weight, logits[:, own], change))
            if grad_w is not None:
                _add_product_(grad_w, logits.T, x_part)
            if grad_t is not None:
                _add_product_(grad_t, logits[:, own].T, x_part)
            del logits, slope
        # The loss is the last operation, its gradient a number: what was computed in the forward pass is only scaled later.
        ctx.save_for_backward(grad_x, *(None if g is None else g.to(weight.dtype) for g in (grad_w, grad_t)))
        ctx.mark_non_differentiable(losses)
        return losses, total if objective is not None else (losses if factors is None else losses * factors).sum()

    @staticmethod
    def backward(ctx, _, grad):  # type: ignore[no-untyped-def]
        # Each is used once, so they are scaled where they lie.
        scaled = [None if g is None else g.mul_(grad.to(g.dtype)) for g in ctx.saved_tensors]
        return *scaled, None, None


def _cap_(logits: Tensor, inward: float, outward: float) -> Tensor:
    """Turn logits z into outward tanh(inward z) in place; return the derivative at each."""
    logits.mul_(inward).tanh_()
    slope = logits.square().neg_().add_(1.0).mul_(inward * outward)
    logits.mul_(outward)
    return slope


def _add_changed_(grad_x: Tensor, logits: Tensor, change: Tensor | None) -> Tensor:
    """Return grad_x (N, C), of logits of the whole table, with what other rows than the table's make of it (n, C) added to it."""
    return grad_x if change is None else grad_x.addmm_(logits, change)


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to `total` in place, in its dtype whatever the factors'."""
    if total.dtype == a.dtype:
        torch.addmm(total, a, b, out=total)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _loss_and_gradient_(logits: Tensor, targets: Tensor, factors: Tensor | None, gradient: bool) -> Tensor:
    """Return the losses (N,) of logits (N, V), which are overwritten by the gradient of the sum of factor times loss."""
    if logits.is_cuda:
        from .triton_loss import loss_and_gradient_

        return loss_and_gradient_(logits, targets, factors, gradient)
    wide = logits.float()
    logsumexp = torch.logsumexp(wide, dim=1)
    valid = targets >= 0
    safe = targets.clamp(min=0)[:, None]
    losses = torch.where(valid, logsumexp - wide.gather(1, safe)[:, 0], 0.0)
    if gradient:
        probability = torch.exp(wide - logsumexp[:, None])
        probability.scatter_add_(1, safe, torch.full_like(safe, -1, dtype=probability.dtype))
        scale = valid if factors is None else torch.where(valid, factors, 0.0)
        logits.copy_(probability * scale[:, None])
    return losses
