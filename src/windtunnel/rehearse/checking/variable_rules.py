"""Facts about environment variables: which slow or change training, and PyTorch's allocator settings."""

from __future__ import annotations

from dataclasses import dataclass

RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

# docs.pytorch.org/docs/stable/notes/cuda.html, "Optimizing memory usage with PYTORCH_ALLOC_CONF"
ALLOCATOR_KEYS = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "pinned_background_threads",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
)


@dataclass(frozen=True)
class Harm:
    """What a variable does when it is set to anything but `unless` (and '')."""

    text: str
    unless: tuple[str, ...] = ("0",)


SLOWING = {
    "CUDA_LAUNCH_BLOCKING": Harm("every kernel is waited for, training is several times slower"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Harm("every tensor is allocated by the driver, training is many times slower"),
    "TORCHDYNAMO_DISABLE": Harm("torch.compile does nothing: slower and more memory than planned"),
    "TORCH_COMPILE_DISABLE": Harm("torch.compile does nothing: slower and more memory than planned"),
    "TORCH_LOGS": Harm("torch.compile writes gigabytes of logs and slows down", ()),
    "TORCH_TRACE": Harm("torch.compile writes traces of everything", ()),
    "TORCH_DISTRIBUTED_DEBUG": Harm("every collective is checked by another one, steps are slower", ("OFF", "off")),
    "NCCL_DEBUG": Harm("NCCL writes much to the log", ("VERSION", "WARN", "version", "warn")),
    "NCCL_P2P_DISABLE": Harm("GPUs talk through the host's memory, not NVLink: steps are slower than planned"),
    "NCCL_SHM_DISABLE": Harm("GPUs without NVLink talk through the network: steps are slower than planned"),
    "NCCL_IB_DISABLE": Harm("nodes talk over Ethernet, not InfiniBand: steps are slower than planned"),
    "NCCL_BLOCKING_WAIT": Harm("the host waits for every collective, nothing overlaps"),
    "TORCH_NCCL_BLOCKING_WAIT": Harm("the host waits for every collective, nothing overlaps"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Harm("a rank that dies leaves the others waiting forever, and paid for", ("1", "2", "3")),
    "TORCH_NCCL_ENABLE_MONITORING": Harm("a rank that hangs is never ended", ("1",)),
    "NVIDIA_TF32_OVERRIDE": Harm("the precision of products is another than the recipe's", ()),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": Harm("the precision of products is another than the recipe's"),
    "CUDA_DEVICE_MAX_CONNECTIONS": Harm(
        "only so many streams run at once: FSDP's collectives wait for computation", ("8", "16", "32")
    ),
    "PYTHONOPTIMIZE": Harm("assertions are switched off: broken invariants go unnoticed"),
    "PYTHONMALLOC": Harm("Python's memory is checked at every allocation, much slower", ("default", "pymalloc", "malloc")),
    "TOKENIZERS_PARALLELISM": Harm("tokenizing uses one core", ("true", "1", "True")),
}
"""Variable: what it does. Torch's are in docs.pytorch.org/docs/stable/torch_environment_variables.html, NCCL's in its guide."""


def is_set(value: str | None, unless: tuple[str, ...]) -> bool:
    """Whether a variable has a value that does harm."""
    return value is not None and value.strip() != "" and value.strip() not in unless
