"""Processes of a rehearsal: followed, frozen, killed with their children, and never left behind."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from windtunnel.check import CheckFailed
from windtunnel.rehearse.processes import Child
from windtunnel.rehearse.training import _catch, _half_written

# Writes checkpoints as the writer does: a folder of a temporary name, files, one rename.
WRITER = """
import sys, time
from pathlib import Path
folder = Path(sys.argv[1])
for step in (10, 20, 30, 40):
    temporary = folder / f"step-{step:08d}.tmp-abcdef-1"
    temporary.mkdir()
    for part in range(20):
        with open(temporary / "model.safetensors", "ab") as file:
            file.write(b"x" * 1000)
        time.sleep(0.001)
    temporary.rename(folder / f"step-{step:08d}")
    print('{"step": %d, "loss": 1.5}' % step, flush=True)
    time.sleep(0.2)
"""


class Nothing:
    """Follows nobody."""

    step = 0

    def look(self) -> None:
        """Nothing."""


def test_a_save_is_caught_half_written_and_stays_so(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    with Child(["-c", WRITER, str(checkpoints)], tmp_path / "log") as child:
        found = _catch(child, checkpoints, Nothing())
        assert not child.running
    left = sorted(path.name for path in checkpoints.iterdir())
    assert left[0] == "step-00000010"
    assert ".tmp-" in left[-1]
    assert "no checkpoint.json" in found


def test_a_save_without_one_before_it_is_let_go(tmp_path: Path) -> None:
    (tmp_path / "step-00000010.tmp-abc-1" / "model").mkdir(parents=True)
    (tmp_path / "step-00000010.tmp-abc-1" / "model" / "__0_0.distcp").write_bytes(b"x")
    assert _half_written(tmp_path) is None
    (tmp_path / "step-00000005").mkdir()
    assert _half_written(tmp_path) is not None
    (tmp_path / "step-00000010.tmp-abc-1").rename(tmp_path / "step-00000001.tmp-delete-77")
    assert _half_written(tmp_path) is None


def test_a_process_that_ends_by_itself_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    with Child(["-c", "import sys; print('error: no data'); sys.exit(2)"], tmp_path / "log") as child:
        with pytest.raises(CheckFailed, match=r"exit code 2: error: no data"):
            _catch(child, tmp_path, Nothing())


def test_a_frozen_process_stands_still_and_goes_on(tmp_path: Path) -> None:
    code = "import time\nwhile True: print('x', flush=True); time.sleep(0.001)"
    with Child(["-c", code], tmp_path / "log") as child:
        while not list(child.lines()):
            time.sleep(0.01)
        child.freeze()
        list(child.lines())
        time.sleep(0.1)
        assert not list(child.lines())
        child.thaw()
        time.sleep(0.2)
        assert list(child.lines())


def test_leaving_kills_children_and_grandchildren(tmp_path: Path) -> None:
    sleep = f"[{sys.executable!r}, '-c', 'import time; time.sleep(60)']"
    code = f"import subprocess, time; print(subprocess.Popen({sleep}).pid, flush=True); time.sleep(60)"
    with Child(["-c", code], tmp_path / "log") as child:
        while not (lines := list(child.lines())):
            time.sleep(0.01)
    assert not child.running
    grandchild = int(lines[0])
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_silence_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.rehearse.processes.SILENCE_SECONDS", 0.2)
    with Child(["-c", "import time; time.sleep(60)"], tmp_path / "log") as child:
        with pytest.raises(CheckFailed, match="no sign of life"):
            child.wait(lambda: list(child.lines()) and None)


def test_half_lines_wait_for_their_end(tmp_path: Path) -> None:
    code = "import sys, time\nsys.stdout.write('{\"step\": '); sys.stdout.flush(); time.sleep(0.3); print('7}')"
    moments = []
    with Child(["-c", code], tmp_path / "log") as child:
        child.wait(lambda: moments.extend(child.moments()))
    assert moments == [{"step": 7}]
