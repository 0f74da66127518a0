"""The cache of prepared data: listed, and removed by age, but never what a process is writing."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from pathlib import Path

import pytest

from windtunnel.cli.start import main
from windtunnel.data import cache_entries, prepare
from windtunnel.data.cache import locked
from windtunnel.recipe import load_recipe

DAY = 86_400


def verb(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["clean", *arguments])
    assert not ended.value.code
    return capsys.readouterr().out


def test_old_data_are_removed_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path))
    assert "0.0 MB in 0 prepared sets" in verb(capsys)
    old, new = (load_recipe("charlm", [f"data.corpus.documents={n}"]) for n in (200, 300))
    prepared, other = prepare(old), prepare(new)
    (tmp_path / "cpu-speed.json").write_text("{}")
    long_ago = time.time() - 40 * DAY
    for path in (prepared.folder, tmp_path / f"{prepared.folder.name}.lock"):
        os.utime(path, (long_ago, long_ago))
    assert prepared.folder.name in verb(capsys)
    found = json.loads(verb(capsys, "--older", "30", "--json"))
    assert {e["path"]: e["removed"] for e in found["entries"]} == {str(prepared.folder): True, str(other.folder): False}
    assert found["freed"] > 0
    assert not prepared.folder.exists()
    assert other.folder.exists()
    assert prepare(old).checksum == prepared.checksum
    assert not json.loads(verb(capsys, "--older", "30", "--json"))["freed"], "asked for just now"
    with locked(tmp_path / f"{other.folder.name}.lock", lambda: None):
        assert [e.busy for e in cache_entries(tmp_path) if e.path == other.folder] == [True]
        verb(capsys, "--older", "0")
    assert other.folder.exists(), "it was being written"
    verb(capsys, "--older", "0")
    assert cache_entries(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["cpu-speed.json"]


def test_a_lock_that_is_held_stays_and_who_waits_for_one_that_goes_takes_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path))
    lock, other = tmp_path / "gone-1.lock", tmp_path / "gone-2.lock"
    other.touch()
    with locked(lock, lambda: None):
        verb(capsys, "--older", "0")
        assert (lock.exists(), other.exists()) == (True, False)
    waited: list[bool] = []

    def wait() -> None:
        waited.append(True)

    def hold() -> None:
        with locked(lock, wait):
            assert lock.exists(), "a lock that is held has its name"

    with open(lock, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiter = threading.Thread(target=hold)
        waiter.start()
        while not waited:
            time.sleep(0.01)
        lock.unlink()  # as `clean` does, which holds it
    waiter.join(60)
    assert not waiter.is_alive()
    assert lock.exists()
