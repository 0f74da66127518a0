"""Trials in processes of their own: what is measured, and what becomes of those that cannot end well."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from waiting import HANG

from windtunnel.launch import try_steps
from windtunnel.model import out_of_memory
from windtunnel.plan import Layout
from windtunnel.recipe import Recipe, UserError, load_recipe

pytestmark = pytest.mark.end_to_end

VOCAB = 300


def tiny(*keys: str) -> Recipe:
    return load_recipe("charlm", ["model.depth=2", "model.aspect=16", "model.head_dim=16", "model.sequence=32", *keys])


def layout(ranks: int = 1, **changes: object) -> Layout:
    chosen: dict = {"micro_batch": 4, "accumulation": 2, "sequence": 32, "precision": "fp32", "compile": False, "device": "cpu"}
    return Layout(**{"ranks": ranks, **chosen, **changes})


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def processes(word: str) -> list[psutil.Process]:
    """Those that name `word` on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if any(word in part for part in process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_one_rank_and_two_take_the_same_step_and_leave_nothing_behind(tmp_path: Path) -> None:
    stages: list[str] = []
    one = try_steps(tiny(), layout(), steps=3, warm_up=1, vocab=VOCAB, say=stages.append)
    two = try_steps(tiny(), layout(2, accumulation=1), steps=3, warm_up=1, vocab=VOCAB)
    for trial in (one, two):
        assert trial.failure is None
        assert not trial.out_of_memory
        assert trial.steps == 3
        assert trial.step_seconds is not None
        assert trial.tokens_per_second == pytest.approx(256 / trial.step_seconds)
        assert trial.reserved_gib is not None
        assert trial.reserved_gib > 0.05
        assert set(trial.phases) == {"forward", "backward", "optimizer"}
        assert trial.to_json()["layout"]["batch_tokens"] == 256
    # The same batch and weights: spreading it over ranks changes nothing but rounding.
    assert one.losses == pytest.approx(two.losses, rel=1e-4)
    assert "building the model" in stages
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")] == []  # PyTorch's own cache
    assert processes(str(tmp_path)) == []


def test_a_hang_ends_at_the_timeout(tmp_path: Path) -> None:
    trial = try_steps(tiny(), layout(2), steps=100_000, seconds=1e6, vocab=VOCAB, timeout=1.0)
    assert trial.failure is not None
    assert trial.failure.startswith("stopped after 1 s, while ")
    assert trial.step_seconds is None
    assert processes(str(tmp_path)) == []


def test_memory_that_runs_out_is_said(tmp_path: Path) -> None:
    trial = try_steps(tiny("model.aspect=4194304"), layout(), vocab=VOCAB)
    assert trial.out_of_memory
    assert trial.failure is not None
    assert trial.stage == "building the model"


def test_a_crash_on_ranks_ends_them_all_and_says_why(tmp_path: Path) -> None:
    trial = try_steps(tiny(), layout(2, precision="fp64"), vocab=VOCAB, timeout=60)
    assert trial.failure is not None
    assert "fp64" in trial.failure
    assert not trial.out_of_memory
    assert processes(str(tmp_path)) == []


CALLER = """
from windtunnel.launch import try_steps
from test_trial import VOCAB, layout, tiny
try_steps(tiny(), layout(2), steps=1_000_000, seconds=1e6, vocab=VOCAB, say=print)
"""


def test_ranks_die_with_their_caller(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2])), "PYTHONUNBUFFERED": "1"}
    caller = subprocess.Popen([sys.executable, "-c", CALLER], env=environment, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    assert any(line.startswith("step ") for line in caller.stdout)
    assert len(processes(str(tmp_path))) >= 3  # torchrun and two ranks
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    deadline = time.monotonic() + HANG
    while processes(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes(str(tmp_path)) == []


def test_layouts_that_no_trial_can_run_are_refused() -> None:
    with pytest.raises(UserError) as error:
        try_steps(tiny(), layout(tensor=2, ranks=2, engine="megatron-bridge"), vocab=VOCAB)
    assert "megatron-bridge" in error.value.message
    with pytest.raises(UserError) as error:
        try_steps(tiny(), layout(offload="optimizer"), vocab=VOCAB)
    assert "layout.offload=none" in (error.value.fix or "")
    with pytest.raises(UserError) as error:
        try_steps(tiny(), layout(recompute="block"), vocab=VOCAB)
    assert "layout.recompute=none" in (error.value.fix or "")
    with pytest.raises(UserError) as error:
        try_steps(tiny(), layout(1024, device="cuda"), vocab=VOCAB)
    assert "1024 ranks" in error.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_words_for_memory_that_ran_out(text: str, expected: bool) -> None:
    assert out_of_memory(RuntimeError(text)) is expected
