"""A learner on its node of a Ray cluster, as whoever watches it sees it, and the nodes that it cannot do without."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from windtunnel.actors import SHARED_GPU, Hosted, Look, Wanted, answer_of, lacking, nodes_of, release
from windtunnel.run import HEARTBEATS, Beat, process_state, read_beat

from .processes import CRASHED, stop_with_parent
from .rank import pass_on, told_in
from .stacks import Stack, ask

LOOK_SECONDS = 0.25
SILENT_SECONDS = 60.0
"""From which the actor of a learner that gives no answer counts as gone, and with it the learner."""
CALL_SECONDS = 20.0
BACK_SECONDS = 60.0
"""For which a node that was lost and is missed is waited for."""
NODES_SECONDS = 5.0
"""Between two looks at the nodes of the cluster."""


class Missed:
    """Tells when a node is lost, missed, and not back within `BACK_SECONDS`: engines that had it would be waited for far longer.

    Args:
        wanted: what runs.
        there: nodes at first.
    """

    def __init__(self, wanted: Wanted, there: int) -> None:
        self._wanted, self._there = wanted, there
        self._looked, self._told = -NODES_SECONDS, ""
        self._since: float | None = None

    def why(self) -> str:
        """Return what is lost and missed; '' while nothing is, or may come back."""
        now = time.monotonic()
        if now - self._looked < NODES_SECONDS:
            return self._told
        self._looked, nodes = now, nodes_of()
        missing = lacking(self._wanted, nodes) if len(nodes) < self._there else ""
        # From when it was first missed; a node that is back in time has never been away.
        self._since = (self._since or now) if missing else None
        late = self._since is not None and now - self._since >= BACK_SECONDS
        self._told = f"stopped: {self._there - len(nodes)} of {self._there} nodes are lost, and {missing}" if late else ""
        return self._told


class PlacedRank:
    """A learner on its node; see `windtunnel.launch.rank.Rank`.

    Args:
        number: of the rank, and of its bundle in the group.
        group: the placement group.
        wanted: what is in it.
        command: of its process.
        shared: environment that all ranks have.
        output: gets what it prints.
        missed: tells of nodes without which the learners cannot go on.
    """

    stopped_since: float | None

    def __init__(
        self, number: int, group: Any, wanted: Wanted, command: Sequence[str], shared: Mapping[str, str],
        output: IO[str] | None, missed: Missed,
    ) -> None:  # fmt: skip
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.number, self.began, self.stopped_since = number, time.monotonic(), None
        self._output, self._lost, self._missed = output, "", missed
        host: Any = ray.remote(Hosted)
        # Ray shows an actor its own GPU alone, which is therefore number 0.
        environment = {**shared, "RANK": str(number), "LOCAL_RANK": "0"}
        options = {"num_cpus": 1, **({"num_gpus": SHARED_GPU if wanted.shared else 1} if wanted.tensor else {})}
        self._actor = host.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number), **options
        ).remote(list(command), environment, HEARTBEATS, functools.partial(_seen, number), stop_with_parent, Path.cwd())
        self._looked, self._at = Look(None, (), {}), time.monotonic()
        self._asked: Any = self._actor.look.remote()

    @property
    def code(self) -> int | None:
        """See `Rank`."""
        self._look()
        return CRASHED if self._lost else self._looked.code

    def send(self, number: int) -> None:
        """See `Rank`."""
        if not self._lost:
            self._actor.send.remote(number)

    def beat(self) -> Beat | None:
        """See `Rank`."""
        seen = self._looked.told.get("beat")
        if seen is None:
            return None
        age, limit, step, doing = seen
        return Beat(self._at - age, limit, step, doing)

    def told(self) -> dict[str, Any] | None:
        """See `Rank`."""
        if self._lost:
            return {"error": self._lost, "fix": None, "exit_code": CRASHED, "how": self._lost}
        found: dict[str, Any] | None = self._looked.told.get("told")
        return found

    def state(self) -> str:
        """See `Rank`."""
        return str(self._looked.told.get("state", ""))

    def end(self) -> None:
        """See `Rank`."""
        if not self._lost:
            with contextlib.suppress(Exception):
                answer_of(self._actor.end.remote(), f"learner {self.number}: ending", CALL_SECONDS)
                self._take(answer_of(self._actor.look.remote(), f"learner {self.number}: its last lines", CALL_SECONDS))
            self._lost = "it was ended"
        release(self._actor)

    @classmethod
    def stacks(cls, ranks: Sequence[PlacedRank], stopped: int | None = None) -> dict[int, Stack]:
        """See `Rank`."""
        asked = {rank.number: rank._actor.call.remote(functools.partial(_stack, rank.number, stopped)) for rank in ranks}
        found = dict[int, Stack]()
        for number, reference in asked.items():
            with contextlib.suppress(Exception):
                text = answer_of(reference, f"learner {number}: its stack", CALL_SECONDS)
                # A node that does not answer has no stack; the others' still tell who hangs.
                found |= {number: Stack(text)} if text else {}
        return found

    def _look(self) -> None:
        """Take in how it is, once it has answered; an actor that does not answer, or is gone, is a rank that is gone."""
        import ray

        # Once lost, always lost: a rank that comes back later has missed the others' collectives.
        self._lost = self._lost or self._missed.why()
        if self._lost:
            return
        now = time.monotonic()
        # One question at a time, and never waited for: this is called for every rank in turn.
        if self._asked is None:
            if now - self._at > LOOK_SECONDS:
                self._asked = self._actor.look.remote()
            return
        ready, _ = ray.wait([self._asked], timeout=0)
        if not ready:
            started = bool(self._looked.told)
            if started and now - self._at > SILENT_SECONDS:
                self._lost = f"gave no answer for {SILENT_SECONDS:.0f} s: its node hangs, or is cut off"
            return
        try:
            self._take(answer_of(self._asked, f"learner {self.number}: how it is", CALL_SECONDS))
            self._asked = None
        except Exception as error:
            self._lost = f"is gone with its actor: {error}"

    def _take(self, look: Look) -> None:
        self._looked, self._at = look, time.monotonic()
        for error, line in look.lines:
            pass_on(self.number, line, error, self._output)


def _seen(number: int, folder: Path, process: int) -> dict[str, Any]:
    """Return a rank's sign of life, what it said of its end, and its state; on its node."""
    beat = read_beat(folder, number)
    told = None if beat is None else (beat.age, beat.limit, beat.step, beat.doing)
    return {"beat": told, "told": told_in(folder, number), "state": process_state(process)}


def _stack(number: int, stopped: int | None, folder: Path, process: int) -> str:
    found = ask(folder, {number: process}, stopped)
    return found[number].text if number in found else ""
