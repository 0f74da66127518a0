"""Looks in a trusted child at whether the GPU is ours alone just now: a work of fixed size, timed as candidates' calls are.

Imports torch. No candidate's process lives meanwhile, so nothing that a candidate does can be seen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.verify.kernel.arrays import Buffer
from windtunnel.verify.kernel.child.clock import PROBE_BYTES, timed
from windtunnel.verify.kernel.child.turn import TIMING, waiting_for
from windtunnel.verify.kernel.gpu_lock import gpu_lock_of
from windtunnel.verify.sandbox import FILES_FROM

WARM_UPS = 3


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """message: device, calls, turn (how many of the child's files are the lock for the GPU's use).

    Returns 'events' and 'wall', seconds of each call, and 'free' and 'total', bytes of the GPU's memory; none of a CPU's.
    """
    cuda = message["device"] == "cuda"
    with waiting_for(gpu_lock_of(range(FILES_FROM, FILES_FROM + message["turn"])), alone=True, then=TIMING):
        source, target = (
            torch.zeros(PROBE_BYTES if cuda else 1 << 16, dtype=torch.uint8, device=message["device"]) for _ in "st"
        )
        taken = [timed(lambda: target.copy_(source), cuda) for _ in range(WARM_UPS + message["calls"])][WARM_UPS:]
        reply: dict[str, Any] = {"events": [one.event for one in taken], "wall": [one.wall for one in taken]}
        if cuda:
            del source, target
            torch.cuda.empty_cache()  # what an earlier job left in this process is no neighbour's
            reply["free"], reply["total"] = torch.cuda.mem_get_info()
    return reply, []
