"""The planner's constants, all in one place, with where each came from; measured ones override them per GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from .calibration import corrected, override, shipped_constants


@dataclass(frozen=True)
class Constants:
    """What plans for all kinds of model need of one kind of device. Shares are of 1, times in seconds, sizes in GiB or bytes."""

    # Where the numbers come from and how far off they may be (relative).
    source: str = ""
    memory_error: float = 0.12
    time_error: float = 0.25

    # What the user's own measurements add (see calibration.py).
    extra_gib: float = 0.0
    time_factor: float = 1.0

    # Memory.
    usable_share: float = 0.95  # of the GPU's memory; the rest is what other processes and growth need
    cpu_usable_share: float = 0.80  # of RAM: the operating system and the data's page cache live there too
    context_gib: float = 0.82  # CUDA context and loaded kernels
    cpu_context_gib: float = 0.5  # the interpreter with torch loaded
    nccl_gib: float = 0.75  # communicators' buffers, with more than one rank
    workspace_gib: float = 0.1  # cuBLAS, cuDNN
    fragmentation: float = 0.01  # reserved over allocated, of all that the allocator holds

    # Step time.
    matmul_efficiency: float = 0.80  # large bf16 products: 788 of 989 TFLOP/s measured at 8192^3
    half_dim: float = 64.0  # width at which products reach half of that
    half_tokens: float = 512.0  # tokens in a micro-batch at which they do
    fp8_efficiency: float = 0.60  # of the fp8 peak
    bandwidth_efficiency: float = 0.80
    eager_traffic: float = 2.5  # times the bytes that are moved with torch.compile
    launch_seconds: float = 1e-3  # host time of a pass through a block, forwards or backwards
    eager_launch_seconds: float = 2.5e-3
    shard_launch_seconds: float = 1.6e-3  # more of it where FSDP2 gathers, casts and reduces a block (two H200s, 30 blocks)
    link_efficiency: float = 0.75  # of a node's links
    network_efficiency: float = 0.65  # of the network between nodes
    straggle: float = 0.02  # more, of what crosses the network, for every doubling of nodes
    overlap: float = 0.6  # share of the communication that can hide behind computation


@dataclass(frozen=True)
class GPTConstants(Constants):
    """Constants of the package's own GPTs."""

    source: str = "fitted to benchmarks/results/throughput-h200.json: d12, d20, d24 on one H200"
    time_error: float = 0.20

    # Memory.
    workspace_gib: float = 0.06  # cuBLAS workspaces
    saved_dims: float = 6.0  # per layer and token, in units of dim: 2 normed inputs, q, k, v, attention's output
    saved_hidden: float = 1.0  # in units of hidden: one side of relu^2 (swiglu: 2)
    eager_factor: float = 1.2  # on a CPU the plain versions of the fused pieces keep more
    fp8_saved_dims: float = 1.5  # with fp8 the inputs of three products also in 8 bits
    loss_chunk_tokens: int = 8192

    # Step time.
    attention_efficiency: float = 0.34  # of the bf16 peak, causal FLOPs, forward and backward together
    fp8_efficiency: float = 0.70  # quantisation is counted as traffic
    traffic_bytes: float = 165.0  # moved per layer, token and channel by what is not a product: norms, RoPE, relu^2, residuals
    # Recursion, counted: what sums and norms states moves 12.3 elements a channel, forwards and backwards, in the place of
    # the plain block's pass over its residual stream, which moves 12 and is in traffic_bytes.
    combine_traffic: float = 0.7
    loss_flops: float = 117.0  # of fp32, for a logit's softcap, exponentials and gradient: 15.1 ms for 2^33 on an H200
    optimizer_bytes: float = 30.0  # moved per parameter owned by a rank: states, gradient, weight
    micro_step_bytes: float = 14.0  # moved per parameter and micro-step: bf16 copies, gradient accumulation
    communication_bytes: float = 8.0  # per parameter and step: fp32 gradients reduce-scattered, fp32 weights gathered
    eager_launch_seconds: float = 2e-3
    # Of time where passes are recorded and the GPU bounds it, and of their memory.
    recorded_error: float = 0.25
    recorded_memory_error: float = 0.12
    # Of time where a recursive GPT's products are in fp8: at width 768, the one that was measured, 14 % more than planned.
    # What the fit to wider plain GPTs misses there are products and quantising kernels too small for their rates.
    fp8_error: float = 0.25
    sharded_error: float = 0.3  # of time where weights are gathered from other ranks, which nobody has measured yet
    launch_error: float = 0.31  # of time where launches bound it: the host's speed differs by machine, and by minute
    cpu_efficiency: float = 0.50  # of measured matmul GFLOP/s
    cpu_attention_efficiency: float = 0.16  # the same of attention's causal FLOPs: the depth-4 model on 2 cores
    cpu_gflops_per_core: float = 40.0  # where nothing was measured
    cpu_bandwidth_gbs: float = 10.0
    cpu_bf16_share: float = 0.35  # bf16 speed over fp32's on CPUs without bf16 units

    # Around the steps.
    # From the command until the first step's end 26.6 and 29.4 s with nothing compiled yet, 12.5 and 10.9 s later (H200; charlm,
    # trm-sudoku; benchmarks/results/starts-h200.json, ranks started early), and 1 to 2 s for the last checkpoint.
    startup_seconds: float = 30.0
    # 12.4 and 8.0 s, later 3.9 and 7.8 (2 cores; starts-cpu.json); what torch.compile adds there: 72.3 in place of 12.4 s.
    cpu_startup_seconds: float = 8.0
    cpu_compile_seconds: float = 60.0
    validation_share: float = 0.36  # a validation token's cost over a training token's: forward only


