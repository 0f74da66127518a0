# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""fp8 and accumulating products on the GPU against float64."""

import pytest
import torch

from windtunnel.model import GPT, build_model, enable_fp8, gpt_shape
from windtunnel.recipe import load_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="fp8 needs Hopper or later"
)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def weights(*sizes: tuple[int, int]) -> list[torch.Tensor]:
    return [torch.randn(*s, device="cuda").mul_(s[1] ** -0.5).requires_grad_() for s in sizes]


def bf16(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16)


@hopper
def test_quantisation_writes_both_orders_rounded_to_nearest() -> None:
    from windtunnel.model.triton_fp8 import find_amax, quantise_both, quantise_relu_squared, quantise_relu_squared_backward

    x, h = bf16(1008, 720) * 3, bf16(1008, 720)
    wide, relu = x.double(), torch.relu(h.double())
    for dtype, bound in ((torch.float8_e4m3fn, 0.03), (torch.float8_e5m2, 0.06)):
        rows, columns, inverse = quantise_both(x, find_amax(x), dtype)
        assert relative(rows.float() * inverse, wide) < bound
        assert torch.equal(rows.float(), columns.float().t())
    squared, inverse = quantise_relu_squared(h, find_amax(h, signed=True))
    assert relative(squared.float() * inverse, relu.square()) < 0.03
    rows, columns, inverse, again = quantise_relu_squared_backward(x, find_amax(x), h, find_amax(h, signed=True))
    assert relative(rows.float() * inverse, wide * 2 * relu) < 0.06
    assert torch.equal(rows.float(), columns.float().t())
    assert torch.equal(squared.float(), again.float().t())
    assert find_amax(x).item() == x.abs().max().item()
    assert find_amax(-x.abs(), signed=True).item() == 0


@hopper
def test_swiglu_is_quantised_in_both_orders_rounded_to_nearest() -> None:
    from windtunnel.model.triton_fp8 import find_amax
    from windtunnel.model.triton_fp8_swiglu import quantise_swiglu, quantise_swiglu_backward, swiglu_largest

    both, grad = bf16(1008, 2 * 720), bf16(1008, 720) * 3
    wide = both.double().requires_grad_()
    value, gate = wide.chunk(2, dim=1)
    product = torch.nn.functional.silu(gate) * value
    product.backward(grad.double())
    largest = swiglu_largest(both)
    rows, inverse = quantise_swiglu(both, largest)
    assert relative(rows.float() * inverse, product) < 0.03
    d_rows, d_columns, d_inverse, again = quantise_swiglu_backward(grad, find_amax(grad), both, largest)
    assert relative(d_rows.float() * d_inverse, wide.grad) < 0.06
    assert torch.equal(d_rows.float(), d_columns.float().t())
    assert torch.equal(rows.float(), again.float().t())


