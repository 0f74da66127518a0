"""What stops a rented machine when the work is done: real processes, and a file in place of the machine's end."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from windtunnel.remote.afterwards import SETTINGS, Afterwards, at_work

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """start('word', ...) is a process that sleeps with those words in its command line; ended with the test."""
    begun = []

    def sleep(*words: str) -> "subprocess.Popen[bytes]":
        begun.append(subprocess.Popen(["sh", "-c", "sleep 1000; true", *words], start_new_session=True))
        return begun[-1]

    yield sleep
    for process in begun:
        process.kill()
        process.wait()


def waits(folder: Path, asked: Afterwards) -> "subprocess.Popen[bytes]":
    (folder / SETTINGS).write_text(asked.dump())
    return subprocess.Popen([sys.executable, "-m", "windtunnel.remote.afterwards", str(folder)], stdout=subprocess.DEVNULL)


def test_a_machine_is_stopped_when_its_work_is_done_and_not_before(tmp_path: Path, start: Start) -> None:
    work, view, other = start(f"{tmp_path}/runs", "train"), start(f"{tmp_path}/runs", "logs"), start("somewhere/else")
    assert list(at_work(tmp_path)) == [work.pid]
    waiting = waits(tmp_path, Afterwards(f"touch {tmp_path}/stopped", minutes=0.0))
    until(lambda: (tmp_path / "afterwards.lock").exists(), "it does not begin")
    second = waits(tmp_path, Afterwards(f"touch {tmp_path}/stopped-too", minutes=0.0))
    assert second.wait(300) == 0  # one is enough, and it reads what the second was told
    assert waiting.poll() is None
    work.kill()
    work.wait()
    assert waiting.wait(300) == 0
    assert [path.name for path in tmp_path.glob("stopped*")] == ["stopped-too"]
    assert view.poll() is other.poll() is None


def test_past_its_limit_nothing_is_left_running(tmp_path: Path, start: Start) -> None:
    work = start(f"{tmp_path}/runs", "train")
    waiting = waits(tmp_path, Afterwards(f"touch {tmp_path}/stopped", minutes=0.0, until=time.time() - 1.0))
    assert work.wait(300) < 0
    assert waiting.wait(300) == 0
    assert (tmp_path / "stopped").exists()
