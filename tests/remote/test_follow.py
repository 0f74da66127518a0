"""windtunnel logs -f from the laptop: the lines of a run on another machine, as they come, until it ends there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ssh_hosts import MISSING, Machine, machine
from waiting import HANG, until

import windtunnel
from windtunnel.recipe import load_recipe
from windtunnel.run import RunFolder

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed here: {', '.join(MISSING)} (apt install openssh-server rsync)"
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine that has what a launch installs: here, this very package."""
    with machine(tmp_path / "machine", {"PYTHONPATH": str(Path(windtunnel.__file__).parents[1])}) as found:
        program = found.home / ".windtunnel" / "current" / "bin" / "windtunnel"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m windtunnel "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("WINDTUNNEL_SSH", found.ssh)
        yield found


@contextlib.contextmanager
def following(address: str, lines: Path) -> Iterator[subprocess.Popen[bytes]]:
    """windtunnel logs -f in a terminal's group of processes; what it prints goes to a file."""
    command = [sys.executable, "-m", "windtunnel", "logs", "-f", address]
    with open(lines, "wb") as to, subprocess.Popen(command, stdout=to, stderr=to, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def followers(host: Machine) -> list[int]:
    """The processes on the machine that follow a log."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == str(host.home) and "logs" in process.cmdline() and "-m" in process.cmdline():
                found.append(process.pid)
    return found


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
def test_lines_come_as_they_are_written_until_the_run_ends(host: Machine, tmp_path: Path) -> None:
    root = host.home / ".windtunnel" / "runs"
    root.mkdir()
    with RunFolder.create(root, load_recipe("charlm", ["model.depth=2"]), rig={}) as run:
        log = run.path / "output.log"

        def say(text: str) -> None:
            with log.open("a") as file:
                file.write(f"{text}\n")

        say("first line")
        first, second = tmp_path / "first", tmp_path / "second"
        with following(host.address, first) as process:
            until(lambda: "first line\n" in first.read_text() or process.poll() is not None, "what was there is not printed")
            say("second line")
            until(lambda: "second line\n" in first.read_text() or process.poll() is not None, "what comes is not printed")
            assert process.poll() is None
            os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
            process.wait(HANG)
            assert "Traceback" not in first.read_text()
        # The run does not know of it, and nobody is left there who follows.
        assert run.manifest["status"] == "running"
        assert not (run.path / "stop").exists()

        def let_go() -> bool:
            say("a line that nobody reads")
            return not followers(host)

        until(let_go, "on the machine the log is still followed")
        with following(f"{host.address}/{run.path.name}", second) as process:
            until(lambda: "second line\n" in second.read_text() or process.poll() is not None, "a second look prints nothing")
            say("last line")
            run.finish("done", "budget.steps")
            run.__exit__(None, None, None)
            assert process.wait(HANG) == 0
        assert second.read_text().endswith("last line\n")
        assert second.read_text().startswith("first line\nsecond line\n")
