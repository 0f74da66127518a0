"""Verifiers: what turns a model's answer into a judgement and a reward, and cannot be cheated.

Names are imported on use: the warm workers import this package too, and want little of it.
"""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .types import Verdict, Verifier, accept, broken, refuse

if TYPE_CHECKING:
    from .code import CodeTask, CodeVerifier
    from .exact import ExactVerifier
    from .extract import extract as part_of_answer
    from .kernel import (
        GpuMemory,
        GpuStages,
        KernelOutcome,
        KernelVerifier,
        ReferenceBroken,
        Task,
        candidate_of,
        compiler_sandbox,
        gpu_sandbox,
        has_gpu,
        judge_recording,
        kernel_outcome,
        kernel_sandbox,
        load_task,
        plan_ends,
        reference_sandbox,
        speed_reward,
        stage_states,
        tasks_of_module,
    )
    from .kernel import record as record_kernel
    from .kinds import Verifiers, read_json
    from .mathematics import MathVerifier
    from .pool import Full, Pool, Sandboxes
    from .reading import read_text
    from .reward_process import FunctionVerifier, RewardProcess, find_reward
    from .sandbox import Layers, Limits, Sandbox
    from .second_judge import second_opinion
    from .selftest import TESTED, SelfTest, require_working, self_test
    from .service import serve
    from .tasks import catalogue as kernel_tasks
    from .tasks import find as find_task

__all__ = [
    "TESTED",
    "CodeTask",
    "CodeVerifier",
    "ExactVerifier",
    "Full",
    "FunctionVerifier",
    "GpuMemory",
    "GpuStages",
    "KernelOutcome",
    "KernelVerifier",
    "Layers",
    "Limits",
    "MathVerifier",
    "Pool",
    "ReferenceBroken",
    "RewardProcess",
    "Sandbox",
    "Sandboxes",
    "SelfTest",
    "Task",
    "Verdict",
    "Verifier",
    "Verifiers",
    "accept",
    "broken",
    "candidate_of",
    "compiler_sandbox",
    "find_reward",
    "find_task",
    "gpu_sandbox",
    "has_gpu",
    "judge_recording",
    "kernel_outcome",
    "kernel_sandbox",
    "kernel_tasks",
    "load_task",
    "part_of_answer",
    "plan_ends",
    "read_json",
    "read_text",
    "record_kernel",
    "reference_sandbox",
    "refuse",
    "require_working",
    "second_opinion",
    "self_test",
    "serve",
    "speed_reward",
    "stage_states",
    "tasks_of_module",
]

__getattr__ = lazy(__name__)
