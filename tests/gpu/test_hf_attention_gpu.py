# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Kernels for packed documents on the GPU: as the mask does, the same bits every time, compiled once, never waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hf_gpu import CONFIG, SEQUENCE, VOCAB, job_of

from windtunnel.data import Batch
from windtunnel.data.packing import sequence_starts, target_rows
from windtunnel.train.hf import attention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
KINDS = ("flash4", "varlen", "flex")


def skip_where_missing(kind: Any) -> None:
    class Text:
        head_dim, attention_dropout = 64, 0.0

    why = attention.missing(kind, torch.device("cuda", 0), torch.bfloat16, Text())
    if why is not None:
        pytest.skip(f"{kind} {why}")


def positions_of(rows: list[list[int]], width: int) -> np.ndarray[Any, Any]:
    return np.stack([np.concatenate([np.arange(n) for n in [*row, width - sum(row)]]) for row in rows])


def batch_of(rows: list[list[int]], width: int, seed: int = 0) -> Batch:
    """Packed documents, a third of whose positions have no target."""
    draw = np.random.default_rng(seed)
    positions = positions_of(rows, width)
    tokens = draw.integers(0, VOCAB, (len(rows), width + 1))
    targets = np.where(draw.random(positions.shape) < 0.67, tokens[:, 1:], -1)
    starts, extent = sequence_starts(positions)
    learned = target_rows(targets.astype(np.int32).view(np.uint32))
    x, y, at, cu, rows_there = (torch.from_numpy(a).cuda() for a in (tokens[:, :-1].copy(), targets, positions, starts, learned))
    documents = (at == 0).cumsum(1) - 1
    return Batch(x, y, at, documents, cu_seqlens=cu, extent=torch.from_numpy(extent), target_rows=rows_there)


@settings(deadline=None, max_examples=12)
@given(
    rows=st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=9), min_size=1, max_size=3),
    window=st.sampled_from([0, 130]), heads=st.sampled_from([(4, 4), (9, 3), (4, 1)]), wide=st.sampled_from([64, 128]),
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_attend_as_the_mask_does(
    kind: Any, rows: list[list[int]], window: int, heads: tuple[int, int], wide: int
) -> None:
    skip_where_missing(kind)
    # One width for all examples: what is compiled is compiled for it.
    T = 4096
    given_rows = [row for row in rows if sum(row) <= T][:2]
    given_rows += [[T]] * (2 - len(given_rows))
    positions = positions_of(given_rows, T)
    numbers = torch.from_numpy((positions == 0).cumsum(1) - 1).cuda()
    draw = torch.Generator("cuda").manual_seed(1)
    q, k, v, grad = (
        torch.randn(2, h, T, wide, generator=draw, device="cuda", dtype=torch.bfloat16)
        for h in (heads[0], heads[1], heads[1], heads[0])
    )
    results = []
    for one in ("mask", kind):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        asks, keys, values = inputs
        packed = attention.Attention(one, frozenset([window] if window else [])).of_documents(numbers, None, None)
        out = attention.attend(torch.nn.Identity(), asks, keys, values, None, sliding_window=window or None, packed=packed)[0]
        out.backward(grad.transpose(1, 2))
        results.append([out.detach(), *(t.grad for t in inputs)])
    for wanted, ours in zip(*results, strict=True):
        assert (ours.float() - wanted.float()).norm() / wanted.float().norm() < 1e-2


