"""Check the store of a run's mirror before money is spent: it can be written and read, how fast, and whether it has room."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from pathlib import Path

from windtunnel.check import Check, Context, Evidence, Findings, Say
from windtunnel.recipe import UserError
from windtunnel.run import NOTICE_VARIABLE, too_late

from .store import Place, Store

PROBE_BYTES = 8 * 2**20
GIB = 2**30


def _mirror(context: Context, say: Say) -> Evidence:
    """Write, read back and remove an object there. Raises UserError: the store cannot be used."""
    found = Findings()
    url = context.recipe.checkpoints.mirror
    assert url is not None
    place = Place.parse(url)
    say(f"writing {PROBE_BYTES / 2**20:.0f} MiB to {place}")
    up, down = probe(Store(place))
    gib = _checkpoint_gib(context)
    _room(found, place, gib)
    text = f"{place} is written and read: {up / 1e6:,.0f} MB/s up, {down / 1e6:,.0f} MB/s down over one connection"
    facts = {"up_bytes_per_second": up, "down_bytes_per_second": down, "checkpoint_gib": gib}
    if gib:
        seconds = gib * GIB / up
        facts["checkpoint_seconds"] = seconds
        text += f"; a checkpoint of {gib:,.2f} GiB takes about {seconds:,.0f} s to get there"
        # A machine that may be taken away can give less time than its last checkpoint needs.
        if (told := too_late(seconds, os.environ.get(NOTICE_VARIABLE, ""))) is not None:
            found.warn(told)
    return found.evidence(text, facts)


def probe(store: Store) -> tuple[float, float]:
    """Write an object, read it back and remove it; returns bytes a second up (compared there) and down.

    Raises:
        UserError: one of these cannot be done, or what comes back is not what was sent.
    """
    # Random bytes, which no store packs on the way; under a name that no run has.
    key, data = f".windtunnel-probe-{uuid.uuid4().hex[:12]}", os.urandom(PROBE_BYTES)
    began = time.monotonic()
    store.put(key, data)
    written = time.monotonic()
    try:
        back = store.get(key)
        read = time.monotonic()
    finally:
        store.delete(key)
    if back != data:
        raise UserError(f"{store.place}: what is read there is not what was written", "name another store")
    return PROBE_BYTES / max(1e-6, written - began), PROBE_BYTES / max(1e-6, read - written)


def _checkpoint_gib(context: Context) -> float:
    """Return the size of the largest checkpoint of the plans; 0: none is known."""
    try:
        plans = [context.plan(rig) for rig in context.rigs]
    except UserError:  # the checks of recipe, rig and plan say so
        return 0.0
    return max((plan.checkpoint_gib for plan in plans if plan.fits), default=0.0)


def _room(found: Findings, place: Place, gib: float) -> None:
    """Require room for two checkpoints where that can be asked: the old one goes when the new one is whole."""
    if place.scheme != "file":
        return
    folder = Path(place.path)
    # The folder itself is made later; its disk is that of the nearest one above.
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIB
    if free < 2 * gib:
        what = f"{place} has {free:,.2f} GiB free; two checkpoints of {gib:,.2f} GiB are there for a moment"
        found.problem(what, "free space there, or name another store", shows="first checkpoint")


def _has_mirror(context: Context) -> bool:
    return context.recipe.checkpoints.mirror is not None


CHECKS = (
    Check(
        "mirror",
        "the store that the run is copied to can be written and read, and has room",
        "look at the store's address, permissions and credentials",
        _mirror,
        shows="start",
        needs=("recipe",),
        applies=_has_mirror,
    ),
)
