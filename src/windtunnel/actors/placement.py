"""Where learners and engines run: a bundle of GPUs each, on one node, from what the plan asks for; what is left over is told."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import UserError

from .connect import NODES, Joined

READY_SECONDS = 300.0
TELL_SECONDS = 10.0
LOOK_SECONDS = 0.5
REACH_SECONDS = 0.5
SHARED_GPU = 0.5
"""Of a GPU, for Ray's books, for each of a learner and the engine on its GPU. How much memory each takes is the plan's."""
SETTLE_SECONDS = 5.0
"""A cluster that is too small is refused when no node has joined for so long, where nobody said how many it will have."""


@dataclass(frozen=True)
class Wanted:
    """What is to be placed: learners of one GPU each, engines of `tensor` GPUs each; on CPUs (tensor 0) of one core each.

    Where they share (`shared`), each learner has one engine on its own GPU, and both are in one bundle.
    """

    learners: int
    engines: int
    tensor: int
    shared: bool = False

    @property
    def gpus(self) -> int:
        """Return the GPUs that all of it takes."""
        return self.learners * min(1, self.tensor) + (0 if self.shared else self.engines * self.tensor)

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Return what each takes, learners first."""
        if not self.tensor:
            return [{"CPU": 1.0}] * (self.learners + self.engines)
        if self.shared:
            return [{"CPU": 2.0, "GPU": 1.0}] * self.learners
        # Ray never splits a bundle over nodes: that keeps the ranks of an engine, which talk in every layer, on one.
        return [{"CPU": 1.0, "GPU": 1.0}] * self.learners + [{"CPU": 1.0, "GPU": float(self.tensor)}] * self.engines

    @property
    def text(self) -> str:
        """Return the placement in words."""
        if not self.tensor:
            return f"{self.learners} learners and {self.engines} engines of a CPU core each"
        if self.shared:
            return f"{self.learners} learners of a GPU, an engine on each of them"
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
        first = "learner(s), each with an engine on its GPU" if wanted.shared else "learner(s)"
        roles = [first] * wanted.learners + ["engine(s)"] * (0 if wanted.shared else wanted.engines)
        on: dict[str, Counter[str]] = {}
        for role, node in zip(roles, self.nodes, strict=True):
            on.setdefault(f"{node.name} ({node.address})", Counter())[role] += 1
        said = [f"placed on {name}: " + ", ".join(f"{n} {role}" for role, n in each.items()) for name, each in on.items()]
        return [*said, f"warn: {self.left:.0f} GPU(s) of the cluster are not used"] if self.left else said


def nodes_of() -> list[Node]:
    """Return the nodes that are alive; one whose raylet was killed is none, though Ray takes many seconds to notice."""
    # Ray tells of a lost raylet late: who placed actors there in the meantime would wait for them in vain.
    return [node for node, port in _known() if not _refuses(node.address, port)]


def _known() -> list[tuple[Node, int]]:
    """Return the nodes that Ray takes for alive, and the ports of their raylets."""
    import ray

    return [
        (Node(
            one["NodeID"], one["NodeName"] if one.get("NodeName") else one["NodeManagerAddress"], one["NodeManagerAddress"],
            one["Resources"].get("CPU", 0.0), one["Resources"].get("GPU", 0.0),
        ), int(one["NodeManagerPort"]))
        for one in ray.nodes()
        if one["Alive"]
    ]  # fmt: skip


