# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""The GPU kernels compute what their plain versions compute."""

import pytest
import torch

from windtunnel.model import build_model, gpt_shape
from windtunnel.model.fused import fused_split_heads, split_heads
from windtunnel.model.loss import capped_cross_entropy
from windtunnel.model.tables import TokenOrder, add_rows_
from windtunnel.recipe import load_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double().cpu() - b.double().cpu()).norm() / b.double().cpu().norm().clamp(min=1e-30))


@pytest.mark.parametrize("vocab", [18, 1000, 32768])
def test_loss_and_its_gradients_match_float64_on_the_cpu(vocab: int) -> None:
    padded = -(-vocab // 32) * 32
    x = torch.randn(2, 600, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(padded, 256, device="cuda", requires_grad=True)
    with torch.no_grad():
        weight *= 0.1
    targets = torch.randint(0, vocab, (2, 600), device="cuda")
    targets[0, :7] = -1
    losses, total = capped_cross_entropy(x, weight, targets, vocab, 15.0)
    (total / 100).backward()
    x64, w64 = x.detach().double().cpu().requires_grad_(), weight.detach().bfloat16().double().cpu().requires_grad_()
    logits = 15 * torch.tanh((x64 @ w64[:vocab].T) / 15)
    wanted = targets.cpu().flatten()
    reference = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted, ignore_index=-1, reduction="none")
    (reference.sum() / 100).backward()
    assert relative(losses.flatten(), reference) < 5e-3
    assert relative(x.grad, x64.grad) < 1e-2
    assert relative(weight.grad, w64.grad) < 1e-2


@pytest.mark.parametrize(("heads", "kv"), [(6, 6), (6, 2), (1, 1)])
@pytest.mark.parametrize("gated", [False, True])
def test_split_heads_matches_its_reference(heads: int, kv: int, gated: bool) -> None:
    B, T, D = 3, 100, 128
    make = lambda *size: torch.randn(*size, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    qkv, gate, extra = make(B, T, heads + 2 * kv, D), make(B, T, kv), make(B, T, kv, D)
    angle = torch.rand(T, D // 2, device="cuda") * 6
    upstream = [make(B, T, heads, D), make(B, T, kv, D), make(B, T, kv, D).transpose(1, 2).contiguous().transpose(1, 2)]
    results = []
    for dtype, fused in ((torch.bfloat16, True), (torch.float64, False)):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (qkv, gate, extra)]
        by, more = (leaves[1], leaves[2]) if gated else (None, None)
        if fused:
            out = fused_split_heads(leaves[0], angle.cos(), angle.sin(), by, more, heads, kv)
        else:
            out = split_heads(leaves[0], angle.cos()[None, :, None], angle.sin()[None, :, None], by, more, heads, kv)
        torch.autograd.backward(out, [g.to(dtype) for g in upstream])
        results.append([*out, *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    for mine, reference in zip(*results, strict=True):
        assert relative(mine, reference) < 8e-3


@pytest.mark.parametrize("rows", [32, 300, 32768])
def test_table_gradient_is_exact_and_the_same_every_time(rows: int) -> None:
    idx = (torch.rand(4, 2048, device="cuda") ** 3 * rows).long()  # a few tokens are very common
    grad = torch.randn(idx.numel(), 192, device="cuda", dtype=torch.bfloat16)
    tables = []
    for _ in range(2):
        table = torch.ones(rows, 192, device="cuda")
        add_rows_(table, grad, TokenOrder(idx, rows))
        tables.append(table)
    reference = torch.ones(rows, 192, dtype=torch.float64).index_add_(0, idx.flatten().cpu(), grad.double().cpu())
    assert torch.equal(*tables)
    assert relative(tables[0], reference) < 5e-3


def test_compiled_model_matches_the_cpu() -> None:
    recipe = load_recipe("charlm", ["model.depth=4", "model.sequence=256"])
    shape = gpt_shape(recipe.model, 300)
    plain = build_model(shape, seed=3)
    with torch.no_grad():
        for p in plain.parameters():
            if p.ndim == 2:
                p.normal_(0, p.size(1) ** -0.5)
    fast = build_model(shape, device="cuda", compute=torch.bfloat16)
    fast.load_state_dict(plain.state_dict())
    fast.compile()
    idx = torch.randint(0, 300, (4, 257))
    x, y = idx[:, :-1], idx[:, 1:]
    plain(x, y).backward()
    loss = fast(x.cuda(), y.cuda())
    loss.backward()
    gradients = dict(fast.named_parameters())
    for name, parameter in plain.named_parameters():
        assert relative(gradients[name].grad, parameter.grad) < 0.08, name
