"""By how much an engine may score the canary otherwise than the learner."""

import torch

from windtunnel.rl.canary import FIRST_TOLERANCE, TOLERANCE, tolerance_after
from windtunnel.rl.mismatch import measure_mismatch

BF16, FP32 = torch.bfloat16, torch.float32


def test_a_first_version_shows_how_far_two_implementations_are_apart() -> None:
    rounded = measure_mismatch(torch.zeros(4), torch.tensor([0.1, -0.1, 0.1, 0.4]))
    assert tolerance_after(BF16, None) == FIRST_TOLERANCE[BF16]
    mean, largest = tolerance_after(BF16, rounded)
    assert abs(mean - 0.35) < 1e-6
    assert abs(largest - 1.6) < 1e-6


def test_engines_that_agree_are_held_to_it() -> None:
    alike = measure_mismatch(torch.zeros(4), torch.full((4,), 1e-7))
    assert tolerance_after(BF16, alike) == TOLERANCE[BF16]
    assert tolerance_after(FP32, None) == tolerance_after(FP32, alike) == TOLERANCE[FP32]
