"""Steps that fail: how it is recognised, and what to change."""

from __future__ import annotations

import re
import resource
import shlex
from pathlib import Path

import torch.distributed as dist

from windtunnel.recipe import HuggingFaceModel, Layout, Recipe, UserError
from windtunnel.run import Channel, RunFolder


class OutOfMemory(UserError):
    """Memory ran out, on the device or on the host."""

    exit_code = 1


class PeerLost(UserError):
    """Another rank is gone: its end says why the job ended, not this one's."""

    exit_code = 1


class Abandoned(BaseException):
    """This rank was told to leave whatever it is doing: it hangs, as seen from outside. Raised by a signal's handler."""


def lost_peer(error: BaseException) -> bool:
    """Return whether a collective failed for want of another rank: in NCCL's, gloo's or the store's words."""
    words = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo/transport")
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and any(w in str(error).lower() for w in words))


def short_of(error: BaseException) -> str:
    """Return what could not be had, as ' (...)' in few words, and a shell's limit; empty where it does not say."""
    said = []
    if found := re.search(r"ried to allocate ([\d.]+) ?(GiB|MiB|KiB|bytes)", str(error)):
        size, unit = float(found[1].rstrip(".")), found[2]
        if unit == "bytes":
            size, unit = (size / 2**30, "GiB") if size >= 2**27 else (size / 2**20, "MiB")
        said.append(f"{size:,.2f} {unit} more were not there")
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed != resource.RLIM_INFINITY:
        said.append(f"this shell allows {allowed / 2**20:,.0f} MiB of addresses: ulimit -v unlimited")
    return f" ({'; '.join(said)})" if said else ""


def lighter(run: Path, layout: Layout, stage: str, *, recomputes: bool, shards: bool = False) -> str:
    """Return what to change so that a run needs less memory: the command that goes on with it, where a setting is enough.

    Args:
        run: its folder.
        layout: how its work is spread now.
        stage: its name in the recipe.
        recomputes: whether blocks can be computed again.
        shards: whether ranks can share weights and gradients where they share optimizer states.
    """
    again = f"windtunnel train --resume --run {shlex.quote(str(run))}"
    # A rank's share of a step stays the same, so that losses do: only divisors of it will do as micro-batches.
    share = layout.micro_batch * layout.accumulation
    smaller = [n for n in range(1, layout.micro_batch // 2 + 1) if share % n == 0]
    if smaller:
        return f"go on with smaller micro-batches: {again} --set stages.{stage}.micro_batch={smaller[-1]}"
    if recomputes and layout.recompute == "none":
        return f"compute blocks again in the backward pass: {again} --set layout.recompute=block"
    if shards and layout.shard == "optimizer" and layout.ranks > 1:
        return f"share weights and gradients over the ranks too: {again} --set layout.shard=full"
    return "a smaller model, shorter sequences (model.sequence), or more GPUs"


def lighter_run(run: RunFolder) -> str:
    """Return what to change so that a run needs less memory; see `lighter`."""
    recipe, layout = run.recipe, Layout.of_plan(run.manifest["plan"]["layout"])
    return lighter(
        run.path, layout, recipe.training[0].name or "pretrain", recomputes=recipe.recomputes, shards=may_shard(recipe, layout)
    )


def tell_lighter(run: RunFolder) -> str:
    """Return what to change where memory runs out, and tell the supervisor: whom the kernel kills for it can say nothing."""
    lighter = lighter_run(run)
    channel = Channel.inherited()
    if channel is not None:
        channel.tell(lighter=lighter)
    return lighter


def may_shard(recipe: Recipe, layout: Layout) -> bool:
    """Return whether a GPT's weights could be sharded too."""
    return not recipe.supervision and not isinstance(recipe.model, HuggingFaceModel) and not layout.recorded
