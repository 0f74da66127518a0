"""The lease of a mirror: one machine at a time trains a run that is kept there; a second one is refused.

Each holder has an object of its own, `lease/00000001.json` and so on, which it makes only if nobody else has (the store
decides), and writes again every few seconds. Whoever wants the lease watches the newest: if it changes, its holder lives. No
clock is compared with another machine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError
from windtunnel.run import STOP_FILE, ProcessId

from .store import Store, StoreError

LEASE_SECONDS = 60.0
"""A holder that has not written for so long is gone."""
RENEWALS = 4
"""In that time."""
FOLDER, SPENT = "lease", "spent.json"
STOP = "stop.json"
"""An object by which a run is asked to save and end: the token of the lease that is meant, and who asks."""


class LeaseTaken(UserError):
    """Another machine has the lease."""


@dataclass(frozen=True)
class Holder:
    """What stands in a lease's object.

    Attributes:
        token: unique for each holding. process: who holds it, as `ProcessId.dump` writes. place: its boot and process namespace.
        beat: how often it was written. released: its holder has let it go.
        seconds, dollars: what the run had spent by then.
    """

    token: str
    process: str
    place: str
    beat: int = 0
    released: bool = False
    seconds: float = 0.0
    dollars: float = 0.0

    @property
    def gone(self) -> bool:
        """Return whether its process is known to have ended: one of this machine can be looked for."""
        process = ProcessId.parse(self.process)
        return self.released or (self.place == _place() and process is not None and process.alive is False)

    @property
    def who(self) -> str:
        """Return the process and machine, in words."""
        return str(ProcessId.parse(self.process) or "an unknown process")


class Lease:
    """The lease of one mirror, once `acquire` has returned it.

    Attributes:
        number: of this holding; a later one has a higher.
        token: unique for it.
    """

    def __init__(self, store: Store, number: int, holder: Holder) -> None:
        self._store, self.number, self._holder = store, number, holder

    @property
    def token(self) -> str:
        """Return what is unique for this holding."""
        return self._holder.token

    @classmethod
    def acquire(cls, store: Store, say: Callable[[str], None], *, seconds: float = LEASE_SECONDS) -> Lease:
        """Take the lease; where another process has it, watch for `seconds` whether that one lives.

        Raises:
            LeaseTaken: it does.
            StoreError: the store cannot be reached or written.
        """
        while True:
            number, found = newest(store)
            if found is not None and not found.gone:
                _require_dead(store, number, found, say, seconds)
            mine = Holder(uuid.uuid4().hex, ProcessId.of(os.getpid()).dump(), _place())
            # Of two that come at once the store lets one through; the other looks again and finds a holder that lives.
            if store.create(_key(number + 1), _dump(mine)):
                # The last holder's object stays: what the run had spent by then stands in it.
                for old in range(max(1, number - 2), number):
                    with contextlib.suppress(StoreError):
                        store.delete(_key(old))
                return cls(store, number + 1, mine)

    def renew(self, run: Path | None = None, *, released: bool = False) -> None:
        """Write it again.

        Args:
            run: the folder of a run, whose spending is written too.
            released: let it go with that.

        Raises:
            LeaseTaken: another process has taken it since: this one may not write to the mirror any more.
            StoreError: it could not be written.
        """
        # Looked at before it is written: a machine that was cut off for longer than the lease has a successor by now.
        number, found = newest(self._store)
        if number != self.number or (found is not None and found.token != self.token):
            raise LeaseTaken(f"{self._store.place}: {found.who if found else 'another process'} has taken this mirror over")
        self._holder = replace(self._holder, beat=self._holder.beat + 1, released=released, **_spent(run))
        self._store.put(_key(self.number), _dump(self._holder))

    def asked_to_stop(self) -> str | None:
        """Return who asked this holder to save and end, once; None: nobody. Raises StoreError."""
        # Looked for as often as the lease is renewed: that is when the store is asked anyway.
        data = self._store.get(STOP)
        if data is None:
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            told = json.loads(data)
            if told["token"] != self.token:
                return None
            self._store.delete(STOP)
            return str(told["text"])
        return None

    def before(self) -> Holder | None:
        """Return what the holder before this one last wrote. Raises StoreError."""
        with contextlib.suppress(ValueError, TypeError):
            return Holder(**json.loads(self._store.get(_key(self.number - 1)) or b""))
        return None

    def release(self, run: Path | None = None) -> None:
        """Let others have it; see `renew`. Raises StoreError."""
        with contextlib.suppress(LeaseTaken):
            self.renew(run, released=True)


class Keeper:
    """Renews a lease in the background until it is closed or lost, and looks whether the run is asked to end.

    Args:
        lease: that is held.
        run: the run's folder, whose spending is told and which a request to end is passed on to; None: neither.
        seconds: as of the lease.

    Attributes:
        lost: why the lease is not this process's any more; None while it is.
        failed: why it could not be renewed the last time; None where it was.
    """

    def __init__(self, lease: Lease, run: Path | None = None, *, seconds: float = LEASE_SECONDS) -> None:
        self.lost: LeaseTaken | None = None
        self.failed: StoreError | None = None
        self._lease, self._run, self._period = lease, run, seconds / RENEWALS
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror-lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise LeaseTaken once the lease is another's."""
        if self.lost is not None:
            raise self.lost

    def close(self) -> None:
        """Renew no more; the lease is as it was last written."""
        self._closed.set()
        self._thread.join(120.0)

    def _work(self) -> None:
        while not self._closed.wait(self._period):
            try:
                self._lease.renew(self._run)
                if self._run is not None and (asked := self._lease.asked_to_stop()) is not None:
                    write_atomic(self._run / STOP_FILE, asked + "\n")
                self.failed = None
            except LeaseTaken as taken:
                self.lost = taken
                return
            except StoreError as error:
                self.failed = error
            except OSError as error:  # the run's disk is full: asked again
                self.failed = StoreError(f"mirror: {error}")


