"""One optimizer step of a recipe on tensors without data, with every byte it holds written down."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from windtunnel.checkpoint import Slice
from windtunnel.data import Batch
from windtunnel.model import GPT, GPTShape, RecursiveGPT, blocks_of, new_model
from windtunnel.recipe import HuggingFaceModel, Layout, Recipe

from . import gpt
from .engine import COMPUTE, Feed
from .groups import BufferGroup, MatrixGroup
from .optimizer import MuonAdamW
from .ranks import Ranks
from .trace_ledger import MemoryLedger, Peak
from .trace_standins import like_a_gpu, outside_fake, partitioned_compile
from .trace_watch import OPTIMIZER, watch_blocks, watch_sharding, watch_supervision
from .trial import TRIAL_PROGRESS

# With accumulation the second micro-batch finds the first one's gradients; those after it find no more.
MOST_MICRO_BATCHES = 2


@contextlib.contextmanager
def fake_ranks(world: int) -> Iterator[Ranks]:
    """Make this process rank 0 of `world` meanwhile, whose collectives exchange nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    importlib.import_module("torch.distributed._tools.fake_collectives")  # teaches fake tensors about collectives
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield Ranks(0, world, torch.device("cpu"), None)
    finally:
        dist.destroy_process_group()


def trace_gpt(recipe: Recipe, layout: Layout, vocab: int) -> list[Peak]:
    """Return the peaks of one step of a GPT, phase by phase, in the step's order."""
    cuda = layout.device == "cuda"
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(fake_ranks(layout.ranks))
        stack.enter_context(like_a_gpu() if cuda else partitioned_compile())
        stack.enter_context(mock.patch.object(gpt, "build_model", _build_gpt))
        stack.enter_context(FakeTensorMode())
        # On a GPU the blocks are fused kernels of their own, and only the optimizer is compiled.
        # Nothing can be recorded without a GPU: what a recording holds beside the passes is the plan's word alone.
        layout = replace(layout, compile=layout.compile and not cuda, recorded=False)
        # No token has bytes here: nothing is validated.
        engine = gpt.build_gpt_engine(recipe, layout, ranks, Feed(_Batches(layout), list, vocab, np.zeros(0)))
        model, optimizer = engine.model, engine.optimizer
        for group in optimizer.groups:
            if isinstance(group, MatrixGroup):
                group.muon.low_precision = cuda
        ledger = MemoryLedger()
        _hold_gpt(ledger, model, optimizer)
        if isinstance(model, RecursiveGPT):
            stack.enter_context(watch_supervision(ledger, model))
        else:
            watch_blocks(ledger, model, [(block.attention, block.mlp) for block in model.layers()])
        stack.enter_context(ledger)
        engine.before_update = lambda: ledger.begin(OPTIMIZER)
        # Once is enough: the states exist already, and memory of the second step is that of the first.
        engine.step(1, TRIAL_PROGRESS)
        _hold_gpt(ledger, model, optimizer)
        return ledger.peaks()


def _build_gpt(shape: GPTShape, *, device: torch.device, compute: torch.dtype, seed: int, recompute: str) -> GPT:
    """Build as `build_model` does, but not by way of 'meta': a fake tensor cannot be replaced where it is."""
    with device:
        model = new_model(shape, compute, recompute)
    model.initialise(seed)
    return model


def _hold_gpt(ledger: MemoryLedger, model: GPT, optimizer: MuonAdamW) -> None:
    for part in model.parts():
        for quantised in filter(None, part.fp8.values()):
            ledger.hold([quantised.rows, quantised.columns], "compute_weights")
    ledger.hold([*model.parameters(), *model.buffers()], "weights")
    for group in optimizer.groups:
        assert isinstance(group, BufferGroup)
        ledger.hold(group.weights, "weights")
        ledger.hold(group.grads, "gradients")
        if group.average is not None:
            ledger.hold(group.average, "optimizer_states")
        ledger.hold([part.local for _, part in group.states() if isinstance(part, Slice)], "optimizer_states")


