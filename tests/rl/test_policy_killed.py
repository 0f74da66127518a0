"""SIGKILL at any moment of a stage of kind rl: nothing is learned twice, nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from runs import killed, new_run, require_same, series

from windtunnel.checkpoint import CheckpointStore
from windtunnel.rl import train_policy

KILLS, STEPS = 20, 130
SETS = (
    f"budget.steps={STEPS}", "checkpoints.every=2 steps", "stages.rl.equal_rewards=resample", "stages.rl.updates=2",
    "stages.rl.reference=true", "stages.rl.kl=0.01", "stages.rl.answers.every=20 steps",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    """Each comes within a second of some step after the newest checkpoint: in rollouts, updates, held-out answers or a save."""
    torch.set_num_threads(1)
    whole, halted = new_run(tmp_path, *SETS), new_run(tmp_path, *SETS)
    assert train_policy(whole) == 0
    draw = random.Random(11)
    for number in range(KILLS):
        step = newest(halted) + draw.randrange(1, 6)
        assert killed(halted, step, draw.uniform(0.001, 0.3)), f"kill {number}: the run ended first, at step {newest(halted)}"
    assert newest(halted) < STEPS
    assert train_policy(halted) == 0
    assert sorted(series(halted, "loss")) == list(range(1, STEPS + 1))
    require_same(whole, halted)


def newest(run: Path) -> int:
    found = CheckpointStore(run / "checkpoints").newest_good()
    return 0 if found is None else found.step