def _refuses(address: str, port: int) -> bool:
    """Return whether nothing listens there any more. A node that says nothing at all may only be busy: Ray decides on that."""
    try:
        socket.create_connection((address, port), timeout=REACH_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def wait_for_nodes(expected: int, say: Callable[[str], None], seconds: float = READY_SECONDS) -> list[Node]:
    """Return the nodes of the cluster once there are as many as expected, saying how many have joined.

    Raises:
        UserError: there are fewer after so many seconds.
    """
    began, told = time.monotonic(), -TELL_SECONDS
    while len(nodes := nodes_of()) < expected:
        gone = time.monotonic() - began
        if gone > seconds:
            what = f"{len(nodes)} of {expected} nodes ({NODES}) have joined the Ray cluster within {gone:.0f} s; {_has(nodes)}"
            raise UserError(what, f"start Ray on the others (ray start --address=HEAD:PORT), or {NODES}={len(nodes)}")
        if gone - told >= TELL_SECONDS:
            told = gone
            say(f"{len(nodes)} of {expected} nodes have joined the Ray cluster; {gone:.0f} of {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)
    return nodes


def place(name: str, wanted: Wanted, say: Callable[[str], None], seconds: float = READY_SECONDS, *, expected: int = 0) -> Placed:
    """Reserve what is wanted, waiting for nodes that are still coming up and for what other jobs hold.

    A cluster that has all its nodes and is too small is refused within seconds: nothing that is waited for would come.

    Args:
        name: of the placement group.
        wanted: learners and engines.
        say: told what is waited for.
        seconds: that it may take.
        expected: nodes that the cluster will have; 0: nobody knows.

    Raises:
        UserError: the cluster does not have it, or not on one node what must be on one; says what is missing and what it has.
    """
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    # PACK fills nodes one after the other, so that an engine and its learner are near each other where they can be.
    group = placement_group(wanted.bundles, strategy="PACK", name=name)
    began = joined_at = time.monotonic()
    told, seen = -TELL_SECONDS, set[str]()
    while not group.wait(timeout_seconds=1.0):
        now, nodes = time.monotonic(), nodes_of()
        gone, missing = now - began, lacking(wanted, nodes)
        if new := {node.id for node in nodes} - seen:
            joined_at, seen = now, seen | new
        # Missing nodes may still come up, of a cluster that says how many it will have; else when none came for a while.
        never = missing and len(nodes) >= expected and (expected or now - joined_at > SETTLE_SECONDS)
        if never or gone > seconds:
            remove_placement_group(group)
            raise _refused(wanted, nodes, missing, expected, gone)
        if gone - told >= TELL_SECONDS:
            told = gone
            say(f"waiting for {wanted.text}: {_why(nodes, missing, expected)}; {gone:.0f} of {seconds:.0f} s")
    # Of all that Ray knows, those that refuse connections too: the group was placed on them.
    table, nodes = placement_group_table(group), [node for node, _ in _known()]
    by_id = {node.id: node for node in nodes}
    places = tuple(by_id[node] for _, node in sorted((int(i), n) for i, n in table["bundles_to_node_id"].items()))
    left = sum(node.gpus for node in nodes) - wanted.gpus if wanted.tensor else 0.0
    return Placed(group, name, places, max(0.0, left))


def engine_options(found: Joined, engine: int) -> dict[str, Any]:
    """Return the options of an engine's actor, so that it gets its bundle. Raises UserError where the group is gone."""
    from ray.util import get_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    try:
        group = get_placement_group(found.group)
    except ValueError as error:
        raise UserError(f"the placement group of this job is gone: {error}", "go on with: windtunnel train --resume") from None
    bundle = engine if found.shared else found.learners + engine
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    gpus = SHARED_GPU if found.shared else found.tensor
    return {"scheduling_strategy": strategy, "num_cpus": 1, **({"num_gpus": gpus} if gpus else {})}


def lacking(wanted: Wanted, nodes: Sequence[Node]) -> str:
    """Return what these nodes can never hold of it, however free they are; '' where they can."""
    each = max(1, wanted.tensor)
    most = max((int(node.gpus if wanted.tensor else node.cpus) for node in nodes), default=0)
    if wanted.tensor and wanted.engines and each > most:
        return f"an engine of {each} GPUs needs them on one node, and none has more than {most}"
    kind = "GPUs" if wanted.tensor else "CPU cores"
    have = sum(int(node.gpus if wanted.tensor else node.cpus) for node in nodes)
    needed = wanted.gpus if wanted.tensor else wanted.learners + wanted.engines
    if needed > have:
        return f"{needed} {kind} are needed and there are {have}: {needed - have} are missing"
    # In all there may be enough and still not on one node: two nodes of 3 GPUs have room for two engines of 2, not for three.
    whole = sum(int(node.gpus) // each for node in nodes) if wanted.tensor else wanted.engines
    if wanted.engines > whole and not wanted.shared:
        return f"{wanted.engines} engines of {each} GPUs need them on one node each, and the nodes have room for {whole}"
    cores = sum(int(node.cpus) for node in nodes)
    taken = wanted.learners + wanted.engines
    if taken > cores:
        return f"{taken} CPU cores are needed and there are {cores}: {taken - cores} are missing (ray start --num-cpus)"
    return ""


def _why(nodes: Sequence[Node], missing: str, expected: int) -> str:
    if len(nodes) < expected:
        return f"{len(nodes)} of {expected} nodes have joined"
    return missing or f"other jobs on the cluster hold what is free otherwise ({_has(nodes)})"


def _has(nodes: Sequence[Node]) -> str:
    each = ", ".join(f"{node.name} has {node.gpus:.0f} GPUs and {node.cpus:.0f} CPU cores" for node in nodes[:8])
    return f"the cluster has {len(nodes)} node(s): {each}{', ...' if len(nodes) > 8 else ''}"


def _refused(wanted: Wanted, nodes: Sequence[Node], missing: str, expected: int, gone: float) -> UserError:
    most = int(max((node.gpus for node in nodes), default=0.0))
    # One engine that is too wide for every node has its own remedy: a key of the recipe.
    if wanted.tensor > most and len(nodes) >= expected:
        return UserError(f"stages.rl.engine_tensor: {missing}", f"--set stages.rl.engine_tensor={max(1, most)}")
    if len(nodes) < expected:
        what = f"{len(nodes)} of {expected} nodes have joined the Ray cluster within {gone:.0f} s"
        fix = "start Ray on the others (ray start --address=HEAD:PORT), or leave them out: stages.rl.learners, stages.rl.engines"
        return UserError(f"{what}, and {missing or 'what they have is in use'}; {_has(nodes)}", fix)
    if missing:
        fix = "ask for fewer: stages.rl.learners, stages.rl.engines; or let more nodes join first (ray start --address=HEAD:PORT)"
        return UserError(f"{wanted.text} do not fit: {missing}; {_has(nodes)}", fix)
    return UserError(
        f"{wanted.text} could not be placed within {gone:.0f} s: other jobs hold what is needed; {_has(nodes)}",
        "see who uses the cluster: ray status, ray list placement-groups; end what was left there",
    )
