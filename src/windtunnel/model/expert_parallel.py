"""Expert parallelism: tokens travel to the ranks that hold their experts, and the experts' results travel back.

Each rank of a group holds the same number of neighbouring experts of every layer, and works on tokens of its own. In a layer
it sends a copy of each token to the rank of each chosen expert, one all-to-all there and one back. The gradient with respect
to the tokens takes the same way in the opposite direction; it is the only one, for experts are frozen here.

Every rank of a group must pass every layer equally often, with any number of tokens, none included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.recipe import UserError

Local = Callable[[Tensor, list[int]], Tensor]
"""What a rank does with rows (S, C) that are sorted by its experts, given how many each of these has; (S, C)."""


@dataclass(frozen=True)
class ExpertGroup:
    """The ranks that share the experts of each layer, and which of them this one is.

    Attributes:
        group: None where one rank holds all experts.
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def own(self, count: int) -> range:
        """Return the experts of this rank, of `count` in a layer.

        Raises:
            UserError: they cannot be shared out evenly.
        """
        if count % self.size:
            near = max(n for n in range(1, self.size + 1) if count % n == 0)
            raise UserError(
                f"layout.expert: {self.size} does not divide the {count} experts of a layer", f"--set layout.expert={near}"
            )
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)


def expert_group(rank: int, world: int, size: int) -> ExpertGroup:
    """Return the group of this rank where each `size` neighbouring ones of `world` share the experts; all ranks call it.

    Raises:
        UserError: the ranks cannot be split into such groups.
    """
    if world % size:
        raise UserError(f"layout.expert: {size} does not divide the {world} ranks", "--set layout.expert=1")
    if size == 1:
        return ExpertGroup()
    # Every rank makes every group, also those that it is not in: PyTorch counts them.
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, world, size)]
    return ExpertGroup(rank % size, size, groups[rank // size])


def through_experts(tokens: Tensor, chosen: Tensor, shares: Tensor, *, count: int, group: ExpertGroup, local: Local) -> Tensor:
    """Return the sum of what each token's experts make of it, weighed.

    Each token's sum is taken in the order of its choices, in fp32, whatever the number of ranks.

    Args:
        tokens: (N, C), this rank's.
        chosen: (N, K) numbers of experts.
        shares: (N, K), their weights in the sum.
        count: experts of the layer over all ranks.
        group: the ranks that share them.
        local: applies this rank's experts.

    Returns:
        (N, C) in the dtype of the tokens.
    """
    K = chosen.size(1)
    # Stable, so that rows of an expert are in the order of the tokens, however they travelled.
    by_expert, order = torch.sort(chosen.reshape(-1), stable=True)
    back = _inverse(order)
    counts = torch.searchsorted(by_expert, torch.arange(count + 1, device=order.device)).diff()
    # No name here is bound to the copies: each is freed as soon as the next is made.
    if group.group is None:
        rows = local(_Copies.apply(tokens, order, back, K), counts.tolist())
    else:
        rows = _away(_Copies.apply(tokens, order, back, K), counts, group, local)
    out: Tensor = _WeighedSum.apply(rows, shares, back)
    return out


def _away(rows: Tensor, counts: Tensor, group: ExpertGroup, local: Local) -> Tensor:
    """Send rows, sorted by expert, to the experts' ranks, apply `local` there, and return the results in the same order."""
    assert group.group is not None
    # How many rows come from whom: the counts travel before the rows.
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group.group)
    by_rank = torch.stack([counts.view(group.size, -1).sum(1), arriving.view(group.size, -1).sum(1)])
    sent, received = by_rank.tolist()  # the host must know how much memory to provide
    rows = _Exchange.apply(rows, sent, received, group.group)
    # They come rank by rank, and of each rank expert by expert; experts take theirs from all ranks together.
    theirs = arriving.view(group.size, -1)
    expert = torch.arange(theirs.size(1), device=rows.device).repeat(group.size)
    expert = expert.repeat_interleave(arriving, output_size=sum(received))
    order = torch.argsort(expert, stable=True)
    back = _inverse(order)
    # Both ways by the same function, since the inverse of an order is one too.
    rows = _Reordered.apply(rows, order, back)
    rows = local(rows, theirs.sum(0).tolist())
    rows = _Reordered.apply(rows, back, order)
    out: Tensor = _Exchange.apply(rows, received, sent, group.group)
    return out


def _inverse(order: Tensor) -> Tensor:
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return back


# Gathers whose gradients are gathers too: PyTorch's own would add with atomics, in an order that changes from run to run.


class _Exchange(torch.autograd.Function):
    """Rows to the other ranks, as many as `sent` says to each, for as many as `received` says."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.way = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        sent, received, group = ctx.way
        return _all_to_all(grad, received, sent, group), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = rows.new_empty(sum(received), rows.size(1))
    # As bytes: any backend carries them, whatever the dtype.
    dist.all_to_all_single(_bytes(out), _bytes(rows.contiguous()), received, sent, group=group)
    return out


def _bytes(rows: Tensor) -> Tensor:
    return rows.view(torch.uint8)


class _Copies(torch.autograd.Function):
    """K copies of each token (N, C), in an order (N * K,) of which `back` is the inverse."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, back: Tensor, K: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.K = K
        return tokens[order // K]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (back,) = ctx.saved_tensors
        return _sum_of_choices(grad, None, back, ctx.K), None, None, None


class _Reordered(torch.autograd.Function):
    """Rows in another order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad[ctx.saved_tensors[0]], None, None


class _WeighedSum(torch.autograd.Function):
    """The other way round than `_Copies`, each copy times its share (N, K)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shares: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(rows, shares, back)
        return _sum_of_choices(rows, shares, back, shares.size(1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        rows, shares, back = ctx.saved_tensors
        N, K = shares.shape
        toward, of_shares = torch.empty_like(rows), torch.empty_like(shares)
        # Choice by choice: all copies in fp32 at once would be the largest tensor of the layer.
        for k, places in enumerate(back.view(N, K).unbind(1)):
            of_shares[:, k] = (rows[places].float() * grad.float()).sum(1)
            toward[places] = (grad.float() * shares[:, k, None].float()).to(rows.dtype)
        return toward, of_shares, None


def _sum_of_choices(rows: Tensor, shares: Tensor | None, back: Tensor, K: int) -> Tensor:
    """Sum rows (N * K, C) over each token's copies in fp32, one choice after the other; (N, C) in the rows' dtype."""
    total = torch.zeros(back.numel() // K, rows.size(1), dtype=torch.float32, device=rows.device)
    for k, places in enumerate(back.view(-1, K).unbind(1)):
        one = rows[places].float()
        total += one if shares is None else one * shares[:, k, None].float()
    return total.to(rows.dtype)
