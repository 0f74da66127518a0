"""The planner's constants, all in one place, with where each came from; measured ones override them per GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError


@dataclass(frozen=True)
class Constants:
    """Memory and step-time constants of one kind of device. Shares are of 1, times in seconds, sizes in GiB or bytes."""

    # Where the numbers come from and how far off they may be (relative).
    source: str = "fitted to benchmarks/results/throughput-h200.json: d12, d20, d24 on one H200"
    memory_error: float = 0.12
    time_error: float = 0.20

    # Memory.
    usable_share: float = 0.95  # of the GPU's memory; the rest is what other processes and growth need
    cpu_usable_share: float = 0.80  # of RAM: the operating system and the data's page cache live there too
    context_gib: float = 0.6  # CUDA context and loaded kernels
    cpu_context_gib: float = 0.5  # the interpreter with torch loaded
    workspace_gib: float = 0.25  # cuBLAS and Triton workspaces
    nccl_gib: float = 0.5  # communicators' buffers, with more than one rank
    fragmentation: float = 0.01  # reserved over allocated, of all that the allocator holds
    saved_dims: float = 6.5  # per layer and token, in units of dim: 2 normed inputs, q, k, v, attention's output, scraps
    saved_hidden: float = 1.0  # in units of hidden: one side of relu^2 (swiglu: 2)
    eager_factor: float = 1.2  # on a CPU the plain versions of the fused pieces keep more
    logit_bytes: float = 3.0  # a logit of the chunk: bf16, overwritten by its gradient, and room
    loss_chunk_tokens: int = 8192

    # Step time.
    matmul_efficiency: float = 0.80  # large bf16 products: 788 of 989 TFLOP/s measured at 8192^3
    half_dim: float = 64.0  # width at which products reach half of that
    half_tokens: float = 512.0  # tokens in a micro-batch at which they do
    attention_efficiency: float = 0.34  # of the bf16 peak, causal FLOPs, forward and backward together
    fp8_efficiency: float = 0.60  # of the fp8 peak, quantisation included
    traffic_bytes: float = 165.0  # moved per layer, token and channel by what is not a product: norms, RoPE, relu^2, residuals
    eager_traffic: float = 2.5  # times that without torch.compile
    bandwidth_efficiency: float = 0.80
    optimizer_bytes: float = 30.0  # moved per parameter owned by a rank: states, gradient, weight
    micro_step_bytes: float = 14.0  # moved per parameter and micro-step: bf16 copies, gradient accumulation
    link_efficiency: float = 0.75
    communication_bytes: float = 8.0  # per parameter and step: fp32 gradients reduce-scattered, fp32 weights gathered
    overlap: float = 0.6  # share of the communication hidden behind computation
    launch_seconds: float = 4e-4  # host time per layer and micro-step, compiled
    eager_launch_seconds: float = 2e-3
    cpu_efficiency: float = 0.50  # of measured matmul GFLOP/s
    cpu_attention_efficiency: float = 0.16  # the same of attention's causal FLOPs: the depth-4 model on 2 cores
    cpu_gflops_per_core: float = 40.0  # where nothing was measured
    cpu_bandwidth_gbs: float = 10.0
    cpu_bf16_share: float = 0.35  # bf16 speed over fp32's on CPUs without bf16 units

    # Around the steps.
    startup_seconds: float = 90.0  # process start, torch.compile, first step, last checkpoint
    cpu_startup_seconds: float = 8.0
    validation_share: float = 0.36  # a validation token's cost over a training token's: forward only


def load_constants(gpu: str | None, extra: Path | None = None) -> Constants:
    """Constants for a GPU: its calibration file in the package if there is one, then `extra` on top.

    Raises:
        UserError: `extra` cannot be read or has a key that is no constant.
    """
    constants = Constants()
    if gpu is None:
        constants = replace(constants, source="defaults: arithmetic at the measured speed of this CPU", time_error=0.5)
    else:
        shipped = resources.files(__package__) / "calibration" / f"{gpu}.json"
        if shipped.is_file():
            constants = _override(constants, json.loads(shipped.read_text(encoding="utf-8")), f"calibration of {gpu}")
        elif gpu not in ("H200", "H100"):
            constants = replace(constants, time_error=0.3, source=f"{constants.source}; nothing measured on {gpu} yet")
    if extra is None:
        return constants
    try:
        data = json.loads(extra.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"calibration {extra} cannot be read: {error}", "measure again, or leave it out") from None
    return _override(constants, data, str(extra))


def _override(constants: Constants, data: Any, where: str) -> Constants:
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected a mapping of constants, found {type(data).__name__}")
    kinds = {f.name: type(getattr(constants, f.name)) for f in fields(constants)}
    changes: dict[str, Any] = {}
    for key, value in data.items():
        if key not in kinds:
            raise UserError(f"{where}: {key}: not a constant of the planner", f"one of: {', '.join(kinds)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if (kinds[key] is str) != isinstance(value, str) or not (number or isinstance(value, str)):
            raise UserError(f"{where}: {key}: expected {'text' if kinds[key] is str else 'a number'}, got {value!r}")
        changes[key] = value
    changes.setdefault("source", where)
    return replace(constants, **changes)
