"""Training on the nodes of a Ray cluster: learners, engines and judges placed, watched as on one machine, started again."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from windtunnel.actors import (
    READY_SECONDS,
    Joined,
    Node,
    Wanted,
    expected_nodes,
    join,
    lacking,
    nodes_of,
    own_address,
    place,
    release,
    wait_for_nodes,
)
from windtunnel.checkpoint import CheckpointStore
from windtunnel.recipe import GRPO, Recipe, UserError
from windtunnel.run import HEARTBEATS, SUPERVISOR, RunFolder

from .placed_checks import require_alike
from .placed_rank import BACK_SECONDS, LOOK_SECONDS, Missed, PlacedRank
from .rank import rank_command
from .ranks import RankFailed, watch_ranks

TELL_SECONDS = 10.0
RESTARTS = 3
"""Times that learners are started again; after the first only where a checkpoint was made in between."""
PASSED_ON = ("WINDTUNNEL_", "HF_", "NCCL_", "TORCH", "PYTORCH_", "CUDA_", "VLLM_", "PYTHONPATH", "GLOO_")
"""Beginnings of the variables that learners on other nodes get from here; all else is their node's own."""
SECRET = ("TOKEN", "SECRET", "PASSW", "_KEY")
KEPT_HERE = (SUPERVISOR, "CUDA_VISIBLE_DEVICES", HEARTBEATS)


@contextlib.contextmanager
def on_cluster(recipe: Recipe, say: Callable[[str], None]) -> Iterator[tuple[int, int] | None]:
    """Connect to the cluster that a recipe's stage is to run on; yield its nodes with GPUs and the GPUs of each; None: none.

    Args:
        recipe: of the stage.
        say: told how many nodes have joined.

    Raises:
        UserError: it cannot be reached, or nodes that it is to have do not join.
    """
    stage = recipe.rl
    if stage is None or stage.placement != "ray":
        yield None
        return
    with join(f"windtunnel-{recipe.name}-{os.getpid()}"):
        gpus = [int(node.gpus) for node in wait_for_nodes(expected_nodes(), say) if node.gpus]
        yield (len(gpus), min(gpus)) if gpus else (0, 0)


def run_on_cluster(
    folder: Path, ranks: int, say: Callable[[str], None], again: Callable[[tuple[int, int]], int], *, as_json: bool,
    output: IO[str] | None,
) -> None:  # fmt: skip
    """Train on the cluster that this process is connected to; see `run_ranks`.

    Learners that die are started again from the newest checkpoint, engines by their learners, judges by Ray. Where a node was
    lost, does not come back and is missed, the run is planned for those that are left.

    Args:
        folder: the run's.
        ranks: learners.
        say: told who runs where, and what happened.
        as_json: whether learners print JSON.
        output: gets what they print, in place of standard output.
        again: plans the run for so many nodes with GPUs, and the GPUs of each; the ranks.

    Raises:
        RankFailed: a learner died or hung once too often.
        UserError: what is wanted cannot be placed, also on what is left of the cluster, or a learner refused what it was to do.
    """
    recipe = RunFolder.open(folder).recipe
    stage = recipe.rl
    assert stage is not None
    reached, there = -1, len(nodes_of())
    expected = expected_nodes()
    for attempt in range(RESTARTS + 1):
        wanted = wanted_of(stage, RunFolder.open(folder).manifest["plan"], ranks)
        try:
            # A node that was lost may come back: later attempts wait for as many as there were.
            # No longer than `_left` does: a node may be lost before Ray notices, and what it had is then waited for in vain.
            seconds = BACK_SECONDS if attempt else READY_SECONDS
            _once(folder, recipe, wanted, max(expected, there if attempt else 0), seconds, say, as_json=as_json, output=output)
            return
        except UserError as error:
            left = _left(wanted, there, say)
            if attempt == RESTARTS or (left is None and not isinstance(error, RankFailed)):
                raise
            newest = CheckpointStore(folder / "checkpoints").newest_good()
            step = 0 if newest is None else newest.step
            # Nothing was gained since the last start: it would fail in the same way again.
            if left is None and attempt and step <= reached:
                raise
            reached = step
            if left is not None:
                say(f"warn: {len(left)} of {there} nodes are left, and the run is planned for them")
                ranks = _ranks_on(left, there, folder, stage, again)
                there = expected = len(left)
            say(f"warn: {error.message}; the learners are started again from step {step:,} ({attempt + 1} of {RESTARTS})")


