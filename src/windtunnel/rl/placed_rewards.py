"""Judges on the nodes of a Ray cluster: each node has a stage's `Rewards` as an actor, which learners share."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windtunnel.actors import ActorLost, Joined, NoAnswer, answer_of, release
from windtunnel.recipe import GRPO, UserError
from windtunnel.run import LOGS, print_to

from .judges import RemoteJudges
from .rewards import Rewards

AT_ONCE = 32
"""Answers that an actor is asked to judge at once; the others wait here."""
START_SECONDS, JUDGE_SECONDS = 120.0, 300.0
RESTARTS = 20
"""Of an actor in a whole run, which may take days; one that always dies has died so often within a minute."""


class JudgeHost:
    """The actor: the judges of a stage on its node. Relative places are those of the command, where its folder is there too."""

    def __init__(self, stage: GRPO, log: Path, folder: Path) -> None:
        print_to(log)
        # Ray tells nobody that it has started one again.
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        print(f"{now}  judges start on {socket.gethostname()}, process {os.getpid()}", flush=True)
        if folder.is_dir():
            os.chdir(folder)
        self._rewards = Rewards(stage, log)

    def ready(self) -> str:
        """Return what judges, in words; the judges have been tried by then."""
        return self._rewards.metric

    def handle(self, method: str, *arguments: Any) -> Any:
        """See `Rewards.handle`."""
        return self._rewards.handle(method, *arguments)

    def close(self) -> None:
        """End the judges' processes."""
        self._rewards.close()


def judges_log(run: Path, number: int) -> Path:
    """Return where the judges of this number, of a learner or of a node of a cluster, print."""
    return run / LOGS / f"judges-{number}.log"


def start_judges(stage: GRPO, nodes: Sequence[tuple[str, str]], run: Path) -> dict[str, Any]:
    """Start judges on nodes, and wait until each has been tried; by name.

    Args:
        stage: whose judges.
        run: folder of the run, on a disk that all nodes see.
        nodes: id and name of each.

    Raises:
        UserError: judges do not start or refuse what they are to judge; names the node.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    host: Any = ray.remote(JudgeHost)
    found = {}
    for number, (node, _) in enumerate(nodes):
        name = f"judges-{number}"
        # No CPU is reserved: judges work while GPUs do. An actor that dies is started again, and asked again.
        found[name] = host.options(
            name=name, num_cpus=0, max_restarts=RESTARTS, max_task_retries=2, max_concurrency=AT_ONCE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
        ).remote(stage, judges_log(run.resolve(), number), Path.cwd())  # fmt: skip
    for (name, actor), (_, node) in zip(found.items(), nodes, strict=True):
        try:
            answer_of(actor.ready.remote(), f"{name} on {node}: starting", START_SECONDS)
        except (NoAnswer, ActorLost) as error:
            for each in found.values():
                release(each)
            raise UserError(str(error), "see that the judges work there: windtunnel verify selftest") from None
    return found


class PlacedRewards(RemoteJudges):
    """`Rewards` whose judges are actors, which are asked in turn.

    Args:
        found: the cluster.
        stage: whose judges.
        rank: of this learner, which begins with judges of its own.
    """

    def __init__(self, found: Joined, stage: GRPO, rank: int) -> None:
        import ray

        super().__init__(stage)
        actors = [ray.get_actor(name) for name in found.judges]
        # Ranks begin at different actors, or the first one would get the first answer of all.
        self._turns = itertools.cycle([*actors[rank % len(actors) :], *actors[: rank % len(actors)]])
        self._lock = threading.Lock()
        self._waiters = ThreadPoolExecutor(AT_ONCE * len(actors), "judged-elsewhere")

    def close(self) -> None:
        """Let go of the judges, which are the job's."""
        self._waiters.shutdown(wait=False, cancel_futures=True)

    def request(self, method: str, *arguments: Any) -> Future[Any]:
        """See `RemoteJudges.request`."""
        return self._waiters.submit(self._found, method, *arguments)

    def _found(self, method: str, *arguments: Any) -> Any:
        """Return what an actor answers; a text: why none did."""
        why = ""
        for attempt in range(self.stage.retries + 1):
            with self._lock:
                actor = next(self._turns)
            try:
                return answer_of(actor.handle.remote(method, *arguments), "judging an answer", JUDGE_SECONDS)
            except (NoAnswer, ActorLost) as error:
                why = f"after {attempt + 1} attempts: {error}"
        return why
