"""windtunnel logs: the run's own log and those of its engines and judges, listed, chosen and followed."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest
from waiting import until

from windtunnel.cli import main
from windtunnel.recipe import load_recipe
from windtunnel.run import RunFolder
from windtunnel.watch import follow_logs

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a rotated log, two engines' and one of judges."""
    with RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={}) as made:
        path = made.path
    (path / "output.log.1").write_text("oldest\n")
    (path / "output.log").write_text("newest\nlast\n")
    (path / "logs").mkdir()
    (path / "logs" / "engine-0-0.log").write_text("loading\nready\n")
    (path / "logs" / "engine-0-1.log").write_text("out of memory")
    (path / "logs" / "judges-0.log").write_text("math failed\n")
    return path


def call(*arguments: object) -> int:
    """Return the exit code of the verb."""
    try:
        main(["logs", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_logs_are_chosen_by_name_or_kind_and_told_apart(run: Path, capsys: Capture) -> None:
    def logs(*arguments: object) -> list[str]:
        assert call(*arguments) == 0
        return capsys.readouterr().out.splitlines()

    assert logs(run) == ["oldest", "newest", "last"]
    assert logs(run, "--which", "engine-0-1") == ["out of memory"]
    engines = ["[engine-0-0] loading", "[engine-0-0] ready", "[engine-0-1] out of memory"]
    assert logs(run, "--which", "engine") == engines
    assert logs(run, "--which", "all") == ["oldest", "newest", "last", *engines, "[judges-0] math failed"]
    assert logs(run, "--which", "all", "-n", "1") == ["last", engines[1], engines[2], "[judges-0] math failed"]
    assert call(run) == 0
    assert "besides: engine-0-0, engine-0-1, judges-0" in capsys.readouterr().err


def test_logs_are_listed(run: Path, capsys: Capture) -> None:
    assert call(run, "--list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["bytes"]) for row in rows] == [
        ("run", 12), ("output.log.1", 7), ("engine-0-0", 14), ("engine-0-1", 13), ("judges-0", 12),
    ]  # fmt: skip
    assert call(run, "--list") == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("engine-0-0")


def test_a_log_that_is_not_there_is_named_with_those_that_are(run: Path, capsys: Capture) -> None:
    assert call(run, "--which", "enginee") == 2
    said = capsys.readouterr().err
    assert "--which enginee" in said
    assert "judges-0" in said


def test_all_logs_are_followed_those_that_appear_and_those_that_are_rotated(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, out, log = True, io.StringIO(), run / "output.log"
    monkeypatch.setattr("windtunnel.watch.tails.is_live", lambda folder: live)

    def find() -> dict[Path, str]:
        return {log: "", **{path: f"[{path.stem}] " for path in sorted((run / "logs").glob("*.log"))}}

    known = {path: path.stat().st_size for path in find()}
    thread = threading.Thread(target=follow_logs, args=(run, find, out, known, 0.01))
    thread.start()
    with log.open("a") as file:
        file.write("more\n")
    until(lambda: "more" in out.getvalue())
    log.rename(run / "output.log.1")
    log.write_text("after it was rotated\n")
    (run / "logs" / "engine-1-0.log").write_text("a new one\nhalf")
    until(lambda: "[engine-1-0] a new one" in out.getvalue() and "after it was rotated" in out.getvalue())
    assert "half" not in out.getvalue()
    live = False
    thread.join()
    assert set(out.getvalue().splitlines()) == {"more", "after it was rotated", "[engine-1-0] a new one", "[engine-1-0] half"}