def newest(store: Store) -> tuple[int, Holder | None]:
    """Return the number of the newest lease, 0 where there is none, and what stands in it. Raises StoreError."""
    # Numbers have leading zeros: by name is by number.
    keys = sorted(key for key in store.sizes(FOLDER) if key.endswith(".json"))
    if not keys:
        return 0, None
    number = int(keys[-1].removeprefix(f"{FOLDER}/").removesuffix(".json"))
    try:
        return number, Holder(**json.loads(store.get(keys[-1]) or b""))
    except (ValueError, TypeError):
        return number, Holder("damaged", "", "")  # written by another version, or cut short: watched like any other


def watched(store: Store, seconds: float) -> Iterator[tuple[int, Holder | None]]:
    """Yield the newest lease again and again, for so long; see `newest`. Raises StoreError."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        time.sleep(min(1.0, seconds / 10))
        yield newest(store)


def _require_dead(store: Store, number: int, found: Holder, say: Callable[[str], None], seconds: float) -> None:
    """Watch a lease until it has been still for `seconds`. Raises LeaseTaken once it changes."""
    say(f"mirror: {found.who} has had {store.place}; waiting up to {seconds:.0f} s to see whether it still does")
    for now, seen in watched(store, seconds):
        if now != number or (seen is not None and seen != found and not seen.gone):
            who = seen.who if seen is not None else found.who
            raise LeaseTaken(
                f"{store.place} is in use: {who} trains this run",
                "stop it there first: windtunnel stop RUN; or start a new run",
            )
        if seen is not None and seen.gone:
            return


def _key(number: int) -> str:
    return f"{FOLDER}/{number:08d}.json"


def _dump(holder: Holder) -> bytes:
    return json.dumps(holder.__dict__).encode()


def _place() -> str:
    """Return this machine's boot and the namespace of its process numbers: only there can a process be looked for."""
    try:
        # A process number means something on one machine, since one start of it, in one container.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex


def _spent(run: Path | None) -> dict[str, Any]:
    if run is not None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            told = json.loads((run / SPENT).read_text(encoding="utf-8"))
            return {"seconds": float(told["seconds"]), "dollars": float(told["dollars"])}
    return {}
