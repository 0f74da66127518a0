"""What lies between matrix products of a step gives what transformers' own layers give, in Triton's interpreter and on a GPU."""

import pytest
import torch
from interpreter import passes_interpreted

CASES = """
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb
from windtunnel.model.triton_step import add_norm, place_heads

def norm_of(weight, eps):
    norm = Qwen3RMSNorm(weight.numel(), eps).to(weight.device, weight.dtype)
    norm.weight.data.copy_(weight)
    return norm

def compare(device, dtype, rows, heads, key_heads, columns, dim, newest, normed):
    made = torch.Generator().manual_seed(rows + dim)
    draw = lambda *shape: torch.randn(*shape, generator=made).to(device, dtype)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    width = heads * dim
    x, delta, weight = draw(rows, width), draw(rows, width), draw(width)
    right = x + delta
    found = add_norm(x, delta, weight, 1e-5)
    assert torch.equal(x, right)
    torch.testing.assert_close(found, norm_of(weight, 1e-5)(right), **close)
    torch.testing.assert_close(add_norm(x, None, weight, 1e-5), found, atol=0, rtol=0)
    assert torch.equal(x, right)

    qkv = draw(rows, (heads + 2 * key_heads) * dim)
    keys, values = draw(rows, key_heads, columns, dim), draw(rows, key_heads, columns, dim)
    angle = (torch.rand(rows, dim // 2, generator=made) * 100).to(device)
    cos, sin = (torch.cat([f(angle)] * 2, -1).to(dtype) for f in (torch.cos, torch.sin))
    gains = (draw(dim), draw(dim), 1e-6) if normed else None
    k, v = keys.clone(), values.clone()
    q = place_heads(qkv, (cos, sin), torch.tensor([newest], device=device), keys, values, heads, gains)
    theirs = [t.view(rows, 1, -1, dim).transpose(1, 2) for t in qkv.split([heads * dim, key_heads * dim, key_heads * dim], -1)]
    if gains is not None:
        theirs[:2] = [norm_of(gain, gains[2])(t) for gain, t in zip(gains[:2], theirs[:2])]
    theirs[:2] = apply_rotary_pos_emb(theirs[0], theirs[1], cos[:, None], sin[:, None])
    torch.testing.assert_close(q, theirs[0], **close)
    for room, before, one in ((keys, k, theirs[1]), (values, v, theirs[2])):
        torch.testing.assert_close(room[:, :, newest : newest + 1], one, **close)
        room[:, :, newest], before[:, :, newest] = 0, 0
        assert torch.equal(room, before)
"""
SHAPES = [(3, 9, 3, 20, 64, 7, False), (1, 4, 4, 5, 80, 4, True), (2, 8, 1, 3, 16, 0, True)]


def test_norms_rotation_and_cache_are_transformers_own() -> None:
    calls = "\n".join(f"compare('cpu', torch.float32, {', '.join(map(str, shape))})" for shape in SHAPES)
    passes_interpreted(f"{CASES}\n{calls}\nprint('all equal')")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [*SHAPES, (256, 28, 4, 700, 128, 690, False)], ids=str)
def test_on_a_gpu_too(shape: tuple[int, ...]) -> None:
    found: dict[str, object] = {}
    exec(CASES, found)
    for dtype in (torch.float32, torch.bfloat16):
        found["compare"]("cuda", dtype, *shape)  # type: ignore[operator]
