"""A reward's process is called from runs of any size."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import HANG

from windtunnel.verify.reward_process import KEPT_LOG, MOST_LOG, RewardProcess

SELECT_TAKES = 1024
"""Descriptors that select() can name; sharded data and checkpoints of a long run open more."""


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SELECT_TAKES + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may open {hard} files here; this needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with ExitStack() as stack:
        for _ in range(SELECT_TAKES):
            stack.callback(os.close, os.dup(0))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_with_many_open_files_still_gets_its_rewards(tmp_path: Path, many_open_files: None) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def score(prompt, answer, truth):\n    return float(answer == truth)\n")
    with RewardProcess(file, "score", tmp_path) as reward:
        long = "4" * 200_000  # more than a pipe holds: sending waits as reading does
        assert [reward.call("2+2", answer, "4").value for answer in ("4", "5", long)] == [1.0, 0.0, 0.0]


PRINTS = """
def score(prompt, answer, truth):
    while answer == "for ever":
        print("x" * 1_000_000)
    print("y" * int(answer))
    if truth:
        raise SystemExit if truth == "raise" else __import__("os")._exit(3)
    return 1.0
"""


def test_a_reward_that_prints_without_end_is_ended_and_its_log_stays_short(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(PRINTS)
    with RewardProcess(file, "score", tmp_path) as reward:
        assert "it printed more than 64 MiB" in reward.call("", "for ever", None).problem
        assert reward.call("", "9", None).value == 1.0
        assert reward.printed <= KEPT_LOG + 10
        for _ in range(3):
            assert reward.call("", str(MOST_LOG // 2), None).value == 1.0
        assert reward.printed < 2 * MOST_LOG


def test_last_words_are_those_of_the_call(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(PRINTS)
    with RewardProcess(file, "score", tmp_path) as reward:
        assert reward.call("", "9", None).value == 1.0
        with open(reward.log, "a", encoding="utf-8") as log:
            log.write("what judges wrote\n")
        assert reward.call("", "0", "exit").problem == "it ended its process with exit code 3"
        assert reward.call("", "3", "exit").problem == "it ended its process with exit code 3 (yyy)"


def test_under_a_limit_of_memory_it_is_called_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def score(prompt, answer, truth):\n    return 1.0\n")
    code = (
        "import resource, sys; from pathlib import Path; from windtunnel.verify.reward_process import RewardProcess\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "with RewardProcess(Path('reward.py'), 'score', Path('.')) as reward: print(reward.call('', '', None).value)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert done.stdout == "1.0\n", done.stderr
