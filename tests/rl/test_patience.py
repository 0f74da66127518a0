"""What takes long is named while it does."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import new_run
from waiting import until

from windtunnel.rl import train_policy
from windtunnel.rl.patience import last_line, told_while
from windtunnel.run import heartbeat
from windtunnel.train import HFEngine


def test_who_is_waited_for_is_told_again_and_again_with_its_last_words(tmp_path: Path) -> None:
    log, said = tmp_path / "engine-0-0.log", list[str]()
    with told_while("engine 0 starts", said.append, lambda: last_line(log), seconds=0.01):
        until(lambda: said)
        log.write_text("loading weights\n\n")
        until(lambda: "last: loading weights" in said[-1])
    assert said[0].startswith("engine 0 starts: for 0 s now")
    assert "last" not in said[0]
    assert not any(thread.name == "patience" for thread in threading.enumerate())


def test_an_update_is_given_its_own_time_and_not_that_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv(heartbeat.FOLDER, str(tmp_path))
    run, true, seen = new_run(tmp_path, "budget.steps=3"), HFEngine.update, []

    def update(self: HFEngine, *given: Any, **more: Any) -> torch.Tensor:
        beat = heartbeat.read_beat(tmp_path, 0)
        assert beat is not None
        seen.append((beat.doing, beat.limit))
        return true(self, *given, **more)

    monkeypatch.setattr(HFEngine, "update", update)
    assert train_policy(run) == 0
    assert [doing for doing, _ in seen] == ["learning"] * 3
    assert seen[0][1] == heartbeat.FIRST_SECONDS
