"""Check what a run meets besides the rig: environment variables, the gates between stages."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.check import RUNGS, Check, Context, Evidence, Findings, Say
from windtunnel.run import STARTED

# The first is today's name; torch reads the older ones still.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# What torchrun gives each rank: left over in a shell, they make a process wait for ranks that nobody starts.
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


def _variables(context: Context, say: Say) -> Evidence:
    found, values = Findings(), os.environ
    _devices(found, values, context)
    _allocator(found, values)
    _threads(found, values, context)
    _left_over(found, values)
    _libraries(found, values)
    for name, harm in SLOWING.items():
        if is_set(values.get(name), harm.unless):
            found.warn(f"{name}={values[name]}: {harm.text}; unset {name}")
    # The eight: devices, allocator (counted once), three of threads, the start, and the two of libraries.
    looked = len(SLOWING) + len(RANK_NAMES) + 8
    return found.evidence(f"none of {looked} variables known to break or slow training is set")


def _devices(found: Findings, values: Mapping[str, str], context: Context) -> None:
    value = values.get("CUDA_VISIBLE_DEVICES")
    if value is None or RUNGS.index(context.rung) < RUNGS.index("gpu"):
        return
    words = [word.strip() for word in value.split(",")]
    fix = "unset CUDA_VISIBLE_DEVICES, or give indexes such as 0,1,2"
    if not value.strip() or words[0] in ("-1", "none", "NoDevFiles"):
        found.problem(f"CUDA_VISIBLE_DEVICES is {value!r}: it hides every GPU", fix)
        return
    bad = [word for word in words if not re.fullmatch(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+", word)]
    if bad:
        found.problem(f"CUDA_VISIBLE_DEVICES is {value!r}: {bad[0]!r} is no device, and hides those after it", fix)
    elif len(set(words)) < len(words):
        found.problem(f"CUDA_VISIBLE_DEVICES is {value!r}: a device named twice hides all", fix)
    else:
        _fewer(found, len(words), value, context)


def _fewer(found: Findings, count: int, value: str, context: Context) -> None:
    for rig in context.rigs:
        if rig.gpu and count < rig.gpus_per_node and rig.name not in ("here", "cpu"):
            what = f"CUDA_VISIBLE_DEVICES is {value!r}: a job started from this shell uses {count} of {rig.name}'s"
            found.warn(f"{what} {rig.gpus_per_node} GPUs a node; unset it there")
            return


def _allocator(found: Findings, values: Mapping[str, str]) -> None:
    given = {name: values[name] for name in _ALLOCATOR if values.get(name)}
    if len(set(given.values())) > 1:
        text = " and ".join(f"{name}={value}" for name, value in given.items())
        found.problem(f"{text} contradict each other", "unset all but PYTORCH_ALLOC_CONF")
    for name, value in given.items():
        settings = {}
        # Commas within brackets belong to a value: roundup_power2_divisions:[256:1,512:2].
        for part in re.split(r",(?![^\[]*\])", value):
            key, colon, setting = part.strip().partition(":")
            settings[key] = setting.lower()
            if not colon or key not in ALLOCATOR_KEYS:
                fix = f"{name}=expandable_segments:True; known keys: {', '.join(ALLOCATOR_KEYS)}"
                found.problem(f"{name}: {part.strip()!r} is no setting of PyTorch's allocator", fix)
        if settings.get("expandable_segments") == "false":
            found.warn(f"{name} switches expandable segments off: fragments may take a third more memory than planned")
        elif "expandable_segments" not in settings:
            found.warn(f"{name} does not say expandable_segments:True, which the plan's memory counts on: add it")
        elif "max_split_size_mb" in settings:
            found.problem(
                f"{name}: max_split_size_mb has no sense with expandable_segments:True", f"take one of them out of {name}"
            )


def _threads(found: Findings, values: Mapping[str, str], context: Context) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        value = values.get(name)
        if value is None:
            continue
        first = value.split(",")[0].strip()
        if not first.isdigit() or int(first) == 0:
            found.problem(f"{name} is {value!r}, which is no number of threads", f"unset {name}, or give a number")
        elif int(first) == 1 and context.here.cpu_cores > 1 and name == "OMP_NUM_THREADS":
            found.warn(f"{name}=1: work on the CPU uses one of {context.here.cpu_cores} cores; unset it")
        # Some oversubscription is usual, as of programs that wait for a disk; four times as many threads as cores is not.
        elif int(first) > 4 * context.here.cpu_cores:
            found.warn(f"{name}={value} on {context.here.cpu_cores} cores: threads would wait for each other; unset it")


def _left_over(found: Findings, values: Mapping[str, str]) -> None:
    """Find what an earlier job or launcher left in the shell."""
    left = [name for name in RANK_NAMES if name in values]
    # torchrun sets it too: then this process is one of its ranks, and rightly so.
    launched = "TORCHELASTIC_RUN_ID" in values
    if left and not launched:
        given = ", ".join(f"{name}={values[name]}" for name in left)
        fix = f"unset {' '.join(left)}"
        found.problem(f"{given}: training would take this process for one rank of a job and wait for the others", fix)
    started = values.get(STARTED)
    if started is not None:
        try:
            hours = (time.time() - float(started)) / 3600
            found.problem(f"{STARTED} is set: the budget would count from {hours:,.1f} h ago", f"unset {STARTED}")
        except ValueError:
            found.problem(f"{STARTED} is {started!r}, which is no time", f"unset {STARTED}")


def _libraries(found: Findings, values: Mapping[str, str]) -> None:
    for name in values.get("LD_PRELOAD", "").replace(":", " ").split():
        if "/" in name and not os.path.exists(name):
            found.problem(f"LD_PRELOAD names {name}, which does not exist", "unset LD_PRELOAD")
    for folder in filter(None, values.get("LD_LIBRARY_PATH", "").split(":")):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        foreign = sorted(name for name in names if re.match(r"lib(cudnn|cublas|nccl|cudart)(_\w+)?\.so", name))
        if foreign:
            found.warn(f"LD_LIBRARY_PATH has {folder} with {foreign[0]}, which may be taken in place of torch's own: unset it")


def is_set(value: str | None, unless: tuple[str, ...]) -> bool:
    """Whether a variable has a value that does harm."""
    return value is not None and value.strip() != "" and value.strip() not in unless


CHECKS = (
    Check(
        "variables",
        "no environment variable breaks or slows training without saying so",
        "unset what is named, here and in the job's script",
        _variables,
        needs=("rig", "machine"),
    ),
)  # fmt: skip
