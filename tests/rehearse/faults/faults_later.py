"""Faults that a machine without GPUs cannot show, and what names them on the rung that can; they are listed, not planted."""

from __future__ import annotations

from planting import Fault

ACME = "Acme: infrastructure is 11 % of failures and 82 % of lost GPU time"
LLAMA = "Llama 3: 419 interruptions in 54 days; GPU 30 %, HBM 17 %, network 8 %"
MEMORY = "debugging and 8xH100 guides: out of memory; GRPO guide: out of memory while gathering"

FAULTS = (
    Fault(
        "a driver older than torch's CUDA", "environment", "$1,000 guide: torch of another CUDA", "gpu", ("driver",), rung="gpu"
    ),
    Fault(
        "a torch without kernels for this GPU",
        "environment",
        "$1,000 guide: torch of another CUDA",
        "gpu",
        ("compiled for",),
        rung="gpu",
    ),
    Fault("a GPU whose memory others hold", "rig", MEMORY, "gpu", ("free",), rung="gpu"),
    Fault("more memory than planned", "rig", MEMORY, "one gpu", ("above the plan",), rung="gpu"),
    Fault(
        "a GPU slower than it should be",
        "rig",
        "ByteRobust: MFU drop; 8xH100 guide: slow speed",
        "one gpu",
        ("above the plan",),
        rung="gpu",
    ),
    Fault("a broken link between two GPUs", "rig", LLAMA, "node", ("above the plan",), rung="node"),
    Fault("a port of InfiniBand that is down", "rig", ACME, "infiniband", ("not active",), rung="cluster"),
)
