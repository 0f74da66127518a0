"""Resume = uninterrupted: bit for bit on the same layout, correct on another number of ranks."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import events, final_weights, losses, set_ranks, train_in_processes
from waiting import HANG

from windtunnel.recipe import UserError
from windtunnel.run import RunFolder
from windtunnel.train import train

NewRun = Callable[..., Path]


def assert_same(a: Path, b: Path) -> None:
    """Same losses at every step and same weights at the end, bit for bit."""
    assert losses(a) == losses(b)
    one, other = final_weights(a), final_weights(b)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_same_seed_gives_the_same_losses_and_another_seed_does_not(new_run: NewRun) -> None:
    folders = [new_run("budget.steps=12"), new_run("budget.steps=12"), new_run("budget.steps=12", "seed=1")]
    assert [train(folder) for folder in folders] == [0, 0, 0]
    assert_same(folders[0], folders[1])
    assert losses(folders[0]) != losses(folders[2])
    assert losses(folders[0])[12] < losses(folders[0])[1]


def test_a_stopped_run_resumes_as_if_it_had_never_stopped(new_run: NewRun) -> None:
    whole, halted = new_run(), new_run()
    assert train(whole) == 0

    def interrupt(step: int, _: object) -> None:
        if step == 13:
            os.kill(os.getpid(), signal.SIGTERM)

    assert train(halted, after_step=interrupt) == 3
    assert RunFolder.open(halted).manifest["status"] == "stopped"
    assert train(halted) == 0
    assert_same(whole, halted)
    assert "resumed" in events(halted)


def test_a_run_killed_between_its_last_checkpoint_and_its_end_is_finished(new_run: NewRun) -> None:
    folder = new_run("budget.steps=12")
    assert train(folder) == 0
    before = RunFolder.open(folder).manifest
    with RunFolder.open(folder, write=True) as run:
        run.manifest.pop("resumed_from")
        run.update(status="running", reason=None, summary=None, exit_code=None)  # what a kill leaves
    assert train(folder) == 0, "the budget is spent, and nothing is left to be trained"
    after = RunFolder.open(folder).manifest
    assert [after[key] for key in ("status", "reason", "summary")] == [before[key] for key in ("status", "reason", "summary")]
    with pytest.raises(UserError, match="already spent"):
        train(folder)


class Said:
    """A view that keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, snapshot: object) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_run_whose_checkpoints_are_all_lost_says_that_it_starts_over(new_run: NewRun) -> None:
    folder, said = new_run("budget.steps=12"), Said()
    assert train(folder, view=said) == 0
    assert not any("damaged" in line or "starts at step 0" in line for line in said.lines)
    before = losses(folder)
    for weights in (folder / "checkpoints").glob("*/model/*.distcp"):
        weights.write_bytes(b"")
    assert train(folder, view=said) == 0
    assert any("no good one is left" in line for line in said.lines)
    assert any("training starts at step 0 again" in line for line in said.lines)
    assert {"checkpoint_damaged", "no_checkpoint"} <= set(events(folder))
    assert losses(folder) == before


def kill_at_random(folder: Path, kills: int, steps: int, seed: int) -> int:
    """SIGKILL the run at random moments of its training, resume, until it ends; returns the kills that hit.

    Each kill comes some checkpoints after the one before, within an equal share of the run's `steps`:
    what counts is how far the run is, so that a fast machine is not through before it.
    """
    dice, hit, share = random.Random(seed), 0, steps // (kills + 2)
    for kill in range(kills):
        process = train_in_processes(folder, 1)
        target = kill * share + dice.randrange(1, share)
        while newest_step(folder) < target and process.poll() is None:
            time.sleep(0.001)
        time.sleep(dice.random() * 0.02)
        if process.poll() is None:
            process.kill()
            hit += 1
        process.communicate()
    process = train_in_processes(folder, 1)
    output = process.communicate(timeout=HANG)[0]
    assert process.returncode == 0, output
    return hit


def newest_step(folder: Path) -> int:
    """The step of the newest whole checkpoint, 0 before the first."""
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-????????")), default=0)


@pytest.mark.timeout(400)
def test_a_killed_run_resumes_bit_for_bit(new_run: NewRun) -> None:
    sets = ("budget.steps=160", "checkpoints.every=5 steps", "stages.pretrain.validate_every=100 steps")
    sets += ("bands.overfit_patience=1000",)
    whole, killed = (new_run(*sets, options={"yes": True}) for _ in range(2))
    assert train(whole) == 0
    # Within the first part of it: a fast machine does the rest while a slow disk still writes.
    assert kill_at_random(killed, kills=2, steps=80, seed=1) == 2
    assert_same(whole, killed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fifty_kills_at_random_moments_change_nothing(new_run: NewRun) -> None:
    sets = ("budget.steps=3000", "checkpoints.every=3 steps", "stages.pretrain.validate_every=500 steps")
    sets += ("bands.overfit_patience=1000",)
    whole, killed = (new_run(*sets, options={"yes": True}) for _ in range(2))
    assert train(whole) == 0
    assert kill_at_random(killed, kills=50, steps=1500, seed=2) == 50  # within its first half, as above
    assert_same(whole, killed)


@pytest.mark.timeout(300)
def test_two_ranks_give_the_losses_of_one_and_resume_on_either(new_run: NewRun) -> None:
    one, two, moved = new_run("budget.steps=20"), new_run("budget.steps=20", ranks=2), new_run("budget.steps=20", ranks=2)
    assert train(one) == 0
    process = train_in_processes(two, 2)
    output = process.communicate(timeout=HANG)[0]
    assert process.returncode == 0, output
    alone, together = losses(one), losses(two)
    assert alone.keys() == together.keys()
    assert max(abs(alone[s] - together[s]) for s in alone) < 2e-4

    # Two ranks until their first checkpoint, then one.
    process = train_in_processes(moved, 2)
    while not list((moved / "checkpoints").glob("step-????????")) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    with RunFolder.open(moved, write=True) as run:
        set_ranks(run, 1)
    assert train(moved) == 0
    assert "resumed" in events(moved)
    again = losses(moved)
    assert again.keys() == alone.keys()
    assert max(abs(alone[s] - again[s]) for s in alone) < 2e-4
