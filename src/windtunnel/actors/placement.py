"""Where learners and engines run: a bundle of GPUs each, on one node, from what the plan asks for; what is left over is told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import UserError

from .connect import Joined

READY_SECONDS = 300.0
TELL_SECONDS = 10.0


@dataclass(frozen=True)
class Wanted:
    """What is to be placed: learners of one GPU each, engines of `tensor` GPUs each; on CPUs (tensor 0) of one core each."""

    learners: int
    engines: int
    tensor: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What each takes, learners first."""
        if not self.tensor:
            return [{"CPU": 1.0}] * (self.learners + self.engines)
        return [{"CPU": 1.0, "GPU": 1.0}] * self.learners + [{"CPU": 1.0, "GPU": float(self.tensor)}] * self.engines

    @property
    def text(self) -> str:
        """In words."""
        if not self.tensor:
            return f"{self.learners} learners and {self.engines} engines of a CPU core each"
        return f"{self.learners} learners of a GPU and {self.engines} engines of {self.tensor} GPU(s)"


@dataclass(frozen=True)
class Node:
    """A node of the cluster: its name, address, and what it has."""

    id: str
    name: str
    address: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Placed:
    """A placement group: `nodes` of its bundles in their order."""

    group: Any
    name: str
    nodes: tuple[Node, ...]
    left: float

    def lines(self, wanted: Wanted) -> list[str]:
        """Say who runs where, and which GPUs nobody uses."""
        roles = ["learner"] * wanted.learners + ["engine"] * wanted.engines
        on: dict[str, Counter[str]] = {}
        for role, node in zip(roles, self.nodes, strict=True):
            on.setdefault(f"{node.name} ({node.address})", Counter())[role] += 1
        said = [f"placed on {name}: " + ", ".join(f"{n} {role}(s)" for role, n in each.items()) for name, each in on.items()]
        return [*said, f"warn: {self.left:.0f} GPU(s) of the cluster are not used"] if self.left else said


def nodes_of() -> list[Node]:
    """Return the nodes that are alive."""
    import ray

    return [
        Node(
            one["NodeID"], one["NodeName"] if one.get("NodeName") else one["NodeManagerAddress"], one["NodeManagerAddress"],
            one["Resources"].get("CPU", 0.0), one["Resources"].get("GPU", 0.0),
        )
        for one in ray.nodes()
        if one["Alive"]
    ]  # fmt: skip


def place(name: str, wanted: Wanted, say: Callable[[str], None], seconds: float = READY_SECONDS) -> Placed:
    """Reserve what is wanted, waiting for nodes that are still coming up.

    Args:
        name: of the placement group.
        wanted: learners and engines.
        say: told what is waited for.
        seconds: that it may take.

    Raises:
        UserError: the cluster does not have it, or not on one node what must be on one; says what it has.
    """
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    group = placement_group(wanted.bundles, strategy="PACK", name=name)
    began, told = time.monotonic(), 0.0
    while not group.wait(timeout_seconds=1.0):
        gone = time.monotonic() - began
        if gone > seconds or (_never(wanted, nodes_of()) and gone > min(seconds, TELL_SECONDS)):
            remove_placement_group(group)
            raise _refused(wanted, nodes_of(), gone)
        if gone - told > TELL_SECONDS:
            told = gone
            say(f"waiting for {wanted.text}: {_has(nodes_of())}, {gone:.0f} of {seconds:.0f} s")
    table, nodes = placement_group_table(group), nodes_of()
    by_id = {node.id: node for node in nodes}
    places = tuple(by_id[node] for _, node in sorted((int(i), n) for i, n in table["bundles_to_node_id"].items()))
    left = sum(node.gpus for node in nodes) - wanted.learners - wanted.engines * wanted.tensor if wanted.tensor else 0.0
    return Placed(group, name, places, max(0.0, left))


def engine_options(found: Joined, engine: int) -> dict[str, Any]:
    """Return the options of an engine's actor, so that it gets its bundle. Raises UserError where the group is gone."""
    from ray.util import get_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    try:
        group = get_placement_group(found.group)
    except ValueError as error:
        raise UserError(f"the placement group of this job is gone: {error}", "go on with: windtunnel train --resume") from None
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=found.learners + engine)
    return {"scheduling_strategy": strategy, "num_cpus": 1, **({"num_gpus": found.tensor} if found.tensor else {})}


def _never(wanted: Wanted, nodes: list[Node]) -> bool:
    """Whether the nodes that are there cannot hold it, however long it is waited for."""
    key = "GPU" if wanted.tensor else "CPU"
    has = sum(node.gpus if wanted.tensor else node.cpus for node in nodes)
    most = max((node.gpus if wanted.tensor else node.cpus for node in nodes), default=0.0)
    return sum(one[key] for one in wanted.bundles) > has or max(one[key] for one in wanted.bundles) > most


def _has(nodes: list[Node]) -> str:
    each = ", ".join(f"{node.name} has {node.gpus:.0f} GPUs and {node.cpus:.0f} CPU cores" for node in nodes[:8])
    return f"the cluster has {len(nodes)} node(s): {each}{', ...' if len(nodes) > 8 else ''}"


def _refused(wanted: Wanted, nodes: list[Node], gone: float) -> UserError:
    most = max((node.gpus for node in nodes), default=0.0)
    if wanted.tensor > most:
        return UserError(
            f"stages.rl.engine_tensor: an engine of {wanted.tensor} GPUs needs them on one node; none has more than {most:.0f}",
            f"--set stages.rl.engine_tensor={max(1, int(most))}",
        )
    return UserError(
        f"{wanted.text} could not be placed within {gone:.0f} s: {_has(nodes)}",
        "wait for the other nodes (ray status), or ask for fewer: stages.rl.learners, stages.rl.engines",
    )