@dataclass(frozen=True)
class HFConstants(Constants):
    """Constants of Hugging Face models: fine-tuning and GRPO."""

    source: str = "arithmetic of what PyTorch keeps, rates of a H200"
    memory_error: float = 0.08

    # Memory.
    fragmentation: float = 0.008  # reserved over allocated, beyond what idles in another stream's pool
    quantised_fragmentation: float = 0.025  # more, where weights are turned into bf16 for each product
    misplaced: float = 0.5  # share of the largest buffer that finds no hole and takes new memory, where holes are few

    # Step time.
    matmul_efficiency: float = 0.76  # at the clock that a long run sustains
    half_dim: float = 96.0
    grouped_efficiency: float = 0.70  # of those products, where tokens are sorted by expert
    attention_forward: float = 0.55  # of the bf16 peak, causal FLOPs
    attention_backward: float = 0.45
    half_head: float = 24.0  # head width at which attention reaches half of that
    half_sequence: float = 300.0  # and the sequence length
    traffic_dims: float = 40.0  # bytes moved per block, token and channel by what is not a product: norms, RoPE, residuals
    traffic_hidden: float = 22.0  # the same per channel of the MLP's hidden width
    traffic_routed: float = 30.0  # the same per channel of a routed copy of the token: sorting, gathering, weighting
    traffic_adapter: float = 12.0  # the same per input and output channel of a layer with an adapter
    logit_traffic: float = 14.0  # bytes moved per logit by the loss
    optimizer_efficiency: float = 0.55  # of the memory bandwidth, for what an update reads and writes
    rounding_factor: float = 2.0  # times longer where weights or states are rounded stochastically
    launch_seconds: float = 6e-4  # compiled
    step_overhead_seconds: float = 0.004
    overlap: float = 0.85  # of gathering and reducing weights
    gather_slowdown: float = 0.05  # products are slower while collectives run beside them
    # Of those rates, what layouts that split matrices, experts or layers reach: smaller products, more of them, ranks that wait
    # for each other. Chosen by published steps of others (benchmarks/published.py: KempnerForge; published_rounds.py: v0.5).
    split_efficiency: float = 0.8
    pcie_gbs: float = 40.0  # to CPU memory and back, per GPU
    cpu_adam_gbs: float = 100.0  # of a node's memory, for states kept there

    # Generating answers (GRPO), after vLLM 0.25.1 on one H200: 512 sequences of a 7 B model, 29,000 tokens/s, start 80 s.
    generate_efficiency: float = 0.55  # of the bf16 peak, products of prefill and of large decoding batches
    decode_bandwidth: float = 0.65  # of the memory bandwidth, weights and KV cache
    decode_overhead_seconds: float = 0.003  # host time and sampling per token of all sequences together
    reduce_latency_seconds: float = 1.5e-5  # of one all-reduce between the GPUs of an engine
    node_latency_seconds: float = 1e-4  # of one that crosses the network, where an engine spans nodes
    engine_workspace_gib: float = 3.0  # activations of prefill, CUDA graphs
    sync_efficiency: float = 0.10  # of link or network: gathering, sending and loading weights (published: 30-60 GB/s)
    sync_seconds: float = 0.3  # pausing, checking the receipt, going on
    packing: float = 0.95  # of packed sequences, tokens that are not padding

    # Around the steps.
    process_seconds: float = 15.0  # processes, imports, communicators
    # Once a kind of block, not ahead of the first step, which took 5 to 25 s (planning-h200.json, first_step_seconds), once 35.
    compile_seconds: float = 15.0
    load_gbs: float = 2.0  # weights from disk, per node
    save_gbs: float = 1.0  # checkpoints to disk, per node
    engine_start_seconds: float = 65.0  # vLLM beside reading its weights: 80 s measured for 7 B on one H200


AnyConstants = TypeVar("AnyConstants", bound=Constants)
# Whose shares of peak rates stand in for those of GPUs that nothing was measured on.
NEAREST = "H200"
# Of GPUs, and of ways to split a model, that nothing was measured on: by published figures, which nothing was fitted to.
UNSEEN_MEMORY_ERROR = 0.2


def load_constants(gpu: str | None) -> GPTConstants:
    """Load a GPT's constants on a GPU, or on a CPU for None: those that ship for it, and the user's measurements on top.

    Raises:
        UserError: the user's calibration of the GPU is damaged.
    """
    if gpu is None:
        source = "defaults: arithmetic at the measured speed of this CPU"
        return replace(GPTConstants(), source=source, time_error=0.5)
    return corrected(_shipped(GPTConstants(), gpu, "gpt"), gpu, "gpt")


def load_hf_constants(gpu: str) -> HFConstants:
    """Load the constants of Hugging Face models on a GPU, or on a CPU for an empty name, as `load_constants`.

    Raises:
        UserError: the user's calibration of the GPU is damaged.
    """
    return corrected(_shipped(HFConstants(), gpu, "hf"), gpu, "hf")


def _shipped(constants: AnyConstants, gpu: str, family: str) -> AnyConstants:
    """Return the constants that ship for a GPU, else those of the nearest one with a larger error in time.

    What a step needs of memory is much the same on every GPU, its speed is not; neither has been seen there.
    """
    shipped = shipped_constants(gpu, family)
    where = gpu if shipped else NEAREST
    constants = override(constants, shipped or shipped_constants(NEAREST, family), f"calibration of {where}")
    if shipped:
        return constants
    source = f"{constants.source}; nothing measured on {gpu or 'a CPU'} yet"
    return replace(
        constants,
        memory_error=max(UNSEEN_MEMORY_ERROR, constants.memory_error),
        time_error=max(0.3, constants.time_error),
        source=source,
    )
