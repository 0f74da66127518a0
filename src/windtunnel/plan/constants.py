"""The planner's constants, all in one place, with where each came from; measured ones override them per GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.recipe import UserError

from .calibration import corrected, override, shipped_constants


@dataclass(frozen=True)
class Constants:
    """Memory and step-time constants of one kind of device. Shares are of 1, times in seconds, sizes in GiB or bytes."""

    # Where the numbers come from and how far off they may be (relative).
    source: str = "fitted to benchmarks/results/throughput-h200.json: d12, d20, d24 on one H200"
    memory_error: float = 0.12
    time_error: float = 0.20

    # What the user's own measurements add (see calibration.py).
    extra_gib: float = 0.0
    time_factor: float = 1.0

    # Memory.
    usable_share: float = 0.95  # of the GPU's memory; the rest is what other processes and growth need
    cpu_usable_share: float = 0.80  # of RAM: the operating system and the data's page cache live there too
    context_gib: float = 0.82  # CUDA context and loaded kernels
    cpu_context_gib: float = 0.5  # the interpreter with torch loaded
    workspace_gib: float = 0.06  # cuBLAS workspaces
    nccl_gib: float = 0.75  # communicators' buffers, with more than one rank
    fragmentation: float = 0.01  # reserved over allocated, of all that the allocator holds
    saved_dims: float = 6.0  # per layer and token, in units of dim: 2 normed inputs, q, k, v, attention's output
    saved_hidden: float = 1.0  # in units of hidden: one side of relu^2 (swiglu: 2)
    eager_factor: float = 1.2  # on a CPU the plain versions of the fused pieces keep more
    fp8_saved_dims: float = 1.5  # with fp8 the inputs of three products also in 8 bits
    loss_chunk_tokens: int = 8192

    # Step time.
    matmul_efficiency: float = 0.80  # large bf16 products: 788 of 989 TFLOP/s measured at 8192^3
    half_dim: float = 64.0  # width at which products reach half of that
    half_tokens: float = 512.0  # tokens in a micro-batch at which they do
    attention_efficiency: float = 0.34  # of the bf16 peak, causal FLOPs, forward and backward together
    fp8_efficiency: float = 0.70  # of the fp8 peak; quantisation is counted as traffic
    traffic_bytes: float = 165.0  # moved per layer, token and channel by what is not a product: norms, RoPE, relu^2, residuals
    # Recursion, counted: what sums and norms states moves 12.3 elements a channel, forwards and backwards, in the place of
    # the plain block's pass over its residual stream, which moves 12 and is in traffic_bytes.
    combine_traffic: float = 0.7
    eager_traffic: float = 2.5  # times that without torch.compile
    bandwidth_efficiency: float = 0.80
    optimizer_bytes: float = 30.0  # moved per parameter owned by a rank: states, gradient, weight
    micro_step_bytes: float = 14.0  # moved per parameter and micro-step: bf16 copies, gradient accumulation
    link_efficiency: float = 0.75
    communication_bytes: float = 8.0  # per parameter and step: fp32 gradients reduce-scattered, fp32 weights gathered
    overlap: float = 0.6  # share of the communication hidden behind computation
    launch_seconds: float = 1e-3  # host time of a pass through a block, forwards or backwards: a dozen kernels from Python
    eager_launch_seconds: float = 2e-3
    # Of time where passes are recorded and the GPU bounds it, and of their memory.
    recorded_error: float = 0.25
    recorded_memory_error: float = 0.12
    # Of time where a recursive GPT's products are in fp8: at width 768, the one that was measured, 14 % more than planned.
    # What the fit to wider plain GPTs misses there are products and quantising kernels too small for their rates.
    fp8_error: float = 0.25
    launch_error: float = 0.31  # of time where launches bound it: the host's speed differs by machine, and by minute
    cpu_efficiency: float = 0.50  # of measured matmul GFLOP/s
    cpu_attention_efficiency: float = 0.16  # the same of attention's causal FLOPs: the depth-4 model on 2 cores
    cpu_gflops_per_core: float = 40.0  # where nothing was measured
    cpu_bandwidth_gbs: float = 10.0
    cpu_bf16_share: float = 0.35  # bf16 speed over fp32's on CPUs without bf16 units

    # Around the steps.
    startup_seconds: float = 90.0  # process start, torch.compile, first step, last checkpoint
    cpu_startup_seconds: float = 8.0
    validation_share: float = 0.36  # a validation token's cost over a training token's: forward only


# Whose shares of peak rates stand in for those of GPUs that nothing was measured on.
NEAREST = "H200"


def load_constants(gpu: str | None, extra: Path | None = None) -> Constants:
    """Constants for a GPU: its calibration file in the package if there is one, `extra` on top, then the user's measurements.

    Raises:
        UserError: `extra` cannot be read or has a key that is no constant; the user's calibration of the GPU is damaged.
    """
    constants = Constants()
    if gpu is None:
        constants = replace(constants, source="defaults: arithmetic at the measured speed of this CPU", time_error=0.5)
    else:
        shipped = shipped_constants(gpu, "gpt")
        constants = override(
            constants, shipped or shipped_constants(NEAREST, "gpt"), f"calibration of {gpu if shipped else NEAREST}"
        )
        if not shipped:
            # What a step needs of memory is the same on every GPU, its speed is not.
            source = f"{constants.source}; nothing measured on {gpu} yet"
            constants = replace(constants, time_error=max(0.3, constants.time_error), source=source)
    if extra is not None:
        try:
            constants = override(constants, json.loads(extra.read_text(encoding="utf-8")), str(extra))
        except (OSError, ValueError) as error:
            raise UserError(f"calibration {extra} cannot be read: {error}", "measure again, or leave it out") from None
    return constants if gpu is None else corrected(constants, gpu, "gpt")
