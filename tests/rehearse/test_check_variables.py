"""Environment variables that break or slow training: each is named, and what is harmless is left alone."""

from pathlib import Path

import pytest

from windtunnel.check import Outcome, all_checks
from windtunnel.rehearse import Context, run_checks, select
from windtunnel.run.checks import SLOWING


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "RANK",
    )
    for name in (*names, "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "LD_LIBRARY_PATH", "LD_PRELOAD", *SLOWING):
        monkeypatch.delenv(name, raising=False)


def variables(folder: Path, on: str = "8xH100") -> Outcome:
    context = Context("charlm", on=(on,), folder=folder)
    return {o.check: o for o in run_checks(select(all_checks(), ["variables"]), context, isolate=False)}["variables"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUDA_VISIBLE_DEVICES", "", "hides every GPU"),
        ("CUDA_VISIBLE_DEVICES", "-1", "hides every GPU"),
        ("CUDA_VISIBLE_DEVICES", "0,x,2", "'x' is no device"),
        ("CUDA_VISIBLE_DEVICES", "0,1,1", "named twice"),
        ("PYTORCH_ALLOC_CONF", "expandable_segment:True", "no setting of PyTorch's allocator"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments=True", "no setting of PyTorch's allocator"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128", "max_split_size_mb"),
        ("OMP_NUM_THREADS", "0", "no number of threads"),
        ("OMP_NUM_THREADS", "auto", "no number of threads"),
        ("WORLD_SIZE", "8", "one rank of a job"),
        ("RANK", "0", "one rank of a job"),
        ("WINDTUNNEL_STARTED", "1000000000.0", "the budget would count from"),
        ("WINDTUNNEL_STARTED", "yesterday", "no time"),
        ("LD_PRELOAD", "/gone/libtcmalloc.so", "does not exist"),
    ],
)
def test_what_breaks_training_fails(name: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert variables(tmp_path).status == "ok"
    monkeypatch.setenv(name, value)
    made = variables(tmp_path)
    assert made.status == "fail"
    assert words in made.evidence
    assert name in made.fix


@pytest.mark.parametrize("name", SLOWING)
def test_what_slows_training_warns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0", "TOKENIZERS_PARALLELISM": "false"}.get(
        name, "1"
    )
    if name == "NCCL_DEBUG":
        value = "TRACE"
    monkeypatch.setenv(name, value)
    made = variables(tmp_path)
    assert made.status == "warn"
    assert any(name in warning and "unset" in warning for warning in made.warnings)


def test_settings_that_contradict_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert variables(tmp_path).status == "ok"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,backend:native")
    assert "contradict each other" in variables(tmp_path).evidence


@pytest.mark.parametrize("value", ["expandable_segments:False", "garbage_collection_threshold:0.8"])
def test_memory_that_the_plan_does_not_count_on(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", value)
    assert "expandable" in variables(tmp_path).warnings[0]


def test_fewer_devices_than_the_rig_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert "uses 2 of 8xH100's 8 GPUs" in variables(tmp_path).warnings[0]
    assert variables(tmp_path, on="2xH100").status == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert variables(tmp_path, on="cpu").status == "ok"


def test_one_thread_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.rig import parse_rig

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = Context("charlm", folder=tmp_path)
    context.here = parse_rig("H100")
    made = run_checks(select(all_checks(), ["variables"]), context, isolate=False)[-1]
    assert "uses one of 16 cores" in made.warnings[0]


def test_a_rank_that_torchrun_started_is_no_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert variables(tmp_path).status == "ok"


def test_foreign_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcudnn.so.8").write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/gone:{tmp_path}")
    assert "libcudnn.so.8" in variables(tmp_path).warnings[0]
