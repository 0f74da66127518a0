"""Jobs on a cluster that Slurm schedules: the batch script, what runs in it, and what becomes of it. No torch."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .batch import run_job
    from .batch_script import UNLIMITED, BatchScript, parse_time, read_batch_script
    from .chain import Move, next_move
    from .job import Attempt, JobSpec, SlurmJob, State, job_of, jobs_under
    from .listing import JobLine, find_job, is_over, list_jobs, stop_job
    from .nodes import gpu_faults
    from .probe import gpus
    from .scheduler import Unreachable
    from .script import in_allocation
    from .submit import Prepared, Wish, prepare_job, run_here, submit_job, try_job

__all__ = [
    "UNLIMITED",
    "Attempt",
    "BatchScript",
    "JobLine",
    "JobSpec",
    "Move",
    "Prepared",
    "SlurmJob",
    "State",
    "Unreachable",
    "Wish",
    "find_job",
    "gpu_faults",
    "gpus",
    "in_allocation",
    "is_over",
    "job_of",
    "jobs_under",
    "list_jobs",
    "next_move",
    "parse_time",
    "prepare_job",
    "read_batch_script",
    "run_here",
    "run_job",
    "stop_job",
    "submit_job",
    "try_job",
]

__getattr__ = lazy(__name__)
