"""Tells the ledger where a step is, and what its memory is for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_iter

from windtunnel.model import RecursiveGPT

from .trace_ledger import MemoryLedger

EMBEDDING, LOSS, HEAD, ROOT, OPTIMIZER = (
    "forward, embedding", "loss", "backward, head", "backward, embedding", "optimizer",
)  # fmt: skip


def forward_phase(block: int) -> str:
    """Return the name of the forward phase of the block with this number, counted from 0."""
    return f"forward, block {block}"


def backward_phase(block: int) -> str:
    """Return the name of the backward phase of the block with this number, counted from 0."""
    return f"backward, block {block}"


def watch_blocks(ledger: MemoryLedger, root: nn.Module, blocks: Sequence[tuple[nn.Module, nn.Module]]) -> None:
    """Begin the ledger's phases as a step comes to them.

    Args:
        ledger: what the phases are told to.
        root: called with a micro-batch.
        blocks: of each the module called first and the one called last.
    """
    root.register_forward_pre_hook(lambda *_: ledger.begin(EMBEDDING, "activations"), prepend=True)
    root.register_forward_hook(lambda *_: ledger.begin(HEAD, "temporaries"))
    for i, (first, last) in enumerate(blocks):
        before, after = forward_phase(i), LOSS if i == len(blocks) - 1 else None
        first.register_forward_pre_hook(
            lambda _, args, keywords, i=i, phase=before: _before(ledger, i, phase, (args, keywords)),
            with_kwargs=True,
            prepend=True,  # before FSDP2 gathers the block
        )
        last.register_forward_hook(lambda _, args, out, i=i, after=after: _after(ledger, i, after, out))


def _before(ledger: MemoryLedger, block: int, phase: str, inputs: Any) -> None:
    ledger.begin(phase)
    if block == 0:
        _when_gradient(ledger, inputs, ROOT)


def _after(ledger: MemoryLedger, block: int, phase: str | None, output: Any) -> None:
    _when_gradient(ledger, output, backward_phase(block))
    if phase is not None:
        ledger.begin(phase, "loss")


def _when_gradient(ledger: MemoryLedger, tensors: Any, phase: str) -> None:
    """Begin a phase when the first of the tensors that has a gradient gets it."""
    for tensor in tree_iter(tensors):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            # Autograd comes to a block's output first on its way back: its gradient is the beginning of that block's backward
            # pass.
            tensor.register_hook(lambda _: ledger.begin(phase))
            return


@contextlib.contextmanager
def watch_supervision(ledger: MemoryLedger, model: RecursiveGPT) -> Iterator[None]:
    """Begin the ledger's phases as a step of a recursive model comes to them: forward, loss and backward of supervision steps."""
    read, advance, answer, backward = model.read, model.advance, model.answer, Tensor.backward
    number = 0

    def reading(*args: Any) -> Any:
        nonlocal number
        ledger.begin(EMBEDDING, "activations")
        number = 0
        return read(*args)

    def advancing(*args: Any) -> Any:
        nonlocal number
        number += 1
        ledger.begin(f"forward, supervision step {number}", "activations")
        return advance(*args)

    def answering(*args: Any) -> Any:
        answered = answer(*args)
        ledger.begin(f"loss, supervision step {number}", "loss")
        return answered

    def going_back(loss: Tensor, *args: Any, **keywords: Any) -> Any:
        ledger.begin(f"backward, from supervision step {number}", "temporaries")
        return backward(loss, *args, **keywords)

    with contextlib.ExitStack() as stack:
        for target, name, stand_in in (
            (model, "read", reading), (model, "advance", advancing), (model, "answer", answering),
            (Tensor, "backward", going_back),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(target, name, stand_in))
        yield


@contextlib.contextmanager
def watch_sharding(ledger: MemoryLedger, network: nn.Module) -> Iterator[None]:
    """Tell gradients, and FSDP2's gathered weights and buffers of collectives, from other memory."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    unshard, wait, reduce = FSDPParamGroup.unshard, FSDPParamGroup.wait_for_unshard, FSDPParamGroup.post_backward

    def gathering(group: Any, *args: Any, **keywords: Any) -> Any:
        with ledger.allocating("communication"):
            return unshard(group, *args, **keywords)

    def gathered(group: Any, *args: Any, **keywords: Any) -> Any:
        with ledger.allocating("communication"):
            result = wait(group, *args, **keywords)
        for parameter in group.fsdp_params:
            ledger.hold(list(parameter.all_gather_outputs), "gathered_weights")
            ledger.hold([parameter._unsharded_param], "gathered_weights")
        return result

    def reducing(group: Any, *args: Any, **keywords: Any) -> Any:
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            ledger.hold([None if whole is None else whole.grad, parameter.unsharded_accumulated_grad], "gradients")
        with ledger.allocating("communication"):
            result = reduce(group, *args, **keywords)
        for parameter in group.fsdp_params:
            ledger.hold([parameter.sharded_param.grad], "gradients")
        return result

    def accumulated(parameter: Tensor) -> None:
        ledger.hold([parameter.grad], "gradients")

    with contextlib.ExitStack() as stack:
        # FSDP2 tells of its own gradients; those of plain parameters are found as they are added.
        for parameter in network.parameters():
            if parameter.requires_grad and not isinstance(parameter, DTensor):  # one rank shards nothing
                stack.callback(parameter.register_post_accumulate_grad_hook(accumulated).remove)
        for name, stand_in in (("unshard", gathering), ("wait_for_unshard", gathered), ("post_backward", reducing)):
            stack.enter_context(mock.patch.object(FSDPParamGroup, name, stand_in))
        yield
