"""Updates of Muon and AdamW as functions on stacked or flat tensors; on GPUs `triton_updates` has them as a few kernels.

Muon (Jordan 2024) replaces a matrix's momentum by its nearest orthogonal matrix, here by the Polar
Express iteration (arXiv:2505.16932), then evens out row norms (NorMuon, arXiv:2510.05491) and applies
weight decay only where it agrees with the update (cautious, arXiv:2411.16085).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Polar Express, 5 iterations, safety factor 0.02, cushion 2: the paper's table.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalise(x_KRC: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix of each of K matrices (R, C), to the few percent that Muon needs."""
    # The Frobenius norm bounds the largest singular value: none is above 1, where the iteration would diverge, and 1.01
    # leaves room for the rounding of bf16.
    x = x_KRC / (x_KRC.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-6)
    # The first call of a custom operator imports torch.compile's machinery, which takes seconds: only where it is needed.
    custom = x.is_cuda or torch.compiler.is_compiling()
    return iterate(x, _gram_op, _polynomial_op) if custom else iterate(x)


def gram(x: Tensor, tall: bool) -> Tensor:
    """Return x x^T, or x^T x if tall: symmetric."""
    if x.is_cuda and x.dtype == torch.bfloat16:
        from .triton_symmetric import gram as symmetric

        return symmetric(x, tall)
    return x.mT @ x if tall else x @ x.mT


_gram_op = torch.library.custom_op("windtunnel::gram", gram, mutates_args=())


@_gram_op.register_fake
def _(x: Tensor, tall: bool) -> Tensor:
    side = x.size(2) if tall else x.size(1)
    return x.new_empty(x.size(0), side, side)


def polynomial(gram: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return a I + b G + c G G of symmetric G: with the identity inside, one product replaces a sum of two terms."""
    if gram.is_cuda and gram.dtype == torch.bfloat16:
        from .triton_symmetric import polynomial as symmetric

        return symmetric(gram, a, b, c)
    poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    poly.diagonal(dim1=-2, dim2=-1).add_(a)
    return poly


_polynomial_op = torch.library.custom_op("windtunnel::polynomial", polynomial, mutates_args=())


@_polynomial_op.register_fake
def _(gram: Tensor, a: float, b: float, c: float) -> Tensor:
    return torch.empty_like(gram)


def iterate(x: Tensor, gram: Callable[..., Tensor] = gram, polynomial: Callable[..., Tensor] = polynomial) -> Tensor:
    """Return what matrices (K, R, C) whose singular values are at most 1 become by the iteration."""
    tall = x.size(-2) > x.size(-1)
    for a, b, c in POLAR_EXPRESS:
        # Products on the smaller side: the Gram matrix of the larger one would cost more and say the same.
        poly = polynomial(gram(x, tall), a, b, c)
        x = x @ poly if tall else poly @ x
    return x


def muon_update(
    weight: Tensor, grad: Tensor, momentum: Tensor, second: Tensor,
    lr: Tensor, beta: Tensor, beta2: Tensor, decay: Tensor, low_precision: bool,
) -> None:  # fmt: skip
    """Take one Muon step in place. Scalars are 0-d tensors: nothing is compiled again when they change.

    Args:
        weight: K matrices (K, R, C) fp32, overwritten.
        grad: their gradients (K, R, C) fp32.
        momentum: running mean of the gradients (K, R, C) fp32, overwritten.
        second: running second moment of the update per row (K, R, 1) if R >= C, else per column (K, 1, C), overwritten.
        lr: learning rate.
        beta: decay of the momentum.
        beta2: decay of the second moment.
        decay: weight decay, times the learning rate.
        low_precision: run the iteration in bf16.
    """
    momentum.lerp_(grad, 1 - beta)
    # Nesterov's look-ahead: the gradient once more, mixed into the momentum that has it already.
    update = torch.lerp(grad, momentum, beta)
    update = orthogonalise(update.bfloat16() if low_precision else update).float()
    axis = -1 if weight.size(-2) >= weight.size(-1) else -2
    mean_square = update.square().mean(dim=axis, keepdim=True)
    second.lerp_(mean_square, 1 - beta2)
    scale = second.clamp_min(1e-10).rsqrt()
    # Keep the update's overall norm: only its distribution over rows changes.
    before = mean_square.sum(dim=(-2, -1), keepdim=True).sqrt()
    after = (mean_square * scale.square()).sum(dim=(-2, -1), keepdim=True).sqrt()
    update = update * (scale * (before / after.clamp_min(1e-10)))
    # Decay only where the step goes the same way: elsewhere it would work against what is being learned.
    agrees = (update * weight) >= 0
    weight.sub_(lr * update + lr * decay * weight * agrees)


def adamw_update(
    weight: Tensor, grad: Tensor, first: Tensor, second: Tensor,
    lr: Tensor, beta1: Tensor, beta2: Tensor, decay: Tensor, step: Tensor,
) -> None:  # fmt: skip
    """Take one AdamW step (arXiv:1711.05101) in place on flat fp32 tensors of one length; scalars are 0-d tensors."""
    first.lerp_(grad, 1 - beta1)
    second.lerp_(grad.square(), 1 - beta2)
    denominator = (second / (1 - beta2**step)).sqrt() + 1e-10
    weight.mul_(1 - lr * decay).sub_(lr / (1 - beta1**step) * first / denominator)
