"""The process that mirrors a run while another trains it: python -m windtunnel.mirror.process RUN URL.

It shares nothing with the training but the folder, so that a store that is slow, gone or full costs training nothing. Told
'finish' on standard input, or when whoever trains has gone, it brings over what is left, lets the lease go, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windtunnel.checkpoint import CheckpointStore
from windtunnel.files import write_json
from windtunnel.recipe import UserError
from windtunnel.run import NOTICE_VARIABLE, too_late

from .lease import Keeper, Lease, LeaseTaken
from .store import Place, Store, StoreError
from .sync import STATE, Mirror, Report, read_state, require_same_history, time_of

PERIOD = 30.0
"""Between passes; a new checkpoint begins one at once."""
LOOK = 1.0
MOST_BETWEEN = 60.0
"""Between tries while the store fails."""
AGAIN_SECONDS = 600.0
"""After which a failure that lasts is told again."""
SLOW_SECONDS = 30.0
"""Of a pass, after which a store is called slow if newer checkpoints wait meanwhile; a large one by itself may take its time."""
NICE = 10
SESSIONS_KEPT = 8


def main() -> int:
    """Mirror until told to finish. What happens is told on standard output, a JSON object a line."""
    run, url = Path(sys.argv[1]), sys.argv[2]
    os.nice(NICE)  # trainers compute on the same cores
    try:
        worker = _Worker(run, Store(Place.parse(url)))
    except UserError as error:
        _tell(error=error.message, fix=error.fix)
        return 1
    return worker.work()


class _Worker:
    """The loop of passes, and what is said about them."""

    def __init__(self, run: Path, store: Store) -> None:
        self._run, self._store = run, store
        require_same_history(run, store)
        self._lease = Lease.acquire(store, _say)
        self._keeper = Keeper(self._lease, run)
        # Some sessions back: a folder that was restored elsewhere and came home is known by any of them.
        self._state: dict[str, Any] = {
            "place": str(store.place), "sessions": [*read_state(run).get("sessions", []), self._lease.token][-SESSIONS_KEPT:],
        }  # fmt: skip
        write_json(run / STATE, self._state)
        self._mirror = Mirror(run, store, self._lease, self._keeper)
        self._failed: str | None = None
        self._slow = self._warned = False
        self._told_at = 0.0
        self._between = LOOK
        self._step = 0
        _tell(ready=str(store.place))

    def work(self) -> int:
        """Make passes until told to finish, then a last one; returns the exit code."""
        finishing, seen, due = False, -1, 0.0
        while not finishing:
            finishing = _told_to_finish(LOOK)
            newest = time_of(self._run / "checkpoints")
            # A new checkpoint begins a pass at once; while the store fails, only the clock does.
            if finishing or time.monotonic() >= due or (newest != seen and self._failed is None):
                seen = newest
                if not self._pass():
                    return 1
                due = time.monotonic() + (self._between if self._failed else PERIOD)
        return self._finish()

    def _pass(self, *, last: bool = False) -> bool:
        """Do one pass; return False where the mirror is another's by now."""
        began = time.monotonic()
        try:
            with self._watched():
                report = self._mirror.sync()
                if last:
                    self._mirror.copy_for_people()
        except LeaseTaken as taken:
            # Training goes on: whose weights are better is not for a mirror to say.
            _say(f"warn: {taken.message}; this machine trains on without a mirror")
            self._keep(error=taken.message)
            return False
        except (StoreError, OSError) as error:
            self._fail(error if isinstance(error, StoreError) else StoreError(f"mirror: {error}"))
            return True
        if self._failed is not None:
            _say(f"mirror: {self._store.place} answers again; it is up to date at step {report.step:,}")
        elif self._slow and time.monotonic() - began < SLOW_SECONDS:
            _say(f"mirror: {self._store.place} keeps up again; step {report.step:,} is there")
            self._slow = False
        self._failed, self._between = None, LOOK
        self._look_at_notice(report, time.monotonic() - began)
        if report.step != self._step:
            _tell(log=f"mirror: step {report.step:,} is in {self._store.place} ({report.sent / 2**20:,.1f} MiB sent)")
        for name in report.lacking:
            _tell(log=f"mirror: {name} is damaged here and is not mirrored")
        self._step = report.step
        self._keep(step=report.step, time=time.time(), error=None)
        return True

    def _look_at_notice(self, report: Report, seconds: float) -> None:
        """Warn once where a notice of this machine's end is too short for a checkpoint, as fast as this pass went."""
        if self._warned or not 0 < report.size <= report.sent:  # a pass without one measures no bandwidth
            return
        told = too_late(report.size * seconds / report.sent, os.environ.get(NOTICE_VARIABLE, ""))
        if told is not None:
            _say(f"warn: {told}")
            self._warned = True

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell once if a pass takes long while checkpoints that it does not bring over gather here."""
        over = threading.Event()

        def watch() -> None:
            while not self._slow and not over.wait(SLOW_SECONDS):
                # From the disk: the pass that is watched has this object's own state under way.
                newer = [one.step for one in CheckpointStore(self._run / "checkpoints").every() if one.step > self._step]
                if len(newer) < 2:
                    continue
                self._slow = True
                text = f"{self._store.place} is slow: step {self._step:,} is there, step {newer[-1]:,} is here"
                _say(
                    f"warn: the mirror lags behind: {text}; training goes on\n"
                    "  fix: a store nearer to the machine, or fewer and smaller checkpoints (checkpoints.every, keep_hourly)"
                )
                self._keep(error=text)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _fail(self, error: StoreError) -> None:
        """Tell of a failure once, and again where it lasts; try again later, connected anew."""
        self._between = min(MOST_BETWEEN, 2 * self._between)
        now = time.monotonic()
        if self._failed != error.message or now - self._told_at > AGAIN_SECONDS:
            fix = f"\n  fix: {error.fix}" if error.fix else ""
            _say(f"warn: the mirror lags behind: {error.message}; training goes on, and it is tried again{fix}")
            self._told_at = now
        self._failed = error.message
        self._keep(error=error.message)
        # Credentials of a machine's role expire, and a connection keeps the old ones.
        self._store.renew()

    def _finish(self) -> int:
        """Bring over what is left, and let the lease go; the one who waits may lose patience and end this process."""
        while True:
            if not self._pass(last=True):
                return 1
            if self._failed is None:
                break
            # So that whoever trains waits a minute for a store that is gone, and not ten.
            _tell(waiting=self._failed)
            time.sleep(self._between)
        self._keeper.close()
        try:
            self._lease.release(self._run)
        except StoreError as error:
            _say(f"warn: {error.message}; another machine has to wait a minute before it can go on with the run")
        _tell(done=self._step)
        return 0

    def _keep(self, **values: Any) -> None:
        self._state |= values
        try:
            write_json(self._run / STATE, self._state, durable=False)
        except OSError:  # a full disk costs the note, not the mirror
            return


def _told_to_finish(seconds: float) -> bool:
    """Wait; whether there was word from whoever trains, or that one is gone, which closes the pipe."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _tell(**message: Any) -> None:
    try:
        print(json.dumps(message), flush=True)
    except OSError:  # nobody listens any more
        return


def _say(text: str) -> None:
    _tell(say=text)


if __name__ == "__main__":
    sys.exit(main())
