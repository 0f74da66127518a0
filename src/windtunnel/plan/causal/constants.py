"""The planner's constants for Hugging Face models, all in one place, with where each came from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..calibration import corrected, override, shipped_constants
from ..constants import NEAREST


@dataclass(frozen=True)
class HFConstants:
    """Memory and step-time constants of one kind of GPU. Shares are of 1, times in seconds, sizes in GiB or bytes."""

    # Where the numbers come from and how far off they may be (relative).
    source: str = "arithmetic of what PyTorch keeps, rates of a H200"
    memory_error: float = 0.08
    time_error: float = 0.25

    # What the user's own measurements add (see ../calibration.py).
    extra_gib: float = 0.0
    time_factor: float = 1.0

    # Memory.
    usable_share: float = 0.95  # of the GPU's memory; the rest is what other processes and growth need
    cpu_usable_share: float = 0.80  # of RAM, for states kept there
    context_gib: float = 0.82  # CUDA context and loaded kernels
    nccl_gib: float = 0.75  # communicators' buffers, with more than one rank
    workspace_gib: float = 0.1  # cuBLAS, cuDNN
    fragmentation: float = 0.008  # reserved over allocated, beyond what idles in another stream's pool
    quantised_fragmentation: float = 0.025  # more, where weights are turned into bf16 for each product
    misplaced: float = 0.5  # share of the largest buffer that finds no hole and takes new memory, where holes are few

    # Step time.
    matmul_efficiency: float = 0.76  # large bf16 products, of the dense peak, at the clock that a long run sustains
    half_dim: float = 96.0  # width at which products reach half of that
    half_tokens: float = 512.0  # tokens in a micro-batch at which they do
    fp8_efficiency: float = 0.60  # of the fp8 peak, quantisation included
    grouped_efficiency: float = 0.70  # of those products, where tokens are sorted by expert
    attention_forward: float = 0.55  # of the bf16 peak, causal FLOPs
    attention_backward: float = 0.45
    half_head: float = 24.0  # head width at which attention reaches half of that
    half_sequence: float = 300.0  # and the sequence length
    traffic_dims: float = 40.0  # bytes moved per block, token and channel by what is not a product: norms, RoPE, residuals
    traffic_hidden: float = 22.0  # the same per channel of the MLP's hidden width
    traffic_routed: float = 30.0  # the same per channel of a routed copy of the token: sorting, gathering, weighting
    traffic_adapter: float = 12.0  # the same per input and output channel of a layer with an adapter
    eager_traffic: float = 2.5  # times that without torch.compile
    logit_traffic: float = 14.0  # bytes moved per logit by the loss
    bandwidth_efficiency: float = 0.80
    optimizer_efficiency: float = 0.55  # of the memory bandwidth, for what an update reads and writes
    rounding_factor: float = 2.0  # times longer where weights or states are rounded stochastically
    launch_seconds: float = 6e-4  # host time per block and pass, compiled
    eager_launch_seconds: float = 2.5e-3
    step_overhead_seconds: float = 0.004
    link_efficiency: float = 0.75  # of a node's links
    network_efficiency: float = 0.65  # of the network between nodes
    overlap: float = 0.85  # share of gathering and reducing weights that can hide behind computation
    gather_slowdown: float = 0.05  # products are slower while collectives run beside them
    straggle: float = 0.02  # more, of the step, for every doubling of nodes
    pcie_gbs: float = 40.0  # to CPU memory and back, per GPU
    cpu_adam_gbs: float = 100.0  # of a node's memory, for states kept there

    # Generating answers (GRPO), after vLLM 0.25.1 on one H200: 512 sequences of a 7 B model, 29,000 tokens/s, start 80 s.
    generate_efficiency: float = 0.55  # of the bf16 peak, products of prefill and of large decoding batches
    decode_bandwidth: float = 0.65  # of the memory bandwidth, weights and KV cache
    decode_overhead_seconds: float = 0.003  # host time and sampling per token of all sequences together
    reduce_latency_seconds: float = 1.5e-5  # of one all-reduce between the GPUs of an engine
    engine_workspace_gib: float = 3.0  # activations of prefill, CUDA graphs
    sync_efficiency: float = 0.10  # of link or network: gathering, sending and loading weights (published: 30-60 GB/s)
    sync_seconds: float = 0.3  # pausing, checking the receipt, going on
    packing: float = 0.95  # of packed sequences, tokens that are not padding

    # Around the steps.
    process_seconds: float = 15.0  # processes, imports, communicators
    compile_seconds: float = 15.0  # once a kind of block; 5-9 s measured on 16 idle cores
    load_gbs: float = 2.0  # weights from disk, per node
    save_gbs: float = 1.0  # checkpoints to disk, per node
    engine_start_seconds: float = 65.0  # vLLM beside reading its weights: 80 s measured for 7 B on one H200


def load_hf_constants(gpu: str) -> HFConstants:
    """Constants for a GPU: those that ship for it, else those of a H200 with a larger error; then the user's measurements.

    Raises:
        UserError: the user's calibration of the GPU is damaged.
    """
    shipped = shipped_constants(gpu, "causal")
    where = gpu if shipped else NEAREST
    constants = override(HFConstants(), shipped or shipped_constants(NEAREST, "causal"), f"calibration of {where}")
    if not shipped:
        source = f"{constants.source}; nothing measured on {gpu} yet"
        constants = replace(constants, time_error=max(0.3, constants.time_error), source=source)
    return corrected(constants, gpu, "causal")
