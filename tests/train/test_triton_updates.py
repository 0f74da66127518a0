"""The updates that GPUs make by kernels are those of plain PyTorch, in Triton's interpreter and on a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from interpreter import passes_interpreted
from waiting import HANG

CASES = """
import sys
import torch
from windtunnel.train import muon, triton_updates

def number(value):
    return torch.tensor(value, dtype=torch.float32)

def twice(tensors, device):
    return ([each.clone().to(device) for each in tensors] for _ in range(2))

def same_muon(device, *shape, low=False, near=1e-5):
    made = torch.Generator().manual_seed(1)
    weight, grad, momentum = (torch.randn(shape, generator=made) for _ in range(3))
    count, rows, columns = shape
    second = torch.rand(count, *((rows, 1) if rows >= columns else (1, columns)), generator=made)
    weight[0], grad[0], momentum[0] = 0.5, 0, 0  # a matrix without a gradient
    plain, fused = twice((weight, grad, momentum, second), device)
    for lr in (0.02, 0.01):
        now = number(lr), number(0.95), number(0.9), number(0.1), low
        muon.muon_update(*plain, *now)
        triton_updates.muon_update(*fused, *now)
    for one, other in zip(plain, fused):
        torch.testing.assert_close(other, one, rtol=near, atol=near)

def same_adamw(device, size):
    made = torch.Generator().manual_seed(size)
    weight, grad, first, second = (torch.randn(size, generator=made) for _ in range(4))
    plain, fused = twice((weight, grad, first, second.abs()), device)
    for step in (1, 2, 3):
        now = number(0.02), number(0.8), number(0.96), number(0.01), number(step)
        muon.adamw_update(*plain, *now)
        triton_updates.adamw_update(*fused, *now)
    for one, other in zip(plain, fused):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)

def unchanged(device):
    weight = torch.randn(2, 8, 4).to(device)
    before, zeros = weight.clone(), torch.zeros_like(weight)
    now = [number(value) for value in (0.1, 0.9, 0.9, 0)]
    triton_updates.muon_update(weight, zeros, zeros.clone(), torch.zeros_like(weight[..., :1]), *now, False)
    assert torch.equal(weight, before)
"""
MATRICES = [(3, 40, 24), (3, 24, 40), (2, 32, 32), (2, 1100, 2), (2, 5, 1)]
VECTORS = [1, 13, 5000]


def test_the_kernels_updates_are_those_of_the_operators() -> None:
    calls = [f"same_muon('cpu', *{shape})" for shape in MATRICES] + [f"same_adamw('cpu', {size})" for size in VECTORS]
    calls += ["same_muon('cpu', 3, 40, 24, low=True, near=2e-2)"]
    compiler = "print('compiler imported' if {'torch._dynamo', 'torch._inductor'} & set(sys.modules) else 'all equal')"
    passes_interpreted("\n".join([CASES, *calls, "unchanged('cpu')", compiler]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [(4, 256, 256), (4, 1024, 256), (4, 256, 1024)], ids=str)
def test_on_a_gpu_too(shape: tuple[int, ...]) -> None:
    found: dict[str, object] = {}
    exec(CASES, found)
    found["same_muon"]("cuda", *shape, low=True, near=2e-2)  # type: ignore[operator]
    found["same_adamw"]("cuda", shape[1] * shape[2] + 5)  # type: ignore[operator]
    found["unchanged"]("cuda")  # type: ignore[operator]


STEPS = """
import sys, torch
from windtunnel.model import build_model, derive, recipe_shape
from windtunnel.recipe import load_recipe
from windtunnel.train import MuonAdamW, Scalars
recipe = load_recipe("charlm", ["model.depth=2", "model.sequence=128"])
model = build_model(recipe_shape(recipe, 20), device=torch.device("cuda"), compute=torch.bfloat16)
optimizer = MuonAdamW(model, derive(recipe, 20), compiled=True)
x = torch.ones(2, 128, dtype=torch.long, device="cuda")
for _ in range(3):
    model(x, x).backward()
    optimizer.step(Scalars(1.0, 0.9, 0.1))
assert all(parameter.isfinite().all() for parameter in model.parameters())
print(*({"torch._dynamo", "torch._inductor"} & set(sys.modules)))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpt_steps_on_a_gpu_without_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()
