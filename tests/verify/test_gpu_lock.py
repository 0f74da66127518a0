"""GpuLock on a GPU: many share it, one is alone on it, and whoever dies holds nobody up."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import until

from windtunnel.recipe import UserError
from windtunnel.verify.kernel.gpu_lock import GpuLock, gpu_lock_of, opened

WAIT = 300.0


class Watchman:
    """Who is inside at this moment, and whoever was there with somebody he should not have met."""

    def __init__(self) -> None:
        self.lock, self.shared, self.alone = threading.Lock(), 0, 0
        self.most_shared, self.meetings = 0, []

    def enter(self, alone: bool) -> None:
        with self.lock:
            if self.alone or (alone and self.shared):
                self.meetings.append((alone, self.shared, self.alone))
            self.shared, self.alone = self.shared + (not alone), self.alone + alone
            self.most_shared = max(self.most_shared, self.shared)

    def leave(self, alone: bool) -> None:
        with self.lock:
            self.shared, self.alone = self.shared - (not alone), self.alone - alone


def test_nobody_is_beside_one_who_is_alone_and_many_share(tmp_path: Path) -> None:
    watchman, together = Watchman(), threading.Barrier(4)

    def use(number: int) -> None:
        with opened(tmp_path / "gpu") as fds:
            turns = GpuLock(fds)
            with turns.shared():  # all four are in before any goes on: they do share
                watchman.enter(False)
                together.wait(WAIT)
                watchman.leave(False)
            for turn in range(25):
                alone = (turn + number) % 3 == 0
                with turns.alone() if alone else turns.shared():
                    watchman.enter(alone)
                    time.sleep(0.0005)
                    watchman.leave(alone)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert watchman.meetings == []
    assert watchman.most_shared == 4


def test_one_who_waits_to_be_alone_is_not_kept_out_by_a_stream_of_others(tmp_path: Path) -> None:
    """Two that hand over to each other without a gap: without the gate the third would never come in."""
    stop, came_in = threading.Event(), threading.Event()

    def stream(held: threading.Event, other: threading.Event) -> None:
        with opened(tmp_path / "gpu") as fds:
            while not stop.is_set():
                with GpuLock(fds).shared():
                    held.set()
                    other.wait(0.05)
                    other.clear()

    first, second = threading.Event(), threading.Event()
    streams = [threading.Thread(target=stream, args=pair) for pair in ((first, second), (second, first))]
    for thread in streams:
        thread.start()
    first.wait(WAIT)

    def alone() -> None:
        with opened(tmp_path / "gpu") as fds, GpuLock(fds).alone():
            came_in.set()

    waiting = threading.Thread(target=alone)
    waiting.start()
    arrived = came_in.wait(WAIT)
    stop.set()
    for thread in (*streams, waiting):
        thread.join(WAIT)
    assert arrived


def test_those_who_want_to_be_alone_follow_each_other_and_then_let_the_others_in(tmp_path: Path) -> None:
    order: list[str] = []
    path = tmp_path / "gpu"

    def alone(name: str) -> None:
        with opened(path) as fds, GpuLock(fds).alone():
            order.append(name)

    def share() -> None:
        with opened(path) as fds, GpuLock(fds).shared():
            order.append("shared")

    with opened(path) as fds, GpuLock(fds).shared():
        threads = [threading.Thread(target=alone, args=("first",))]
        threads[0].start()
        _is_waiting(path)
        threads += [threading.Thread(target=share), threading.Thread(target=alone, args=("second",))]
        for thread in threads[1:]:
            thread.start()
        # Until each stands where it waits: those who want to be alone at the room, the one who shares at the gate.
        until(lambda: (_waiters(f"{path}.room"), _waiters(f"{path}.gate")) == (2, 1))
    for thread in threads:
        thread.join(WAIT)
    assert sorted(order) == ["first", "second", "shared"]
    assert order[-1] == "shared", order


def test_a_killed_holder_gives_its_turn_back(tmp_path: Path) -> None:
    read, write = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=_hold_alone, args=(tmp_path / "gpu", write))
    child.start()
    assert os.read(read, 1) == b"!"
    got = threading.Event()
    waiting = threading.Thread(target=_shared_once, args=(tmp_path / "gpu", got.set))
    waiting.start()
    assert not got.wait(0.2)
    os.kill(child.pid or 0, signal.SIGKILL)
    assert got.wait(WAIT)
    child.join(WAIT)
    waiting.join(WAIT)
    os.close(read)
    os.close(write)


def test_without_files_there_is_nothing_to_wait_for() -> None:
    with opened(None) as fds:
        assert fds == ()
        assert gpu_lock_of(fds) is None


def _is_waiting(path: Path) -> None:
    """Returns when somebody holds the gate to be alone."""
    deadline = time.monotonic() + WAIT
    with opened(path) as fds:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(fds[0], fcntl.LOCK_UN)
            time.sleep(0.001)
    raise AssertionError("nobody came to be alone")


def _waiters(path: str) -> int:
    """How many wait for a file's lock, as the kernel lists them."""
    file = f":{os.stat(path).st_ino} "
    return sum("->" in line and file in line for line in Path("/proc/locks").read_text().splitlines())


def _hold_alone(path: Path, write: int) -> None:
    with opened(path) as fds, GpuLock(fds).alone():
        os.write(write, b"!")
        time.sleep(600)


def _shared_once(path: Path, then: Callable[[], None]) -> None:
    with opened(path) as fds, GpuLock(fds).shared():
        then()


def test_a_lock_file_that_cannot_be_made_is_named_with_what_helps(tmp_path: Path) -> None:
    for path, why in ((Path("/sys/windtunnel"), ""), (tmp_path / "missing" / "gpu", "No such file")):
        with pytest.raises(UserError, match=str(path)) as told, opened(path):
            pass
        assert why in told.value.message
        assert told.value.fix


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "gpu.gate").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"gpu\.gate"), opened(tmp_path / "gpu"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_two_users_may_make_a_lock_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under fs.protected_regular nobody may open another's file in /tmp as one that he would make."""
    real = os.open

    def with_another(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            os.close(real(path, flags, mode))
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", with_another)
    with opened(tmp_path / "gpu") as fds, GpuLock(fds).alone():
        pass
