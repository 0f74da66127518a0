"""Tell someone what happens to a run: by a web hook or a command, from the process that started it, never in training's way."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from windtunnel.recipe import Notify, UserError

from .bands import GateResult
from .ending import outcome
from .folder import read_manifest
from .metrics import Event, MetricsReader
from .trackers import Say

PERIOD = 5.0  # seconds between two looks at what happened
PATIENCE = 20.0  # seconds that one web hook or command may take


class Messenger:
    """Sends events of one run to where its recipe says. What cannot be sent is said once, and costs nothing else.

    Args:
        notify: the recipe's section.
        run: the folder's name.
        say: told what could not be sent.

    Raises:
        UserError: the variable that should hold the address is not set: said before there is anything to tell.
    """

    def __init__(self, notify: Notify, run: str, say: Say) -> None:
        self._notify, self._run, self._say, self._told = notify, run, say, False
        self._address = notify.webhook
        if notify.webhook is not None and notify.webhook.startswith("env:"):
            name = notify.webhook.removeprefix("env:")
            self._address = os.environ.get(name)
            if not self._address:
                raise UserError(
                    f"notify.webhook is {notify.webhook}, and the variable {name} is not set", f"export {name}=https://..."
                )

    def wants(self, kind: str) -> bool:
        """Whether anyone asked to be told of this kind: bands, gates or end."""
        return kind in self._notify.on and (self._address is not None or self._notify.command is not None)

    def send(self, kind: str, level: str, message: str, advice: str = "") -> None:
        """Send one event and wait until it is sent, or failed."""
        if not self.wants(kind):
            return
        words = f"{self._run}: {message}" + (f" ({advice})" if advice else "")
        # 'text' is what Slack and Mattermost show, 'content' what Discord does.
        event = {
            "text": words,
            "content": words,
            "run": self._run,
            "kind": kind,
            "level": level,
            "message": message,
            "advice": advice,
        }
        for sent in (self._post, self._call):
            try:
                sent(event)
            except Exception as error:  # whatever it is, the run is worth more
                if not self._told:
                    self._told = True
                    why = next(iter(str(error).splitlines()), "no reason given")
                    self._say(f"warn: notify: {type(error).__name__}: {why}")

    def _post(self, event: dict[str, Any]) -> None:
        if self._address is not None:
            # A thread of its own: a look-up of a name has no time-out, and httpx's is between two bytes, of which a server may
            # send one a second.
            failed: list[Exception] = []
            posting = threading.Thread(target=_posted, args=(self._address, event, failed), name="webhook", daemon=True)
            posting.start()
            posting.join(PATIENCE)
            if posting.is_alive():
                raise TimeoutError(f"no answer from the web hook in {PATIENCE:.0f} s")
            if failed:
                raise failed[0]

    def _call(self, event: dict[str, Any]) -> None:
        if self._notify.command is not None:
            environment = {**os.environ, "WINDTUNNEL_EVENT": event["text"], "WINDTUNNEL_EVENT_KIND": event["kind"]}
            subprocess.run(
                self._notify.command, shell=True, input=json.dumps(event), text=True, env=environment, timeout=PATIENCE,
                check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip


def _posted(address: str, event: dict[str, Any], failed: list[Exception]) -> None:
    """Post an event, and note the error if it fails. What is answered behind the status is not read: it may have no end."""
    import httpx

    try:
        with httpx.stream("POST", address, json=event, timeout=PATIENCE) as answer:
            answer.raise_for_status()
    except Exception as error:
        failed.append(error)


@contextlib.contextmanager
def notifying(folder: Path, notify: Notify, say: Say) -> Iterator[None]:
    """Tell of a run's warnings while it trains, and of its end when the block is left, by an exception too.

    Raises:
        UserError: see `Messenger`.
    """
    messenger = Messenger(notify, folder.name, say)
    if not (messenger.wants("bands") or messenger.wants("end")):
        yield
        return
    # A run that is gone on with has old warnings, which were told already.
    ended, seen = threading.Event(), len(_events(folder))

    def follow() -> None:
        told = seen
        while True:
            last = ended.wait(PERIOD)
            found = _events(folder)
            for event in found[told:]:
                if event.kind.startswith("band:") or event.kind == "rewind":
                    messenger.send("bands", event.level, event.message, str(event.data.get("advice") or ""))
            told = max(told, len(found))
            if last:
                return

    thread = threading.Thread(target=follow, name="notify", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # A hook and a command may each be under way, and one more event be waiting.
        thread.join(3 * PATIENCE)
        with contextlib.suppress(UserError):
            stands = outcome(folder, read_manifest(folder))
            level = "info" if stands.status == "done" else "bad" if stands.status == "failed" else "warn"
            messenger.send("end", level, f"{stands.status}: {stands.reason or 'no reason given'}")


def tell_gates(folder: Path, notify: Notify, results: Sequence[GateResult], say: Say) -> None:
    """Tell how the gates of a run that has ended were judged."""
    failed = [gate for gate in results if not gate.held]
    if not results:
        return
    words = [f"gate {gate.name} failed: {gate.measured}, asked was {gate.limit}" for gate in failed]
    message = "; ".join(words) or f"all {len(results)} gates held"
    with contextlib.suppress(UserError):  # said when the run began
        Messenger(notify, folder.name, say).send(
            "gates", "bad" if failed else "info", message, failed[0].advice or "" if failed else ""
        )


def _events(folder: Path) -> list[Event]:
    """Return what happened so far; nothing where that cannot be read now."""
    path = folder / "metrics.sqlite"
    try:
        if not path.exists():
            return []
        with MetricsReader(path) as metrics:
            return metrics.events()
    except UserError:
        return []