def _left(wanted: Wanted, there: int, say: Callable[[str], None]) -> list[Node] | None:
    """Return the nodes that are left where one of `there` was lost, is missed, and does not come back; None otherwise."""
    began, told = time.monotonic(), -TELL_SECONDS
    while len(nodes := nodes_of()) < there and (missing := lacking(wanted, nodes)):
        gone = time.monotonic() - began
        if gone > BACK_SECONDS:
            return nodes
        if gone - told >= TELL_SECONDS:
            told = gone
            say(f"{there - len(nodes)} of {there} nodes are lost, and {missing}; waiting {gone:.0f} of {BACK_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
    return None


def _ranks_on(
    nodes: Sequence[Node], there: int, folder: Path, stage: GRPO, again: Callable[[tuple[int, int]], int]
) -> int:  # fmt: skip
    """Return the ranks of a run that was planned for the nodes that are left.

    Raises:
        UserError: it cannot go on there; what it needs, and what would do.
    """
    gpus = [int(node.gpus) for node in nodes if node.gpus]
    resume = f"windtunnel train --resume --run {shlex.quote(str(folder))}"
    try:
        ranks = again((len(gpus), min(gpus)) if gpus else (0, 0))
        wanted = wanted_of(stage, RunFolder.open(folder).manifest["plan"], ranks)
    except UserError as error:
        fix = f"{error.fix}, with {resume}; or" if error.fix else "or"
        raise UserError(
            f"{len(nodes)} of {there} nodes are left, which the run cannot go on with: {error.message}",
            f"{fix} let nodes join again, then {resume}",
        ) from None
    missing = lacking(wanted, nodes)
    if not missing:
        return ranks
    fewer = most_of(wanted, nodes, stage.prompts)
    told = f"let nodes join again, then {resume}"
    if fewer is not None:
        engines = f" --set stages.{stage.name}.engines={fewer.engines * max(1, fewer.tensor)}" if fewer.engines else ""
        told = f"{resume} --set stages.{stage.name}.learners={fewer.learners}{engines}; or {told}"
    raise UserError(f"{len(nodes)} of {there} nodes are left, where {wanted.text} do not fit: {missing}", told)


def most_of(wanted: Wanted, nodes: Sequence[Node], prompts: int) -> Wanted | None:
    """Return the most learners, and as many engines for each of them, that nodes have room for; None: not even one.

    Args:
        wanted: learners and engines at most.
        nodes: that are there.
        prompts: of a round, of which each learner gets as many.
    """
    for learners in range(wanted.learners, 0, -1):
        # Each learner has as many engines, or some would wait for the others' answers.
        shares = range(wanted.engines // learners, 0, -1) if wanted.engines else [0]
        for share in shares if prompts % learners == 0 else []:
            found = replace(wanted, learners=learners, engines=share * learners)
            if not lacking(found, nodes):
                return found
    return None


def wanted_of(stage: GRPO, plan: Mapping[str, Any], ranks: int) -> Wanted:
    """Return what a run takes of a cluster. Raises UserError where learners cannot share the engines."""
    from windtunnel.rl import engines_of

    on_gpus = plan["layout"]["device"] == "cuda"
    if stage.engine == "in-turn":
        return Wanted(ranks, 0, 1 if on_gpus else 0)
    share = engines_of(stage, plan, ranks)
    return Wanted(ranks, share.count, share.tensor if on_gpus else 0, shared=share.memory is not None)


def _once(
    folder: Path, recipe: Recipe, wanted: Wanted, expected: int, seconds: float, say: Callable[[str], None], *, as_json: bool,
    output: IO[str] | None,
) -> None:  # fmt: skip
    """Place everything within so many seconds, and train until the learners end."""
    import ray
    import torch.distributed as dist
    from ray.util.placement_group import remove_placement_group

    from windtunnel.rl import start_judges

    stage, group = recipe.rl, f"windtunnel-{folder.name}"
    assert stage is not None
    placed = place(group, wanted, say, seconds, expected=expected)
    context, judges, ranks = ray.get_runtime_context(), dict[str, Any](), list[PlacedRank]()
    try:
        for line in placed.lines(wanted):
            say(line)
        require_alike(list(dict.fromkeys((node.id, node.name) for node in placed.nodes)), folder, recipe)
        nodes = list(dict.fromkeys((node.id, node.name) for node in placed.nodes[: wanted.learners]))
        judges = start_judges(stage, nodes, folder)
        here = own_address()
        store: Any = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)  # a port that is free
        told = Joined(
            context.gcs_address, context.namespace, group, wanted.learners, wanted.engines, wanted.tensor, tuple(judges),
            wanted.shared,
        )  # fmt: skip
        shared = {
            **_environment(), **told.environment(), "MASTER_ADDR": here, "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": str(wanted.learners), "LOCAL_WORLD_SIZE": "1",
        }  # fmt: skip
        missed = Missed(wanted, len(nodes_of()))
        for number in range(wanted.learners):
            command = rank_command(folder.resolve(), as_json)
            ranks.append(PlacedRank(number, placed.group, wanted, command, shared, output, missed))
        watch_ranks(folder, ranks, output)
    finally:
        for rank in ranks:
            rank.end()
        for actor in judges.values():
            release(actor)
        remove_placement_group(placed.group)


def _environment() -> dict[str, str]:
    # Nodes have environments of their own, and logs show what an actor was started with: no secret travels.
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON) and name not in KEPT_HERE}
    return {name: value for name, value in passed.items() if not any(word in name for word in SECRET)}