@hopper
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
def test_fp8_linear_and_mlp_match_float64_and_never_give_nan(scale: float) -> None:
    from windtunnel.model.fp8 import fp8_gated_linear, fp8_linear, fp8_mlp, quantise_weights

    N, C, H = 512, 256, 1024
    x = (bf16(2, N // 2, C) * scale).requires_grad_()
    q, k, up, down, gate = weights((C, C), (128, C), (H, C), (C, H), (8, 12))
    x64, *w64 = (t.detach().double().requires_grad_() for t in (x, q, k, up, down, gate))
    mixed = (x64 @ w64[0].T, x64 @ w64[1].T, torch.relu(x64 @ w64[2].T).square() @ w64[3].T, x64[..., :12] @ w64[4].T)
    qk, gates = fp8_gated_linear(x, quantise_weights([q, k]), gate, q, k)
    alone = fp8_linear(x, quantise_weights([q]), q)
    hidden = fp8_mlp(x, quantise_weights([up]), quantise_weights([down]), up, down)
    outputs = (qk[..., :C], qk[..., C:], hidden, gates)
    upstream = [bf16(*o.shape) for o in outputs]
    sum((o * u).float().sum() for o, u in zip(outputs, upstream, strict=True)).backward()  # type: ignore[union-attr]
    sum((o * u).sum() for o, u in zip(mixed, upstream, strict=True)).backward()  # type: ignore[union-attr]
    for t in (*outputs, alone, x.grad, q.grad, k.grad, up.grad, down.grad, gate.grad):
        assert t is not None
        assert torch.isfinite(t).all()
    if scale:
        assert relative(alone, mixed[0]) < 0.05
        for mine, exact in zip(outputs, mixed, strict=True):
            assert relative(mine, exact) < 0.08
        for leaf, exact in zip((x, q, k, up, down, gate), (x64, *w64), strict=True):
            assert relative(leaf.grad, exact.grad) < 0.12


@hopper
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
def test_fp8_swiglu_matches_float64_and_never_gives_nan(scale: float) -> None:
    from windtunnel.model.fp8 import fp8_swiglu, quantise_weights

    N, C, H = 512, 256, 1024
    x = (bf16(2, N // 2, C) * scale).requires_grad_()
    up, gate, down = weights((H, C), (H, C), (C, H))
    leaves = (x, up, gate, down)
    x64, *w64 = exact = [t.detach().double().requires_grad_() for t in leaves]
    out = fp8_swiglu(x, quantise_weights([up, gate]), quantise_weights([down]), up, gate, down)
    wide = (torch.nn.functional.silu(x64 @ w64[1].T) * (x64 @ w64[0].T)) @ w64[2].T
    upstream = bf16(*out.shape)
    out.backward(upstream)
    wide.backward(upstream)
    assert all(t is not None and torch.isfinite(t).all() for t in (out, *(leaf.grad for leaf in leaves)))
    if scale:
        assert relative(out, wide) < 0.08
    if 0 < scale <= 1:  # beyond, silu's slope is a step, and which side of it a gate is on its rounding may decide
        for leaf, wanted in zip(leaves, exact, strict=True):
            assert relative(leaf.grad, wanted.grad) < 0.12


def test_products_accumulate_in_fp32_over_micro_batches() -> None:
    from windtunnel.model.products import gated_linear, linear, mlp

    N, C, H = 4096, 256, 1024
    buffer = torch.zeros(3 * C * C, device="cuda")
    q, k, v, up, down, gate = weights((C, C), (C, C), (C, C), (H, C), (C, H), (8, 12))
    for i, w in enumerate((q, k, v)):
        w.grad = buffer[i * C * C : (i + 1) * C * C].view(C, C)
    w64 = [w.detach().bfloat16().double().requires_grad_() for w in (q, k, v, up, down, gate)]
    for _ in range(3):
        x = bf16(N, C).requires_grad_()
        x64 = x.detach().double().requires_grad_()
        a, g = gated_linear(x, gate, q, k, v)
        outputs = (a, g, mlp(x, up, down), linear(x, up))
        exact = (
            x64 @ torch.cat(w64[:3]).T, x64[:, :12] @ w64[5].T, torch.relu(x64 @ w64[3].T).square() @ w64[4].T, x64 @ w64[3].T
        )  # fmt: skip
        upstream = [bf16(*o.shape) for o in outputs]
        torch.autograd.backward(outputs, upstream)
        torch.autograd.backward(exact, [u.double() for u in upstream])
        assert relative(x.grad, x64.grad) < 8e-3
        for mine, reference in zip(outputs, exact, strict=True):
            assert relative(mine, reference) < 6e-3
    for mine, reference in zip((q, k, v, up, down, gate), w64, strict=True):
        assert relative(mine.grad, reference.grad) < 6e-3
    assert q.grad is not None
    assert q.grad.data_ptr() == buffer.data_ptr()


@pytest.mark.parametrize("channels", [96, 768, 1536])
def test_residual_kernels_match_autograd_in_float64(channels: int) -> None:
    from windtunnel.model.residual import add_norm, last_norm, mix_norm

    leaves = [bf16(3, 67, channels).requires_grad_() for _ in range(4)]
    scalars = [torch.tensor(v, device="cuda", requires_grad=True) for v in (1.1, 0.3)]
    exact = [t.detach().double().cpu().requires_grad_() for t in (*leaves, *scalars)]
    x, y, first, amax = mix_norm(leaves[0], leaves[1], leaves[2], *scalars, want_amax=True)
    x2, y2, _ = add_norm(x, leaves[3])
    out = (y, first, y2, last_norm(x2, None))
    norm = lambda t: t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6)  # noqa: E731
    ex = exact[4] * (exact[0] + exact[1]) + exact[5] * exact[2]
    reference = (norm(ex), exact[2] * 1, norm(ex + exact[3]), norm(ex + exact[3]))
    upstream = [bf16(*o.shape) for o in out]
    torch.autograd.backward(out, upstream)
    torch.autograd.backward(reference, [u.double().cpu() for u in upstream])
    for mine, r in zip(out, reference, strict=True):
        assert relative(mine, r) < 6e-3
    for leaf, r in zip(leaves, exact, strict=False):
        assert relative(leaf.grad, r.grad) < 8e-3
    for scalar, r in zip(scalars, exact[4:], strict=True):
        assert scalar.grad is not None
        assert r.grad is not None
        # Sums of as many terms of either sign: what counts is the error beside the terms' joint size.
        assert abs(scalar.grad.item() - r.grad.item()) < 0.02 * (3 * 67 * channels) ** 0.5
    assert amax is not None
    assert amax.item() == y.abs().max().item()


def trained(model: GPT, steps: int) -> list[float]:
    from windtunnel.model import derive
    from windtunnel.train.optimizer import MuonAdamW, Scalars

    optimizer = MuonAdamW(model, derive(load_recipe("charlm", ["model.depth=4", "model.sequence=256"]), 300))
    generator = torch.Generator(device="cuda").manual_seed(1)
    tokens = torch.randint(0, 300, (8, 257), device="cuda", generator=generator)
    losses = []
    for _ in range(steps):
        for half in tokens.chunk(2):
            loss = model(half[:, :-1], half[:, 1:]) / 2
            loss.backward()
        losses.append(loss.item())
        optimizer.step(Scalars(0.2, 0.95, 0.0))
    return losses


@hopper
@pytest.mark.parametrize("changes", [[], ["model.mlp=swiglu"], ["model.kv_heads=1"]])
def test_fp8_learns_like_bf16(changes: list[str]) -> None:
    shape = gpt_shape(load_recipe("charlm", ["model.depth=4", "model.sequence=256", *changes]).model, 300)
    losses = []
    for fp8 in (False, True):
        model = build_model(shape, device="cuda", compute=torch.bfloat16, seed=5)
        if fp8:
            assert enable_fp8(model) >= 4 * 4
        losses.append(trained(model, 25))
    assert losses[0][-1] < losses[0][0] - 0.5
    assert losses[1] == pytest.approx(losses[0], abs=0.15)
    model.eval()
    with torch.inference_mode():
        assert torch.isfinite(model(torch.zeros(1, 5, dtype=torch.long, device="cuda"))).all()


def test_orthogonalise_on_the_gpu_matches_the_cpu() -> None:
    from windtunnel.train.muon import orthogonalise

    for rows, columns in ((256, 256), (384, 200), (200, 384)):
        x = torch.randn(3, rows, columns)
        fast = orthogonalise(x.bfloat16().cuda()).float().cpu()
        assert relative(fast, orthogonalise(x)) < 0.04
        side = min(rows, columns)
        product = fast @ fast.mT if rows <= columns else fast.mT @ fast
        assert (product - torch.eye(side)).norm(dim=(1, 2)).max() / side**0.5 < 0.5


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_same_seed_gives_the_same_losses_bit_for_bit(precision: str) -> None:
    from windtunnel.model import deterministic

    shape = gpt_shape(load_recipe("charlm", ["model.depth=4", "model.sequence=256"]).model, 300)
    deterministic(True)
    try:
        runs = []
        for _ in range(2):
            model = build_model(shape, device="cuda", compute=torch.bfloat16, seed=5)
            if precision == "fp8":
                enable_fp8(model)
            runs.append(trained(model, 10))
    finally:
        deterministic(False)
    assert runs[0] == runs[1]
