"""AdamW on shards: torch's own where both are exact, and unbiased where moments or weights are rounded."""

from __future__ import annotations

import pytest
import torch

from windtunnel.train.hf.optimizer import BLOCK, AdamW, States


def fit(dtype: torch.dtype, states: States | None, rate: float, steps: int) -> float:
    """The loss of a small regression after some steps; states None: torch's AdamW."""
    torch.manual_seed(0)
    a, target = torch.randn(256, 300) / 17, torch.randn(300, 70)
    weights = {
        "w": torch.nn.Parameter((torch.randn(300, 70) * 0.1).to(dtype)),
        "b": torch.nn.Parameter(torch.zeros(70, dtype=dtype)),
    }
    theirs = torch.optim.AdamW(weights.values(), lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    ours = AdamW(weights, states=states or "fp32", clip=1e9)
    for _ in range(steps):
        loss = (a @ weights["w"].float() + weights["b"].float() - a @ target).square().mean()
        loss.backward()
        if states is None:
            theirs.step()
            theirs.zero_grad()
        else:
            ours.step(rate)
    return float(loss.detach())


def test_steps_are_torchs() -> None:
    torch.manual_seed(0)
    start = {name: torch.randn(size) for name, size in (("matrix", (5, 7)), ("bias", (3,)), ("empty", (0, 4)))}
    ours = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    theirs = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    mine = AdamW(ours, states="fp32", weight_decay=0.1, clip=1.0)
    reference = torch.optim.AdamW(theirs.values(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(5):
        rate = 0.01 * (step + 1)
        for name in start:
            gradient = torch.randn(start[name].shape)
            ours[name].grad, theirs[name].grad = gradient.clone(), gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        assert float(mine.step(rate)) == pytest.approx(float(norm) ** 2, rel=1e-5)
        for name in start:
            assert ours[name].grad is None
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("states", ["bf16", "int8"])
def test_narrow_moments_fit_as_well(dtype: torch.dtype, states: States) -> None:
    assert fit(dtype, states, 3e-2, 200) < 1e-4


def test_small_updates_of_bf16_weights_are_not_lost() -> None:
    exact = fit(torch.float32, "fp32", 1e-4, 400)
    assert fit(torch.bfloat16, "fp32", 1e-4, 400) == pytest.approx(exact, rel=0.01)
    assert fit(torch.bfloat16, None, 1e-4, 400) > exact * 1.05  # rounding to nearest loses them


def test_int8_moments_take_a_byte_each() -> None:
    parameters = {"w": torch.nn.Parameter(torch.randn(3, 1000))}
    optimizer = AdamW(parameters, states="int8")
    held = sum(t.numel() * t.element_size() for _, t in optimizer.states())
    assert held == 2 * 3000 + 2 * 4 * -(-3000 // BLOCK)


def test_a_step_without_gradients_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="backward"):
        AdamW({"w": torch.nn.Parameter(torch.zeros(2))}, states="fp32").step(1e-3)
