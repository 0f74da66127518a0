"""Shared by all tests: headless plots, hypothesis without deadlines, GPU tests skipped where there is no GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WINDTUNNEL_TEST_MODELS", os.environ.get("WINDTUNNEL_MODELS", os.devnull))  # for tests of real models
os.environ["WINDTUNNEL_MODELS"] = os.devnull  # what this machine fetched changes no test
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line sets it
# cuBLAS is asked once, at its first product: tests that want the same bits every time may come after others.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# pytest imports readline, which tells the processes that a test starts that they have 80 columns.
os.unsetenv("COLUMNS")
if "PYTEST_XDIST_WORKER" in os.environ:  # as many at work as there are cores: a second thread would only be in the way
    os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("house", deadline=None, max_examples=50)
settings.load_profile("house")


@pytest.fixture
def count_calls() -> Callable[[Callable[[], object]], int]:
    """Return a function that counts the calls which another one makes: its work, in a unit that no other process changes."""

    def count(work: Callable[[], object]) -> int:
        made = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        return made

    return count


FIRST = (
    "rehearse/test_rehearse_whole", "rl/test_policy_engines", "remote/test_keep", "remote/test_rent", "faults/test_faults",
    "train/test_train_ranks_ending", "launch/test_supervised", "train/test_train_faults", "launch/test_flop_matched_runs",
    "rl/test_transfer", "rl/test_policy_run", "train/test_trace", "generate/test_new_rows", "mirror/test_mirrored_training",
    "docs/test_add_a_recipe", "train/test_train_resume", "cli/test_check_verb", "train/test_hf_packed",
    "evaluate/test_thesis_evaluation", "verify/test_kernel_funnel",
)  # fmt: skip
"""Files that take longest. They begin first: one that was left to the end would keep one core busy and leave the others idle."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first; skip tests marked gpu on machines without one, asking torch only where there are any to run."""
    items.sort(key=lambda item: next((at for at, name in enumerate(FIRST) if name in item.nodeid), len(FIRST)))
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if not wanted or config.option.markexpr.endswith("not slow and not gpu"):
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
