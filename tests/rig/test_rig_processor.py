"""Wheels for the processor of the rig's hosts."""

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from windtunnel.check import Outcome, all_checks
from windtunnel.rehearse import Context, run_checks, select
from windtunnel.rig import parse_rig, processor_of

pytestmark = pytest.mark.skipif(platform.machine() == "aarch64", reason="this machine is such a one")


def processor(folder: Path, on: str) -> Outcome | None:
    context = Context("charlm", (), (on,), folder=folder)
    return {o.check: o for o in run_checks(select(all_checks(), ["processor"]), context, isolate=False)}.get("processor")


def pip(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[list[str]]:
    """Let pip answer with this function of the packages that are asked for."""
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        wanted = [word for word in command[4:] if not word.startswith("-")]
        asked.append(wanted)
        lacking = next((name for name in wanted if name.startswith(answer)), None) if answer else None
        if lacking is not None:
            return subprocess.CompletedProcess(command, 1, "", f"ERROR: No matching distribution found for {lacking}\n")
        report = Path(next(word for word in command if word.startswith("--report=")).partition("=")[2])
        items = [{"download_info": {"url": f"https://x/{name.replace('==', '-')}-cp312-aarch64.whl"}} for name in wanted]
        report.write_text(json.dumps({"install": items}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("windtunnel.rig.checks_processor.subprocess.run", run)
    return asked


def test_the_hosts_of_a_rig_have_a_processor() -> None:
    assert processor_of(parse_rig("4x(4xGH200)")) == "aarch64"
    assert processor_of(parse_rig("8xH100")) == "x86_64"


def test_wheels_are_asked_for_only_where_hosts_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, None)
    assert processor(tmp_path, "8xH100") is None
    found = processor(tmp_path, "4x(4xGH200)")
    assert found is not None
    assert found.status == "warn"
    assert "torch 2." in found.evidence


def test_a_package_without_a_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pip(monkeypatch, "pyarrow")
    found = processor(tmp_path, "GH200")
    assert found is not None
    assert found.status == "fail"
    assert "there is no wheel of pyarrow" in found.evidence
    assert len(asked) == 2
