"""A run that trains somewhere, looked at and stopped through its mirror: with nothing but the store, wherever the machine is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from windtunnel.recipe import UserError
from windtunnel.run import LOG

from .lease import LEASE_SECONDS, RENEWALS, STOP, newest, watched
from .restore import bring_files, require_snapshot
from .snapshot import mirrored_runs
from .store import Place, Store

MARGIN_SECONDS = 5.0
CHECKPOINTS = "checkpoints/"


def runs_in(url: str) -> list[str]:
    """Return the names of the runs below a mirror of runs; '' where it is a run's own. Raises StoreError."""
    return mirrored_runs(Store(Place.parse(url)))


def look(url: str, root: Path) -> Path:
    """Bring what tells of a run, all but its weights, to a folder of runs; returns the run's folder there.

    Raises:
        UserError: no run there, no room here, or what is there was damaged.
    """
    store = Store(Place.parse(url))
    found = require_snapshot(store)
    # Of checkpoints their manifests alone, by which runs are listed: weights are what takes minutes.
    light = {name: kept for name, kept in found.files.items() if not name.startswith(CHECKPOINTS) or name.endswith(".json")}
    return bring_files(store, replace(found, files=light), root / found.run)


def read_log(url: str, place: Path) -> tuple[str, str]:
    """Return a run's name, and its log as the mirror has it. place: a folder for it. Raises UserError."""
    store = Store(Place.parse(url))
    found = require_snapshot(store)
    only = replace(found, files={name: kept for name, kept in found.files.items() if name == LOG})
    file = bring_files(store, only, place / found.run) / LOG
    return found.run, file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def is_trained(url: str) -> bool:
    """Watch a run's lease until it must have been renewed; return whether it was. Raises StoreError."""
    store = Store(Place.parse(url))
    number, first = newest(store)
    if first is None or first.gone:
        return False
    for now, holder in watched(store, LEASE_SECONDS / RENEWALS + MARGIN_SECONDS):
        if (now, holder) != (number, first):
            return holder is not None and not holder.gone
    return False


def ask_to_stop(url: str, who: str, say: Callable[[str], None], *, seconds: float) -> bool:
    """Ask whoever trains a run to save and end, and wait; return whether it has ended.

    The request is an object in the store that names the lease: a machine that takes the run over later is not meant by it.

    Args:
        url: of the run's mirror.
        who: asks, for the run's record.
        say: told what is waited for.
        seconds: to wait for the end.

    Raises:
        StoreError: the store cannot be read or written.
    """
    store = Store(Place.parse(url))
    number, found = newest(store)
    if found is None or found.gone:
        return True
    # Through the store alone: whoever stops a run may reach no port of the machine that trains it.
    store.put(STOP, json.dumps({"token": found.token, "text": f"windtunnel stop, by {who}"}).encode())
    say(f"asked {found.who} through {store.place} to save and end; it looks there every {LEASE_SECONDS / RENEWALS:.0f} s")
    return any(now != number or holder is None or holder.gone for now, holder in watched(store, seconds))


def run_url(url: str) -> str:
    """Return the address of the run that is meant: the address itself, or of the only run below it. Raises UserError."""
    names = runs_in(url)
    if names == [""]:
        return url
    if len(names) == 1:
        return f"{url.rstrip('/')}/{names[0]}"
    if not names:
        raise UserError(f"{url} holds no run", "name the run's own folder: the mirror's address and the run's name")
    raise UserError(f"{url} holds {len(names)} runs", "one of: " + ", ".join(f"{url.rstrip('/')}/{name}" for name in names[-5:]))