@pytest.mark.parametrize(("softcap", "sinks"), [(5.0, False), (None, True), (5.0, True)])
@pytest.mark.parametrize("window", [0, 130])
def test_caps_and_sinks_are_those_of_the_mask(softcap: float | None, sinks: bool, window: int) -> None:
    T = 2048
    positions = positions_of([[700, 1, 300], [T]], T)
    numbers = torch.from_numpy((positions == 0).cumsum(1) - 1).cuda()
    draw = torch.Generator("cuda").manual_seed(1)
    q, k, v, grad = (
        torch.randn(2, h, T, 64, generator=draw, device="cuda", dtype=torch.bfloat16) * (3 if i < 2 else 1)
        for i, h in enumerate((8, 2, 2, 8))
    )
    aside = torch.randn(8, generator=draw, device="cuda") if sinks else None
    results = []
    # In bf16 the mask rounds large scores more coarsely than FlexAttention does.
    for kind, dtype in (("mask", torch.float32), ("flex", torch.bfloat16)):
        inputs = [t.to(dtype, copy=True).requires_grad_() for t in (q, k, v)]
        inputs += [] if aside is None else [aside.clone().requires_grad_()]
        found = attention.Attention(kind, frozenset([window] if window else []), special=True).of_documents(numbers, None, None)
        more: Any = {"sliding_window": window or None, "packed": found, "softcap": softcap, "s_aux": inputs[3] if sinks else None}
        asks, keys, values = inputs[:3]
        out = attention.attend(torch.nn.Identity(), asks, keys, values, None, **more)[0]
        out.backward(grad.transpose(1, 2).to(dtype))
        results.append([out.detach(), *(t.grad for t in inputs)])
    for wanted, ours in zip(*results, strict=True):
        assert (ours.float() - wanted.float()).norm() / wanted.float().norm() < 1e-2


SPLITS = [[[1024], [1024]], [[300, 200, 500], [24, 1000]], [[1] * 40 + [900], [512, 512]], [[64] * 16, [700, 3, 300]]]


@pytest.mark.parametrize("kind", [*KINDS, "auto"])
@pytest.mark.parametrize("chosen", [{}, {"recompute": "block"}, {"recompute": "block", "keep_attention": True}])
def test_steps_are_those_of_the_mask_and_compile_once(kind: Any, chosen: dict[str, Any]) -> None:
    from torch._dynamo.utils import counters

    if kind != "auto":
        skip_where_missing(kind)
    batches = [batch_of(rows, SEQUENCE, seed) for seed, rows in enumerate(SPLITS)]
    losses = {}
    for one, exact in (("mask", False), (kind, False), (kind, True)):
        torch._dynamo.reset()
        counters.clear()
        with job_of(CONFIG, attention=one, exact=exact, **chosen) as job:
            sums = [job.step([batch], 2 * SEQUENCE, 1e-4) for batch in batches]
            losses[one, exact] = torch.stack(sums)
            again = [job.step([batch], 2 * SEQUENCE, 1e-4) for batch in batches]
            assert torch.stack(again).isfinite().all()
        assert counters["stats"]["unique_graphs"] == 2
        assert not counters["graph_break"]
    torch.use_deterministic_algorithms(False)
    for key in ((kind, False), (kind, True)):
        torch.testing.assert_close(losses[key][:, 0], losses["mask", False][:, 0], rtol=5e-3, atol=0)
        torch.testing.assert_close(losses[key][:, 2], losses["mask", False][:, 2], rtol=5e-2, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dense", [False, True], ids=["packed", "windows"])
def test_steps_are_the_same_to_a_bit(kind: Any, dense: bool) -> None:
    skip_where_missing(kind)
    batches: list[Any] = [batch_of(rows, SEQUENCE, seed) for seed, rows in enumerate(SPLITS)]
    if dense:
        batches = [(b.input_ids, b.targets) for b in batches]
    found = []
    for _ in range(2):
        with job_of(CONFIG, attention=kind, exact=True) as job:
            sums = torch.stack([job.step([batch], 2 * SEQUENCE, 1e-3) for batch in batches * 2])
            weights = [p.detach().clone() for p in job.network.parameters()]
            found.append((sums, weights))
    torch.use_deterministic_algorithms(False)
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


@pytest.mark.parametrize("kind", [*KINDS, "mask"])
def test_a_packed_step_waits_for_nothing(kind: Any) -> None:
    skip_where_missing(kind)
    batches = [batch_of(rows, SEQUENCE, seed) for seed, rows in enumerate(SPLITS)]
    with job_of(CONFIG, attention=kind) as job:
        for batch in batches:
            job.step([batch], 2 * SEQUENCE, 1e-4)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches:
                job.step([batch], 2 * SEQUENCE, 1e-4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
