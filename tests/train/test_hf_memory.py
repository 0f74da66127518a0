"""What a step keeps and makes: never all logits, and of a recomputed block only its input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hf_models import MODELS, batch, job_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from windtunnel.recipe import LoRA
from windtunnel.train import linear_cross_entropy
from windtunnel.train.hf.loss import chunk_tokens


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def saved_by(job: Any, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that a forward pass keeps for its backward pass, parameters excepted."""
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        total = job.network(x, y)[1]
    total.backward()
    return list(kept.values())


@pytest.mark.parametrize("chunk", [64, 100, 192, 1000])
@pytest.mark.parametrize("trained", ["both", "x", "head"])
def test_loss_in_chunks_is_cross_entropy(chunk: int, trained: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 96, 32, requires_grad=trained != "head")
    head = torch.randn(500, 32, requires_grad=trained != "x")
    y = torch.randint(0, 500, (2, 96))
    y[1, :40] = -1
    losses, total = linear_cross_entropy(x, head, y, chunk)
    (3 * total).backward()
    a, b = x.detach().clone().requires_grad_(), head.detach().clone().requires_grad_()
    reference = torch.nn.functional.cross_entropy((a @ b.T).flatten(0, 1), y.flatten(), ignore_index=-1, reduction="none")
    (3 * reference.sum()).backward()
    torch.testing.assert_close(losses.flatten(), reference.detach(), rtol=1e-5, atol=1e-5)
    assert losses[1, 0] == 0
    for ours, wanted in ((x, a), (head, b)):
        if ours.requires_grad:
            torch.testing.assert_close(ours.grad, wanted.grad, rtol=1e-4, atol=1e-4)
        else:
            assert ours.grad is None


def test_loss_makes_no_more_logits_than_a_chunk() -> None:
    x, head = torch.randn(1, 512, 16, requires_grad=True), torch.randn(1000, 16, requires_grad=True)
    y = torch.randint(0, 1000, (1, 512))
    with Largest() as largest:
        linear_cross_entropy(x, head, y, 64)[1].backward()
    assert largest.elements == 64 * 1000
    with torch.no_grad():
        losses, total = linear_cross_entropy(x, head, y, 64)
    assert not total.requires_grad
    assert float(losses.sum()) == pytest.approx(float(total), rel=1e-5)


def test_a_chunk_of_logits_is_at_most_a_gibibyte_of_bf16() -> None:
    for vocab in (1000, 32_000, 128_256, 152_064, 262_144):
        tokens = chunk_tokens(vocab)
        assert tokens % 256 == 0
        assert 2**28 < tokens * vocab <= 2**29 or vocab < 1000


@pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["full", "lora"])
def test_no_tensor_of_all_logits_is_kept(lora: LoRA | None) -> None:
    wide = MODELS["llama"] | {"vocab_size": 2048}
    x, y = batch(16)
    with job_of(wide, lora=lora) as job:
        largest = max(tensor.numel() for tensor in saved_by(job, x, y))
    assert largest < x.numel() * 2048 / 4


def test_a_recomputed_block_keeps_its_input_alone() -> None:
    x, y = batch(8)
    kept = {}
    for recompute in ("none", "block"):
        with job_of(MODELS["llama"] | {"num_hidden_layers": 6}, recompute=recompute) as job:
            kept[recompute] = sum(tensor.numel() for tensor in saved_by(job, x, y))
    stream = x.numel() * 64
    assert kept["block"] < 6 * stream + 8 * stream  # inputs of six blocks; final norm and loss
    assert kept["none"] > 6 * 10 * stream
