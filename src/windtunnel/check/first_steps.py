"""What every model must show in its first steps on one batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .core import CheckFailed

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: small models are fastest so, and other programs do not stall them. Also a decorator."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reached(module: nn.Module, step: int) -> set[str]:
    """Names of the parameters whose gradient is not zero. Raises CheckFailed for one that is not finite."""
    import torch

    found = set()
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        if grad is None:
            continue
        if not bool(torch.isfinite(grad).all()):
            raise CheckFailed(f"step {step}: the gradient of {name} is not finite")
        # Zero is not yet wrong: a head of zeros stops the gradient in the first step, and lets it through in the next.
        if bool(grad.any()):
            found.add(name)
    return found


def judge_first_steps(losses: list[float], start: float, untouched: list[str], tolerance: float, fall: float) -> None:
    """Require of a model's losses over a few steps on one batch what losses of training are like.

    Args:
        losses: of the steps, in nats a token.
        start: of a model that knows nothing, in nats a token.
        untouched: names of parameters that no gradient reached.
        tolerance: of the first loss, in nats.
        fall: share by which the last must be below the first.

    Raises:
        CheckFailed: they are not.
    """
    # A first loss far from ln V is a head that is not zero, a wrong target or a wrong scale: bugs that training hides for a
    # while.
    if not math.isfinite(losses[0]) or abs(losses[0] - start) > tolerance:
        raise CheckFailed(f"the first loss is {losses[0]:.4f}; of a model that knows nothing {start:.4f} is expected")
    if untouched:
        raise CheckFailed(f"no gradient reaches {', '.join(untouched[:4])}" + (", ..." if len(untouched) > 4 else ""))
    if not all(map(math.isfinite, losses)):
        raise CheckFailed("the loss became NaN on one batch")
    # Any model can learn one batch by heart; one that does not has a gradient that points elsewhere.
    if losses[-1] > (1 - fall) * losses[0]:
        raise CheckFailed(f"{len(losses)} steps on one batch hardly lower its loss: {losses[0]:.4f} to {losses[-1]:.4f}")
