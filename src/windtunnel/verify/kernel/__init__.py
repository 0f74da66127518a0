"""Judging Triton kernels: tasks, recording and replay of launch plans, full shapes and timing on a GPU.

Nothing here imports torch or triton; what stands in `child` does, inside the sandbox.
"""

from windtunnel.verify.kernel.admission import GpuMemory
from windtunnel.verify.kernel.answer import KernelOutcome, kernel_outcome, plan_ends, speed_reward, stage_states
from windtunnel.verify.kernel.funnel import KernelVerifier, candidate_of, judge_recording
from windtunnel.verify.kernel.gpu import GpuStages
from windtunnel.verify.kernel.module import tasks_of_module
from windtunnel.verify.kernel.prepared import ReferenceBroken
from windtunnel.verify.kernel.recording import record
from windtunnel.verify.kernel.task import Task, load_task, task_from_source
from windtunnel.verify.kernel.workers import compiler_sandbox, gpu_sandbox, has_gpu, kernel_sandbox, reference_sandbox

__all__ = [
    "GpuMemory",
    "GpuStages",
    "KernelOutcome",
    "KernelVerifier",
    "ReferenceBroken",
    "Task",
    "candidate_of",
    "compiler_sandbox",
    "gpu_sandbox",
    "has_gpu",
    "judge_recording",
    "kernel_outcome",
    "kernel_sandbox",
    "load_task",
    "plan_ends",
    "record",
    "reference_sandbox",
    "speed_reward",
    "stage_states",
    "task_from_source",
    "tasks_of_module",
]