def trace_hf(recipe: Recipe, layout: Layout, spread: dict[str, Any], config: dict[str, Any]) -> list[Peak]:
    """Return the peaks of one step of a Hugging Face model, phase by phase, at the depth that `config` says.

    Args:
        recipe: of fine-tuning.
        layout: how the work is spread.
        config: the mapping of a config.json, cut to the depth that is traced.
        spread: the plan's layout as JSON: how weights are sharded, and whether blocks are computed again.
    """
    from .hf import build, build_hf, optimizer

    model, stage = recipe.model, recipe.sft
    assert isinstance(model, HuggingFaceModel)
    assert stage is not None
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(fake_ranks(layout.ranks))
        stack.enter_context(partitioned_compile())
        if layout.device == "cuda":
            stack.enter_context(like_a_gpu())
        # The mesh is a table of ranks that is read; modules on 'meta' are changed in place, which fake tensors cannot be.
        for name in ("make_mesh", "skeleton", "add_lora", "freeze_in_fp8"):
            stack.enter_context(mock.patch.object(build, name, outside_fake(getattr(build, name))))
        stack.enter_context(mock.patch.object(build, "_set_dtypes", _then_fake(outside_fake(build._set_dtypes))))
        # The update is one kernel that needs no memory.
        stack.enter_context(mock.patch.object(optimizer, "_update", _no_update))
        stack.enter_context(FakeTensorMode())
        made = build_hf(
            config, lora=model.adapter, weights=model.weights, master=stage.master, states=stage.states,
            recompute=spread["recompute"], compile=layout.compile, shard=spread["shard"], ranks=ranks,
            sequence=layout.sequence, seed=recipe.seed, compute=COMPUTE[layout.precision],
        )  # fmt: skip
        batches = _Batches(layout)
        # Once without the ledger: torch.compile does not trace under a mode that it does not know.
        made.step([batches.next_batch()], layout.batch_tokens, 0.0)
        ledger = MemoryLedger()
        ledger.hold([*made.network.parameters(), *made.network.buffers()], "weights")
        ledger.hold([tensor for _, tensor in made.optimizer.states()], "optimizer_states")
        watch_blocks(ledger, made.network, [(block, block) for block in blocks_of(made.network.model)])
        stack.enter_context(watch_sharding(ledger, made.network))
        stack.enter_context(ledger)

        def mark(phase: str) -> None:
            if phase == "backward":
                ledger.begin(OPTIMIZER)

        made.step((batches.next_batch() for _ in range(batches.accumulation)), layout.batch_tokens, 0.0, mark)
        return ledger.peaks()


def _no_update(*_: object) -> None:
    """Do nothing; not a mock, which would keep what it is called with."""


def _then_fake(set_dtypes: Callable[..., None]) -> Callable[..., None]:
    """Return `set_dtypes` as one that then makes tensors on 'meta' fake ones; what is tied stays tied."""

    def run(model: nn.Module, **dtypes: torch.dtype) -> None:
        set_dtypes(model, **dtypes)
        # Keyed by the parameters themselves, so that none goes and leaves its place in memory to another.
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if parameter not in made:
                        made[parameter] = nn.Parameter(_like(parameter), requires_grad=parameter.requires_grad)
                    module._parameters[name] = made[parameter]
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else _like(buffer)

    return run


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


class _Batches:
    """Tokens of the right shape; their values do not exist."""

    epochs, position, step_sequences, wait_seconds = 0.0, 0, 0, 0.0

    def __init__(self, layout: Layout) -> None:
        self.accumulation = min(layout.accumulation, MOST_MICRO_BATCHES)
        self._shape = (layout.micro_batch, layout.sequence)

    def next_batch(self) -> Batch:
        """Return (micro_batch, sequence) tokens."""
        return Batch(torch.zeros(self._shape, dtype=torch.int64), torch.zeros(self._shape, dtype=torch.int64))

    def seek(self, position: int) -> None:
        """Stay: all are alike."""

    def close(self) -> None:
        """Close nothing: nothing runs."""
