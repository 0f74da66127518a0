"""Notices: each event once, to a web hook and a command, the end in any case, and a failure to send stops nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from windtunnel.recipe import Notify, UserError, load_recipe
from windtunnel.run import GateResult, Metrics, RunFolder, notifying, tell_gates


class Hook:
    """A web hook on this machine that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.status = 200
        self.endless = b""  # sent again and again: in place of a status, or behind it
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if hook.status:
                    self.send_response(hook.status)
                    self.end_headers()
                with contextlib.suppress(OSError):
                    while hook.endless and not hook.closed.wait(0.05):
                        self.wfile.write(hook.endless)

            def log_message(self, *arguments: Any) -> None:
                """Keep quiet."""

        self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.closed.set()
    made.server.shutdown()
    made.server.server_close()


def run(root: Path) -> RunFolder:
    return RunFolder.create(root, load_recipe("charlm", ["model.depth=2"]), rig={})


def train(folder: RunFolder, notify: Notify, said: list[str]) -> None:
    """Train in name: a warning, another event, and the end."""
    with notifying(folder.path, notify, said.append), folder:
        with Metrics(folder.metrics_path) as metrics:
            metrics.event("band:throughput", 10, "slow", "warn", {"advice": "look at the loader"})
            metrics.event("checkpoint", 10, "saved", "info")
        folder.finish("done", "budget.steps: 20 steps done")


def test_warnings_and_the_end_are_told_once(tmp_path: Path, hook: Hook) -> None:
    said: list[str] = []
    train(made := run(tmp_path), Notify(webhook=hook.address), said)
    assert [(event["kind"], event["level"]) for event in hook.told] == [("bands", "warn"), ("end", "info")]
    assert hook.told[0]["text"] == f"{made.path.name}: slow (look at the loader)"
    assert hook.told[1]["message"] == "done: budget.steps: 20 steps done"
    assert said == []


def test_only_what_was_asked_for_and_nothing_from_before_a_resume(tmp_path: Path, hook: Hook) -> None:
    train(made := run(tmp_path), Notify(webhook=hook.address, on=["end"]), [])
    assert [event["kind"] for event in hook.told] == ["end"]
    with notifying(made.path, Notify(webhook=hook.address, on=["bands"]), [].append):
        pass
    assert len(hook.told) == 1


def test_a_run_that_breaks_off_is_told_too(tmp_path: Path, hook: Hook) -> None:
    with pytest.raises(RuntimeError), notifying((made := run(tmp_path)).path, Notify(webhook=hook.address), [].append), made:
        raise RuntimeError("a rank is gone")
    assert hook.told[-1]["kind"] == "end"
    assert hook.told[-1]["level"] == "bad"


def test_a_command_gets_words_and_json(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    train(
        made := run(tmp_path / "runs"),
        Notify(command=f'echo "$WINDTUNNEL_EVENT" >> {out}; cat >> {out}; echo >> {out}', on=["end"]),
        [],
    )
    words, event = out.read_text().splitlines()
    assert words == f"{made.path.name}: done: budget.steps: 20 steps done"
    assert json.loads(event)["kind"] == "end"


def test_what_cannot_be_sent_is_said_once_and_stops_nothing(tmp_path: Path, hook: Hook) -> None:
    hook.status, said = 500, []
    train(made := run(tmp_path), Notify(webhook=hook.address, command="exit 3"), said)
    assert len(said) == 1
    assert said[0].startswith("warn: notify: ")
    assert RunFolder.open(made.path).manifest["status"] == "done"


@pytest.mark.parametrize(
    ("status", "words"), [(200, []), (0, ["warn: notify: TimeoutError: no answer from the web hook in 1 s"])]
)
def test_an_answer_without_an_end_is_not_waited_for(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch, status: int, words: list[str]
) -> None:
    monkeypatch.setattr("windtunnel.run.notify.PATIENCE", 1.0)
    hook.status, hook.endless, said = status, b"x", []
    train(run(tmp_path), Notify(webhook=hook.address, on=["end"]), said)
    assert [event["kind"] for event in hook.told] == ["end"]
    assert said == words


def test_a_command_that_leaves_something_running_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    train(run(tmp_path), Notify(command="sleep 100 & echo $! > pid", on=["end"]), said)
    os.kill(int(Path("pid").read_text()), signal.SIGKILL)
    assert said == []


def test_gates_are_told_as_they_were_judged(tmp_path: Path, hook: Hook) -> None:
    made = run(tmp_path)
    held = GateResult("order", True, 1.0, "1", "in order", None)
    failed = GateResult("refinement", False, 0.5, "0.5 %", "at least 1 %", "train longer")
    for results in ([held], [held, failed], []):
        tell_gates(made.path, Notify(webhook=hook.address), results, [].append)
    assert [event["level"] for event in hook.told] == ["info", "bad"]
    assert "gate refinement failed: 0.5 %, asked was at least 1 %" in hook.told[1]["text"]


def test_an_address_is_checked_before_anything_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    with (
        pytest.raises(UserError, match="NO_SUCH_HOOK is not set"),
        notifying(tmp_path, Notify(webhook="env:NO_SUCH_HOOK"), [].append),
    ):
        pass
    with pytest.raises(UserError, match="https://"):
        load_recipe("charlm", ["notify.webhook=slack.com/hook"])
