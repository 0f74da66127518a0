"""Judges in a process of their own say what judges here say; a process that is lost costs no answer its verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO, UserError
from windtunnel.rl import Rewards
from windtunnel.rl.judges import Reward
from windtunnel.rl.judges_process import ProcessRewards

SLOW = """
import time
from pathlib import Path

def score(prompt, answer, truth):
    Path({began!r}).touch()
    while Path({hold!r}).exists():
        time.sleep(0.02)
    return float(answer == truth)
"""
HELD = """
import sys
from pathlib import Path
from windtunnel.recipe import GRPO
from windtunnel.rl.judges_process import ProcessRewards

if __name__ == "__main__":
    rewards = ProcessRewards(GRPO(name="rl", rewards=[{"kind": "exact"}]), Path(sys.argv[1]))
    print(rewards.pid, flush=True)
    sys.stdin.read()
"""


def prompt(answer: Any = "7") -> Prompt:
    return Prompt(0, np.array([1, 2]), "What is seven?", answer, {})


def until(holds: Any) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def judged(rewards: Rewards, one: Prompt, *answers: str) -> list[Reward]:
    verifiers = rewards.verifiers(one)
    return [judging.result() for judging in [rewards.begin(verifiers, answer) for answer in answers]]


def test_judges_elsewhere_say_what_judges_here_say(tmp_path: Path) -> None:
    sources = [{"kind": "math", "where": "boxed"}, {"kind": "format", "task": {"boxed": True}, "weight": 0.25}]
    stage = GRPO(name="rl", rewards=sources)  # type: ignore[arg-type]
    answers = ["\\boxed{7}", "\\boxed{14/2}", "\\boxed{8}", "seven", ""]
    with Rewards(stage) as here, ProcessRewards(stage, tmp_path / "judges.log") as elsewhere:
        assert judged(elsewhere, prompt(), *answers) == judged(here, prompt(), *answers)
        assert elsewhere.metric == here.metric
        again = [rewards.check(prompt(), answers[0], prompt("9")) for rewards in (here, elsewhere)]
    assert again[0] == again[1]
    assert again[0].swapped is False


def slow_stage(folder: Path, retries: int) -> tuple[GRPO, Path, Path]:
    """Return a stage whose judge waits while a file is there, that file, and one that is there once it was asked."""
    began, hold = folder / "began", folder / "hold"
    hold.touch()
    (folder / "slow.py").write_text(SLOW.format(began=str(began), hold=str(hold)))
    return GRPO(name="rl", reward=f"{folder / 'slow.py'}:score", retries=retries), hold, began


@pytest.mark.parametrize(("retries", "known"), [(1, True), (0, False)])
def test_a_process_that_is_killed_is_started_again_and_asked_again(tmp_path: Path, retries: int, known: bool) -> None:
    stage, hold, began = slow_stage(tmp_path, retries)
    with ProcessRewards(stage, tmp_path / "judges.log") as rewards:
        first = rewards.pid
        waiting = [rewards.begin(rewards.verifiers(prompt()), answer) for answer in ("7", "8")]
        until(began.exists)
        os.kill(first, signal.SIGKILL)
        hold.unlink()
        found = [one.result() for one in waiting]
        if known:
            assert [one.total for one in found] == [1.0, 0.0]
        else:  # never worth 0
            assert [one.total for one in found] == [None, None]
            assert "after 1 attempts: the judges' process ended with exit code -9" in found[0].message
        assert judged(rewards, prompt(), "7")[0].total == 1.0
        assert rewards.pid != first


def test_what_is_refused_here_is_refused_in_the_same_words(tmp_path: Path) -> None:
    for stage in (GRPO(name="rl"), GRPO(name="rl", reward=f"{tmp_path / 'missing.py'}:score")):
        said = []
        for make in (lambda s: Rewards(s, tmp_path / "log"), lambda s: ProcessRewards(s, tmp_path / "log")):
            with pytest.raises(UserError) as refused:
                make(stage)
            said.append((refused.value.message, refused.value.fix))
        assert said[0] == said[1]


def test_no_judge_outlives_whoever_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "held.py"
    script.write_text(HELD)
    with subprocess.Popen([sys.executable, script, tmp_path / "log"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        judges = int(process.stdout.readline())
        process.kill()
    until(lambda: not psutil.pid_exists(judges) or psutil.Process(judges).status() == psutil.STATUS_ZOMBIE)


def test_closing_leaves_nothing_waiting(tmp_path: Path) -> None:
    stage, hold, began = slow_stage(tmp_path, 1)
    with ProcessRewards(stage, tmp_path / "judges.log") as rewards:
        waiting = rewards.begin(rewards.verifiers(prompt()), "7")
        until(began.exists)
        judges = rewards.pid
        functions = psutil.Process(judges).children(recursive=True)
    assert waiting.result().total is None
    assert not psutil.pid_exists(judges)
    until(lambda: not any(one.is_running() for one in functions))  # the user's too, which is at work still
    assert hold.exists()
