"""Packed documents train as they would alone: no position sees another document, and each counts its own positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hf_models import MODELS, Row, drawn, job_of, packed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from windtunnel.recipe import LoRA, UserError
from windtunnel.train.hf import attention, documents

LENGTHS = (9, 14, 5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recompute", ["none", "block"])
def test_packed_documents_are_as_alone(model: str, recompute: str) -> None:
    found = drawn(LENGTHS)
    with job_of(model, recompute=recompute) as job:
        together = job.step([packed([found], 32)], 32, 0.0)
    with job_of(model, recompute=recompute) as job:
        alone = job.step([(d[None, :-1], d[None, 1:]) for d in found], 32, 0.0)
    assert together[1] == alone[1] == sum(LENGTHS)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=15)
@given(
    rows=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=6), min_size=1, max_size=3),
    padding=st.integers(0, 5), seed=st.integers(0, 99), known=st.booleans(),
)  # fmt: skip
@pytest.mark.parametrize("kind", ["split", "mask"])
def test_logits_and_gradients_of_any_packs_are_those_of_documents_alone(
    kind: Any, rows: list[list[int]], padding: int, seed: int, known: bool
) -> None:
    width = max(sum(row) for row in rows) + padding
    found = [drawn(tuple(row), seed + i) for i, row in enumerate(rows)]
    with job_of(MODELS["llama"] | {"max_position_embeddings": 256}, attention=kind) as job:
        (tokens, targets), more = job.network.given(packed(found, width, known=known))
        losses, total = job.network(tokens, targets, **more)
        total.backward()
        ours = [p.grad.clone() for p in job.network.parameters()]  # type: ignore[union-attr]
        job.network.zero_grad()
        for i, row in enumerate(found):
            apart = []
            for document in row:
                one, total = job.network(document[None, :-1], document[None, 1:])
                total.backward()
                apart.append(one[0])
            torch.testing.assert_close(losses[i, : sum(rows[i])], torch.cat(apart), rtol=1e-4, atol=1e-5)
        for mine, parameter in zip(ours, job.network.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-4)


def numbered(lengths: list[list[int]]) -> Tensor:
    """(B, T) numbers of documents; rows are filled up to the longest by one more."""
    width = max(sum(row) for row in lengths)
    rows = [[*row, width - sum(row)] for row in lengths]
    return torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in rows])


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=8), min_size=1, max_size=3),
    window=st.sampled_from([0, 1, 7, 128, 200]), shared=st.sampled_from([1, 2]),
)  # fmt: skip
@pytest.mark.parametrize("kind", ["flex", "split"])
def test_every_kernel_attends_as_the_mask_of_all_positions_does(
    kind: Any, lengths: list[list[int]], window: int, shared: int
) -> None:
    """FlexAttention has no backward pass on a CPU: tests/gpu has it."""
    numbers = numbered(lengths)
    (B, T), heads = numbers.shape, 2
    window = 0 if window >= T else window
    draw = torch.Generator().manual_seed(B * T)
    q, k, v = (torch.randn(B, h, T, 16, generator=draw) for h in (heads, heads // shared, heads // shared))
    results = []
    for one in ("mask", kind):
        inputs = [t.clone().requires_grad_(kind == "split") for t in (q, k, v)]
        found = attention.Attention(one, frozenset([window] if window else [])).of_documents(numbers, None, None)
        out = attention.attend(torch.nn.Identity(), *inputs, None, sliding_window=window or None, packed=found)[0]
        if kind == "split":
            (out * torch.arange(16.0)).sum().backward()
        results.append([out.detach(), *(t.grad for t in inputs if t.grad is not None)])
    for wanted, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("softcap", "sinks"), [(0.7, False), (None, True), (0.7, True)])
@pytest.mark.parametrize("window", [0, 100])
def test_kernels_that_cap_scores_and_know_sinks_agree(softcap: float | None, sinks: bool, window: int) -> None:
    """With gradients: tests/gpu."""
    numbers = numbered([[200, 1, 60], [129, 131]])
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, h, numbers.size(1), 16, generator=draw) for h in (4, 2, 2))
    aside = torch.randn(4, generator=draw) if sinks else None
    results = []
    for kind in ("mask", "flex"):
        found = attention.Attention(kind, frozenset([window] if window else []), special=True).of_documents(numbers, None, None)
        more: dict[str, Any] = {"sliding_window": window or None, "packed": found, "softcap": softcap, "s_aux": aside}
        results.append(attention.attend(torch.nn.Identity(), q, k, v, None, **more)[0])
    plain = attention.attend(torch.nn.Identity(), q, k, v, None, sliding_window=window or None, packed=found)[0]
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(results[0], plain, rtol=1e-2, atol=1e-2)


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=5), min_size=1, max_size=3),
    window=st.sampled_from([0, 1, 100, 128, 129, 300]),
)
def test_blocks_of_positions_are_sorted_into_seen_partly_seen_and_unseen(lengths: list[list[int]], window: int) -> None:
    numbers = numbered(lengths)
    T = numbers.size(1)
    mask = attention._mask(numbers, window)[:, 0]
    size = -(-T // 128) * 128
    # Positions behind the end are of no account: they are there to no block's harm.
    seen = torch.nn.functional.pad(mask, (0, size - T, 0, size - T)).unflatten(1, (-1, 128)).unflatten(3, (-1, 128))
    some = seen.any(4).any(2)
    cut = torch.nn.functional.pad(mask, (0, size - T, 0, size - T), value=True)
    whole = cut.unflatten(1, (-1, 128)).unflatten(3, (-1, 128)).all(4).all(2)
    found = attention._block_mask(numbers, window)
    listed = [torch.zeros_like(some), torch.zeros_like(some)]
    tables = (found.kv_num_blocks, found.kv_indices), (found.full_kv_num_blocks, found.full_kv_indices)
    for dense, (counts, order) in zip(listed, tables, strict=True):
        for b, row in np.ndindex(*dense.shape[:2]):
            dense[b, row, order[b, 0, row, : counts[b, 0, row]].long()] = True
    partly, full = listed
    assert torch.equal(partly | full, some)
    assert not (partly & full).any()
    assert not (full & ~whole).any()
    rows = T // 128  # a last row of blocks that is cut off may be taken for one that is seen in part
    assert full[:, :rows].sum() >= (whole & some)[:, :rows].tril(-1).sum()  # those on the diagonal never are


@pytest.mark.parametrize("window", [0, 3])
def test_documents_without_a_token_change_nothing(window: int) -> None:
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(24, h, 8, generator=draw) for h in (4, 2, 2)]
    starts = torch.tensor([0, 5, 6, 20, *[24] * 21], dtype=torch.int32)
    found = []
    for extent in ((4, 14), (8, 16), (24, 24)):
        q, k, v = (t.clone().requires_grad_() for t in inputs)
        out, sums = documents.document_attention(q, k, v, starts, torch.tensor(extent), 0.3, window, "split")
        (out * torch.arange(8.0)).sum().backward()
        found.append([out.detach(), sums, q.grad, k.grad, v.grad])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_the_operation_is_one_that_torch_compile_can_trust() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(24, h, 8, generator=draw, requires_grad=True) for h in (4, 2, 2))
    starts = torch.tensor([0, 5, 6, 20, *[24] * 21], dtype=torch.int32)
    extent = torch.tensor([4, 14])
    for window in (0, 3):
        torch.library.opcheck(documents.document_attention, (q, k, v, starts, extent, 0.3, window, "split"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "chosen"),
    [("split", {"recompute": "block", "keep_attention": True, "lora": LoRA(rank=4)}), ("mask", {})],
)
def test_no_batch_compiles_anything_again(kind: Any, chosen: dict[str, Any]) -> None:
    from torch._dynamo.utils import counters

    splits: list[Row] = [(32,), (9, 14, 5), (1, 1, 1, 1, 20), (30, 2), (16, 16)]
    batches = [packed([drawn(row, i), drawn(row[::-1], i + 50)], 32) for i, row in enumerate(splits)]
    config = MODELS["llama"] | {"num_hidden_layers": 3}
    plain: dict[str, Any] = {"attention": kind, "compute": torch.bfloat16}
    with job_of(config, **plain, **chosen) as job:
        eager = [job.step([batch], 64, 1e-3) for batch in batches]
    torch._dynamo.reset()
    counters.clear()
    with job_of(config, compile=True, **plain, **chosen) as job:
        compiled = [job.step([batch], 64, 1e-3) for batch in batches]
    assert counters["stats"]["unique_graphs"] == 2  # a block and the norm before the head
    assert not counters["graph_break"]
    torch.testing.assert_close(torch.stack(compiled)[:, 0], torch.stack(eager)[:, 0], rtol=5e-3, atol=0)


def test_an_attention_that_is_not_there_is_refused_by_name() -> None:
    for kind, why in (("flash4", "Hopper or Blackwell"), ("varlen", "8.0 or more"), ("flex", "needs a GPU")):
        with pytest.raises(UserError, match=why) as error, job_of("llama", attention=kind):
            pass
        assert f"stages.sft.attention: {kind}" in str(error.value)
        assert "split or mask" in (error.value.fix or "")
    with pytest.raises(UserError, match="no dropout"), job_of(MODELS["llama"] | {"attention_dropout": 0.1}, attention="split"):
        pass
    with job_of("llama") as job:
        assert job.network.attention.kind == "split"
    with job_of("deepseek_v3") as job:
        assert job.network.attention.kind == "mask"  # its keys are wider than its values


def test_small_layers_take_the_kernel_that_costs_the_host_least(monkeypatch: pytest.MonkeyPatch) -> None:

    device, there = torch.device("cuda"), ["flash4", "varlen", "flex", "mask"]
    monkeypatch.setattr(attention, "missing", lambda kind, *_: None if kind in there else "is not there")
    small, large = attention.SMALL_LAYER - 1, attention.SMALL_LAYER
    assert [attention.choose("auto", device, torch.bfloat16, None, None, n) for n in (small, large)] == ["varlen", "flash4"]
    assert attention.choose("flash4", device, torch.bfloat16, None, None, small) == "flash4"
    there.remove("varlen")
    assert attention.choose("auto", device, torch.bfloat16, None, None, small) == "flash4"
