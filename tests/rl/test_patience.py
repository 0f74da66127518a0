"""What takes long is named while it does."""

from __future__ import annotations

import threading
from pathlib import Path

from waiting import until

from windtunnel.rl.patience import last_line, told_while


def test_who_is_waited_for_is_told_again_and_again_with_its_last_words(tmp_path: Path) -> None:
    log, said = tmp_path / "engine-0-0.log", list[str]()
    with told_while("engine 0 starts", said.append, lambda: last_line(log), seconds=0.01):
        until(lambda: said)
        log.write_text("loading weights\n\n")
        until(lambda: "last: loading weights" in said[-1])
    assert said[0].startswith("engine 0 starts: for 0 s now")
    assert "last" not in said[0]
    assert not any(thread.name == "patience" for thread in threading.enumerate())
