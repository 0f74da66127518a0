"""Attention of the newest token over spans of a cache is softmax attention, in Triton's interpreter and on a GPU."""

import pytest
import torch
from interpreter import passes_interpreted

CASES = """
import torch
from windtunnel.model.triton_attention import attend_newest

def compare(device, dtype, rows, heads, key_heads, columns, dim, newest, atol):
    made = torch.Generator().manual_seed(rows + dim)
    draw = lambda *shape: torch.randn(*shape, generator=made).to(device, dtype)
    q, k, v = draw(rows, heads, 1, dim), draw(rows, key_heads, columns, dim), draw(rows, key_heads, columns, dim)
    first = torch.randint(0, newest + 1, (rows,), generator=made).to(device)
    first[0], first[-1] = 0, newest
    column = torch.arange(columns, device=device)
    inside = (column >= first[:, None]) & (column <= newest)
    k[~inside[:, None].expand(-1, key_heads, -1)] = float("nan")  # what is outside a span may hold anything
    found = attend_newest(q, k, v, first, torch.tensor([newest], device=device), dim**-0.5)
    k = k.nan_to_num()
    wide = [t.double().repeat_interleave(heads // key_heads, 1) for t in (k, v)]
    mask = inside[:, None, None]
    right = torch.nn.functional.scaled_dot_product_attention(q.double(), *wide, attn_mask=mask)
    torch.testing.assert_close(found.double(), right, atol=atol, rtol=1e-5 if dtype == torch.float32 else 2e-2)
"""
SHAPES = [(3, 9, 3, 256, 64, 200), (1, 4, 4, 300, 80, 299), (2, 32, 1, 128, 16, 0), (5, 2, 1, 1000, 128, 777)]


def test_spans_are_attended_to_as_a_mask_says() -> None:
    calls = "\n".join(f"compare('cpu', torch.float32, {', '.join(map(str, shape))}, 1e-5)" for shape in SHAPES)
    passes_interpreted(f"{CASES}\n{calls}\nprint('all equal')")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [*SHAPES, (256, 9, 3, 1024, 64, 700)], ids=str)
def test_on_a_gpu_too(shape: tuple[int, ...]) -> None:
    found: dict[str, object] = {}
    exec(CASES, found)
    for dtype, atol in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        found["compare"]("cuda", dtype, *shape, atol)  # type: ignore[operator]
