"""Views of a run that trains in this process: a live screen on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import atexit
import json
import math
import re
import sys
import time
from dataclasses import asdict
from typing import Any

from windtunnel.run import BackgroundWriter, Channel, SafeStream

from .snapshot import Snapshot, as_snapshot
from .text import chain, count, dollars, duration, number, share

REFRESHES_PER_SECOND = 4
# Often enough to see that it lives, rare enough for a log that is read later.
PLAIN_SECONDS = 5.0
# What a log is better without: escapes that set colours.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class TerminalView:
    """Shows snapshots: one screen that redraws itself on a terminal, a line now and then elsewhere.

    `update` only stores the snapshot (a thread draws), so the step loop does not wait for the terminal.
    Use as a context manager or call `close`; the terminal is restored on exit and exceptions either way.
    """

    def __init__(self, stream: Any = None) -> None:
        self._stream: Any = stream or sys.stdout
        self._plain = PlainLines(self._stream) if not self._stream.isatty() else None
        self._live: Any = None
        self._now = Snapshot()

    def update(self, snapshot: Snapshot | dict[str, Any]) -> None:
        """Show this moment."""
        self._now = as_snapshot(snapshot)
        if self._plain:
            self._plain.update(self._now)
        elif self._live is None:
            self._start()

    def say(self, text: str) -> None:
        """Print a line that stays, above the screen."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        elif self._plain:
            self._plain.say(text)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Draw the last moment and give the terminal back."""
        if self._plain:
            self._plain.close()
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            atexit.unregister(self.close)

    def __enter__(self) -> TerminalView:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self) -> None:
        from rich.live import Live

        from .screen import console_on, screen

        console = console_on(self._stream)
        self._live = Live(
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            get_renderable=lambda: screen(self._now, console.width),
            # What others print meanwhile goes above the screen, where it does not tear it.
            redirect_stdout=self._stream is sys.stdout,
            redirect_stderr=False,
        )
        atexit.register(self.close)  # an exception that nobody caught must not leave the cursor hidden
        self._live.start(refresh=True)


class SupervisedView:
    """The view of a supervised training on a terminal: it is drawn there, and the run's log gets plain lines."""

    def __init__(self, channel: Channel) -> None:
        assert channel.terminal is not None
        self._terminal = BackgroundWriter(channel.terminal, sys.stdout.encoding)
        self._shown, self._logged = TerminalView(self._terminal), PlainLines(_Log(channel))

    def update(self, snapshot: Snapshot | dict[str, Any]) -> None:
        """Show this moment."""
        now = as_snapshot(snapshot)
        self._shown.update(now)
        self._logged.update(now)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._shown.say(text)
        self._logged.say(_COLOURS.sub("", text))

    def close(self) -> None:
        """Draw the last moment and give the terminal back."""
        self._shown.close()
        self._logged.close()
        self._terminal.drain()

    def __enter__(self) -> SupervisedView:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Log:
    """A stream whose text goes into the run's log alone."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, text: str) -> int:
        if text.strip():
            # Not through standard output: that is the terminal's here, and has the drawn screen.
            self._channel.log(text)
        return len(text)

    def flush(self) -> None:
        pass


def training_view(*, as_json: bool = False) -> TerminalView | SupervisedView | JsonLines:
    """Return the view for a process that trains. Whatever becomes of its output, it neither fails nor waits."""
    channel = Channel.inherited()
    if as_json:
        # To whoever reads standard output, even where the supervisor has a terminal.
        return JsonLines(SafeStream(sys.stdout))
    if channel is not None and channel.terminal is not None:
        return SupervisedView(channel)
    return TerminalView(SafeStream(sys.stdout))


class PlainLines:
    """A line at each change of phase, each tenth of the run and every few seconds; a long run gets rarer lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._last: Snapshot | None = None
        self._shown: Snapshot | None = None
        self._printed = 0.0
        self._tenth = -1
        self._said: set[str] = set()
        self._began = time.monotonic()

    def update(self, now: Snapshot) -> None:
        """Print the moment if it is due; new alerts at once."""
        clock = time.monotonic()
        # Once, since a log is read from its beginning.
        if self._last is None and now.title:
            self._print(now.title)
        for level, message, advice in now.alerts:
            if f"{level}: {message}" not in self._said:
                self.say(f"{level}: {message}" + (f"\n  {advice}" if advice else ""))
        tenth = int(10 * (now.progress or 0.0))
        # A fiftieth of what has passed: some hundreds of lines, however long the run is.
        pause = max(PLAIN_SECONDS, (clock - self._began) / 50)
        if self._last is None or now.phase != self._last.phase or tenth != self._tenth or clock - self._printed >= pause:
            self._print(plain_line(now))
            self._printed, self._tenth, self._shown = clock, tenth, now
        self._last = now

    def say(self, text: str) -> None:
        """Print a message; an alert whose line it was is not printed again."""
        self._said.add(text.partition("\n")[0])
        self._print(text)

    def close(self) -> None:
        """Print the last moment unless it was printed."""
        if self._last is not None and self._last is not self._shown:
            self._print(plain_line(self._last))
            self._shown = self._last

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class JsonLines:
    """A JSON object a moment, at most one a second, for `--json`."""

    def __init__(self, stream: Any = None, seconds: float = 1.0) -> None:
        self._stream, self._seconds, self._printed = stream or sys.stdout, seconds, float("-inf")
        self._last: Snapshot | None = None

    def update(self, snapshot: Snapshot | dict[str, Any]) -> None:
        """Print the moment if it is due."""
        self._last = as_snapshot(snapshot)
        if time.monotonic() - self._printed >= self._seconds:
            self._flush()

    def say(self, text: str) -> None:
        """Print a message as an object."""
        print(json.dumps({"message": text}), file=self._stream, flush=True)

    def close(self) -> None:
        """Print the last moment unless it was printed."""
        self._flush()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _flush(self) -> None:
        if self._last is None:
            return
        values = asdict(self._last)
        del values["losses"]
        print(json.dumps(finite(values), allow_nan=False), file=self._stream, flush=True)
        self._printed, self._last = time.monotonic(), None


def finite(value: Any) -> Any:
    """JSON has no NaN: such numbers become their names."""
    if isinstance(value, float):  # most of what a page is sent
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def plain_line(now: Snapshot) -> str:
    """Return one moment in one line; what is not known is left out."""
    of = f"/{now.goal:,}" if now.goal else ""
    parts = [f"{now.phase}: step {now.step:,}{of}"]
    if now.progress is not None:
        parts[0] += f" ({100 * now.progress:.0f} %)"
    parts += [f"loss {number(now.loss)}"] if now.loss is not None else []
    parts += [f"refinement {now.refinement:.1f} %"] if now.refinement is not None else []
    parts += [f"validation {number(now.validation)}"] if now.validation is not None else []
    parts += [f"bpb {number(now.bpb)}"] if now.bpb is not None else []
    parts += [f"answers right {share(now.answers)}"] if now.answers is not None else []
    parts += [f"(by step {chain(now.bpb_steps, 4)})"] if now.bpb_steps[1:] else []
    parts += [f"{count(now.tokens_per_second)} tokens/s"] if now.tokens_per_second is not None else []
    parts += [f"MFU {share(now.mfu)}"] if now.mfu is not None else []
    parts += [f"spent {dollars(now.dollars)}"] if now.dollars is not None else []
    parts += [f"elapsed {duration(now.elapsed)}"]
    parts += [f"ETA {duration(now.eta)}"] if now.eta is not None else []
    parts += [f"NOTHING HAS MOVED for {duration(now.silent)}"] if now.silent is not None else []
    return "  ".join(parts)
