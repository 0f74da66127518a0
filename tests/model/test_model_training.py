"""The GPT in training on the CPU: shapes, initial loss, gradients, the chunked loss, windows, and weights that travel."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from random_models import random_weights, tokens

from windtunnel.checkpoint import cast_tensors, write_export
from windtunnel.model import GPT, GPTShape, build_model, gpt_shape, load_weights
from windtunnel.model import loss as loss_module
from windtunnel.model.attention import attend
from windtunnel.model.fused import fused_split_heads, norm, relu_squared, split_heads
from windtunnel.model.loss import capped_cross_entropy
from windtunnel.model.products import adjacent, stacked
from windtunnel.model.residual import add_norm, last_norm, mix_norm
from windtunnel.model.tables import ONE_HOT_ROWS, Table, TokenOrder, add_rows_
from windtunnel.recipe import GPTModel, UserError

VARIANTS = {
    "plain": {},
    "grouped queries": {"kv_heads": 2},
    "windows": {"window": "SL"},
    "swiglu": {"mlp": "swiglu"},
    "no value embeddings": {"value_embeddings": False},
    "all": {"kv_heads": 1, "mlp": "swiglu", "window": "SSL", "value_embeddings": False},
}


def shape_of(vocab: int = 29, **changes: object) -> GPTShape:
    fields: dict[str, object] = {"depth": 4, "aspect": 16, "head_dim": 16, "sequence": 48, **changes}
    return gpt_shape(GPTModel.model_validate(fields), vocab)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_as_many_as_the_arithmetic_says(variant: str) -> None:
    shape = shape_of(**VARIANTS[variant])
    model = build_model(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    assert sum(p.numel() for n, p in model.named_parameters() if n.startswith("blocks.")) == shape.matrix_parameters


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_the_slopes_of_the_loss(variant: str) -> None:
    shape = shape_of(**VARIANTS[variant])
    model = random_weights(build_model(shape), torch.float64)
    model.cos, model.sin = model.cos.double(), model.sin.double()
    x, y = tokens(shape, 2)
    model(x, y).backward()
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        direction = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        losses = []
        for step in (1e-3, -1e-3):
            with torch.no_grad():
                kept = weight.clone()
                weight += step * direction
                losses.append(model(x, y).item())
                weight.copy_(kept)
        slope = (losses[0] - losses[1]) / 2e-3
        assert weight.grad is not None
        expected = float((weight.grad * direction).sum())
        assert slope == pytest.approx(expected, rel=0.05, abs=2e-3), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_first_loss_is_that_of_a_uniform_guess(variant: str) -> None:
    shape = shape_of(vocab=200, **VARIANTS[variant])
    x, y = tokens(shape, 4)
    assert build_model(shape, seed=2)(x, y).item() == pytest.approx(math.log(200), abs=0.02)


def test_reductions_agree_and_equal_cross_entropy_of_the_logits() -> None:
    shape = shape_of()
    model = random_weights(build_model(shape)).eval()
    x, y = tokens(shape, 2)
    with torch.no_grad():
        logits = model(x)
        each, total, mean = (model(x, y, reduction) for reduction in ("none", "sum", "mean"))
    assert logits.shape == (*x.shape, shape.vocab)
    assert logits.abs().max() <= shape.softcap
    expected = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="none").view(y.shape)
    torch.testing.assert_close(each, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(total, expected.sum())
    torch.testing.assert_close(mean, expected.sum() / (y >= 0).sum())


@pytest.mark.parametrize("chunk", [7, 64, 1000])
def test_chunked_loss_equals_cross_entropy_with_its_gradients(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "CHUNK", chunk)
    vocab, padded = 50, 64
    x = torch.randn(2, 45, 24, requires_grad=True)
    weight = torch.randn(padded, 24, requires_grad=True)
    targets = torch.randint(0, vocab, (2, 45))
    targets[1, 40:] = -1
    losses, total = capped_cross_entropy(x, weight, targets, vocab, 15.0)
    (total * 0.3).backward()
    mine = (x.grad.clone(), weight.grad.clone())  # type: ignore[union-attr]
    x.grad = weight.grad = None
    logits = 15 * torch.tanh(x @ weight[:vocab].T / 15)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
    (expected.sum() * 0.3).backward()
    torch.testing.assert_close(losses.flatten(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine, (x.grad, weight.grad), atol=1e-5, rtol=1e-4)
    assert not mine[1][vocab:].any()


def test_loss_adds_to_a_gradient_that_is_already_there() -> None:
    x, weight = torch.randn(1, 9, 8), torch.randn(32, 8, requires_grad=True)
    targets = torch.randint(0, 20, (1, 9))
    for _ in range(2):
        capped_cross_entropy(x, weight, targets, 20, 15.0)[1].backward()
    twice = weight.grad.clone()  # type: ignore[union-attr]
    weight.grad = None
    capped_cross_entropy(x, weight, targets, 20, 15.0)[1].backward()
    torch.testing.assert_close(twice, 2 * weight.grad)  # type: ignore[operator]


@pytest.mark.parametrize("rows", [12, ONE_HOT_ROWS + 44])
def test_table_gradient_is_autograds_and_adds_up(rows: int) -> None:
    table = Table(rows, 6)
    torch.nn.init.normal_(table.weight)
    idx = torch.randint(0, min(rows, 20), (3, 40))
    upstream = torch.randn(3, 40, 6)
    for _ in range(2):
        table(idx, torch.float32).backward(upstream)
    plain = table.weight.detach().clone().requires_grad_()
    F.embedding(idx, plain).backward(2 * upstream)
    torch.testing.assert_close(table.weight.grad, plain.grad, atol=1e-5, rtol=1e-5)
    order = TokenOrder(idx, rows)
    again = torch.zeros(rows, 6)
    add_rows_(again, 2 * upstream.reshape(-1, 6), order)
    torch.testing.assert_close(again, plain.grad, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(table(idx, torch.float32), F.embedding(idx, table.weight))


def test_norm_and_relu_squared_have_autograds_gradients() -> None:
    x = torch.randn(5, 17, dtype=torch.float32, requires_grad=True)
    upstream = torch.randn(5, 17)
    for mine, plain in (
        (norm, lambda t: t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6)),
        (relu_squared, lambda t: torch.relu(t).square()),
    ):
        results = []
        for function in (mine, plain):
            x.grad = None
            out = function(x)
            out.backward(upstream)
            assert x.grad is not None
            results.append((out.detach(), x.grad.clone()))
        torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            assert torch.equal(mine(x), results[0][0])  # generating computes what training does


def test_residual_functions_are_what_they_say() -> None:
    x, delta, first = torch.randn(3, 2, 5, 16)
    scale, mix = torch.tensor(1.1), torch.tensor(0.2)
    out, y, onward, amax = mix_norm(x, delta, first, scale, mix, want_amax=True)
    torch.testing.assert_close(out, 1.1 * (x + delta) + 0.2 * first)
    torch.testing.assert_close(y, norm(out))
    assert onward is first
    assert amax is not None
    assert amax.item() == y.abs().max()
    out, y, amax = add_norm(x, delta)
    torch.testing.assert_close((out, y), (x + delta, norm(x + delta)))
    assert amax is None
    torch.testing.assert_close(last_norm(x, delta), y)
    torch.testing.assert_close(last_norm(x, None), norm(x))


def test_fused_heads_equal_the_reference() -> None:
    qkv, gate, extra = torch.randn(2, 9, 8, 16), torch.randn(2, 9, 2), torch.randn(2, 9, 2, 16)
    angle = torch.rand(9, 8)
    mine = fused_split_heads(qkv, angle.cos(), angle.sin(), gate, extra, 4, 2)
    reference = split_heads(qkv, angle.cos()[None, :, None], angle.sin()[None, :, None], gate, extra, 4, 2)
    torch.testing.assert_close(mine, reference)
    assert [t.shape[2] for t in mine] == [4, 2, 2]


@pytest.mark.parametrize("window", [None, 1, 7, 100])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_sees_itself_and_its_window_only(window: int | None, kv_heads: int) -> None:
    T = 20
    q, k, v = torch.randn(1, T, 4, 8), torch.randn(1, T, kv_heads, 8), torch.randn(1, T, kv_heads, 8)
    distance = torch.arange(T)[:, None] - torch.arange(T)[None]
    mask = (distance >= 0) & (distance <= (window or T))
    expected = F.scaled_dot_product_attention(
        *(t.repeat_interleave(4 // t.size(2), 2).transpose(1, 2) for t in (q, k, v)), attn_mask=mask
    ).transpose(1, 2)
    torch.testing.assert_close(attend(q, k, v, window), expected, atol=1e-5, rtol=1e-5)


def test_weights_next_to_each_other_are_seen_as_one_matrix() -> None:
    buffer = torch.arange(60.0)
    a, b, c = buffer[:20].view(4, 5), buffer[20:30].view(2, 5), buffer[30:].view(6, 5)
    together = adjacent([a, b, c])
    assert together is not None
    assert together.data_ptr() == buffer.data_ptr()
    torch.testing.assert_close(together, torch.cat([a, b, c]))
    assert adjacent([a, c]) is None
    assert adjacent([a, None]) is None
    assert adjacent([a, b.clone()]) is None
    torch.testing.assert_close(stacked([a, c], torch.float32), torch.cat([a, c]))


def export(folder: Path, model: GPT, dtype: str = "fp32") -> None:
    """Write weights and shape as `windtunnel export` does."""
    tensors = cast_tensors(((name, p.detach()) for name, p in model.named_parameters()), dtype)
    write_export(folder, tensors, config={"shape.json": dataclasses.asdict(model.shape)})


@pytest.mark.parametrize("variant", VARIANTS)
def test_exported_weights_give_the_same_logits(variant: str, tmp_path: Path) -> None:
    shape = shape_of(**VARIANTS[variant])
    model = random_weights(build_model(shape)).eval()
    export(tmp_path, model)
    again = load_weights(tmp_path)
    x, _ = tokens(shape, 2)
    with torch.inference_mode():
        assert torch.equal(again(x), model(x))
    assert again.shape == shape
    half = tmp_path / "half"
    export(half, model, "bf16")
    with torch.inference_mode():
        torch.testing.assert_close(load_weights(half)(x), model(x), atol=0.1, rtol=0.1)


def test_damaged_exports_are_refused_by_name(tmp_path: Path) -> None:
    shape = shape_of()
    model = build_model(shape)
    with pytest.raises(UserError, match="not an exported model"):
        load_weights(tmp_path / "nowhere")
    export(tmp_path, model)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not an exported model"):
        load_weights(tmp_path)
    file.write_bytes(whole)
    fields = json.loads((tmp_path / "shape.json").read_text())
    (tmp_path / "shape.json").write_text(json.dumps({**fields, "hidden": 8}))
    with pytest.raises(UserError, match="do not fit"):
        load_weights(tmp_path)


def test_same_seed_same_weights() -> None:
    shape = shape_of()
    first, second, other = build_model(shape, seed=1), build_model(shape, seed=1), build_model(shape, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


@pytest.mark.slow
def test_compiled_on_the_cpu_gives_the_same_loss_and_gradients() -> None:
    shape = shape_of(depth=2)
    plain, compiled = random_weights(build_model(shape)), random_weights(build_model(shape))
    compiled.compile()
    x, y = tokens(shape, 2)
    for model in (plain, compiled):
        model(x, y).backward()
    for (name, a), b in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-3, msg=name)
