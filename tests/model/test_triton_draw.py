"""Drawing a token in one kernel is drawing it by PyTorch's operators, in Triton's interpreter and on a GPU."""

import pytest
import torch
from interpreter import passes_interpreted

CASES = """
import torch
from windtunnel.model import choose, draw_tokens
from windtunnel.model.triton_draw import draw_rows

def compare(device, dtype, rows, vocab):
    made = torch.Generator().manual_seed(rows + vocab)
    logits = (torch.randn(rows, vocab, generator=made) * 4).to(device, dtype)
    logits[0, vocab // 2 :] = float("-inf")  # what is there is never drawn
    logits[-1] = 0
    temperature = torch.tensor([(0.0, 1.0, 0.5, 2.0)[row % 4] for row in range(rows)])
    temperature[0] = 1.0
    uniform = torch.rand(rows, generator=made)
    uniform[0] = 1 - 2**-24
    found, logs = draw_rows(logits, temperature.to(device), uniform.to(device))
    right, theirs = draw_tokens(logits.float(), temperature.to(device), uniform.to(device))
    whole = torch.ones(rows), torch.zeros(rows, dtype=torch.long)
    assert torch.equal(right, choose(logits.float(), temperature, *whole, uniform))
    assert found[0] < vocab // 2 and found[-1] == (0 if temperature[-1] == 0 else found[-1])
    # Sums in another order may pass the draw a token earlier or later.
    assert (found == right)[1:].float().mean() > 0.95 and ((found - right).abs() <= 3).all(), (found, right)
    same = found == right
    torch.testing.assert_close(logs[same], theirs[same], atol=1e-4, rtol=1e-4)

def shares(device):
    logits = torch.tensor([[0.0, 1.0, -1.0, 3.0, float("-inf")]], device=device).expand(4000, -1).contiguous()
    uniform = (torch.arange(4000, device=device) + 0.5) / 4000
    found, _ = draw_rows(logits, torch.full((4000,), 2.0, device=device), uniform)
    share = torch.bincount(found, minlength=5) / 4000
    torch.testing.assert_close(share, (logits[0] / 2).softmax(-1), atol=1e-3, rtol=0)
"""
SHAPES = [(5, 7), (3, 4096), (9, 10_001)]


def test_the_token_and_its_probability_are_those_of_the_operators() -> None:
    calls = "\n".join(f"compare('cpu', torch.float32, {rows}, {vocab})" for rows, vocab in SHAPES)
    passes_interpreted(f"{CASES}\n{calls}\nprint('all equal')")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [*SHAPES, (256, 49_152), (64, 151_936)], ids=str)
def test_on_a_gpu_too(shape: tuple[int, int]) -> None:
    found: dict[str, object] = {}
    exec(CASES, found)
    for dtype in (torch.float32, torch.bfloat16):
        found["compare"]("cuda", dtype, *shape)  # type: ignore[operator]
    found["shares"]("cuda")  # type: ignore[operator]
