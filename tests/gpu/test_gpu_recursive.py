# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Recursive GPTs on a GPU: kernels and models against the CPU, the same bits every time, and the memory of a real shape."""

from collections.abc import Iterator

import pytest
import torch

from windtunnel.model import (
    KVCache,
    Objective,
    RecursiveGPT,
    build_model,
    deterministic,
    extend,
    recipe_shape,
    train_supervised,
)
from windtunnel.model.products import swiglu
from windtunnel.model.refine import refine
from windtunnel.recipe import load_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

CASES = {
    "layerwise": ["trm.scheme=layerwise", "model.mlp=swiglu"],
    "layerwise, relu2, last cycle": ["trm.scheme=layerwise", "trm.cycles=2", "trm.gradient_cycles=last"],
    "two latents": ["trm.scheme=two_latent", "model.mlp=swiglu"],
    "looped": ["trm.scheme=looped", "model.value_embeddings=true"],
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """No test decides by which kernels the next one computes."""
    before = torch.are_deterministic_algorithms_enabled()
    yield
    deterministic(before)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double().cpu() - b.double().cpu()).norm() / b.double().cpu().norm().clamp(min=1e-30))


def shape_of(*changes: str) -> object:
    base = ["model.depth=3", "model.sequence=256", "model.value_embeddings=false", "trm.loops=2", "trm.supervision=3"]
    return recipe_shape(load_recipe("charlm", [*base, *changes]), 300)


def filled(shape: object, **options: object) -> RecursiveGPT:
    model = build_model(shape, seed=3, **options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.copy_(torch.randn(p.shape, generator=generator) * p.size(1) ** -0.5)
    assert isinstance(model, RecursiveGPT)
    return model


def train(model: RecursiveGPT, idx: torch.Tensor, detach_from: int = 1) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    device = model.head.weight.device
    objective = Objective((0.2, 0.3, 0.5), 1.0, detach_from, "once")
    model.zero_grad(set_to_none=True)
    sums = train_supervised(model, [(idx[:, :-1].to(device), idx[:, 1:].to(device))], objective, scale=1 / idx[:, 1:].numel())
    return sums.losses / sums.targets, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", ["sab", "sabx", "saby", "sa"])
@pytest.mark.parametrize("dim", [768, 2048, 96])
def test_refine_matches_float64(case: str, dim: int) -> None:
    given = {n: torch.randn(3, 100, dim, device="cuda", dtype=torch.bfloat16).requires_grad_() for n in case}
    plain = {n: t.detach().double().cpu().requires_grad_() for n, t in given.items()}
    outs = []
    for t in (given, plain):
        made = refine(t["s"], t["a"], t.get("b"), x=t.get("x"), y=t.get("y"))
        outs.append([o for o in made if o is not None])
    up = [torch.randn_like(o) for o in outs[0]]
    torch.autograd.backward(outs[0], up)
    torch.autograd.backward(outs[1], [g.double().cpu() for g in up])
    for mine, reference in zip(*outs, strict=True):
        assert relative(mine, reference) < 8e-3
    for name in given:
        assert relative(given[name].grad, plain[name].grad) < 1e-2, name


def test_swiglu_matches_float64() -> None:
    x = torch.randn(2, 300, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    up, gate, down = (torch.nn.Parameter(torch.randn(*size, device="cuda") / 16) for size in ((640, 256), (640, 256), (256, 640)))
    out = swiglu(x, up, gate, down)
    grad = torch.randn_like(out)
    out.backward(grad)
    wide = [t.detach().bfloat16().double().cpu().requires_grad_() for t in (x, up, gate, down)]
    hidden = torch.nn.functional.silu(wide[0] @ wide[2].T) * (wide[0] @ wide[1].T)
    plain = hidden @ wide[3].T
    plain.backward(grad.double().cpu())
    assert relative(out, plain) < 1e-2
    for mine, reference in zip((x, up, gate, down), wide, strict=True):
        assert relative(mine.grad, reference.grad) < 1e-2


@pytest.mark.parametrize("case", CASES)
def test_model_matches_the_cpu(case: str) -> None:
    shape = shape_of(*CASES[case])
    plain, fast = filled(shape), filled(shape, device="cuda", compute=torch.bfloat16)
    idx = torch.randint(0, 300, (4, 257))
    (a, plain_gradients), (b, gradients) = train(plain, idx), train(fast, idx)
    assert relative(b, a) < 5e-3
    for name, gradient in plain_gradients.items():
        assert relative(gradients[name], gradient) < 0.1, name


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_every_time_and_when_computed_again(case: str) -> None:
    deterministic(True)
    idx = torch.randint(0, 300, (4, 257))
    results = []
    for recompute in ("none", "none", "step", "block"):
        model = filled(shape_of(*CASES[case]), device="cuda", compute=torch.bfloat16, recompute=recompute)
        results.append(train(model, idx))
    for losses, gradients in results[1:]:
        assert torch.equal(losses, results[0][0])
        for name, gradient in gradients.items():
            assert torch.equal(gradient, results[0][1][name]), name


@pytest.mark.parametrize("deterministically", [True, False])
def test_a_model_that_is_not_causal(deterministically: bool) -> None:
    recipe = load_recipe("trm-sudoku", ["model.depth=2", "model.aspect=128"])
    shape = recipe_shape(recipe, 10)
    deterministic(deterministically)
    plain, fast = filled(shape), filled(shape, device="cuda", compute=torch.bfloat16)
    x, y = torch.randint(0, 10, (2, 8, shape.sequence))
    count = 3
    objective = Objective(tuple([1 / count] * count), 0.0, 0, "each")
    sums = [
        train_supervised(m, [(x.to(m.head.weight.device), y.to(m.head.weight.device))], objective, scale=1 / y.numel())
        for m in (plain, fast)
    ]
    assert relative(sums[1].losses, sums[0].losses) < 1e-2


@pytest.mark.parametrize("case", CASES)
def test_cache_under_recursion(case: str) -> None:
    model = filled(shape_of(*CASES[case]), device="cuda", compute=torch.bfloat16).eval()
    tokens = torch.randint(0, 300, (1, 40), device="cuda")
    cache, slot = KVCache(model, 2), [1]
    extend(model, tokens[:, :30], slot, cache)
    for t in range(30, 40):
        logits = extend(model, tokens[:, t : t + 1], slot, cache)
    with torch.inference_mode():
        expected = model(tokens)[0, -1]
    assert relative(logits[0], expected) < 0.05


@pytest.mark.parametrize(("rows", "recompute"), [(32, "step"), (8, "none")])
def test_the_guides_shape_runs_in_80_gb(rows: int, recompute: str) -> None:
    recipe = load_recipe(
        "charlm",
        ["model.depth=12", "model.sequence=1024", "model.mlp=swiglu", "model.value_embeddings=false", "trm.preset=aggressive"],
    )
    shape = recipe_shape(recipe, 50304)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = build_model(shape, device="cuda", compute=torch.bfloat16, recompute=recompute)
    assert isinstance(model, RecursiveGPT)
    x, y = torch.randint(0, 50304, (2, rows, 1024), device="cuda")
    weights = (0.25, 0.25, 0.25, 0.25)
    train_supervised(model, [(x, y)], Objective(weights, 1.0, 2, "once"), scale=1 / y.numel())
    assert torch.cuda.max_memory_allocated() < 76e9
