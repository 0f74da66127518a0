"""benchmarks/verify_contexts.py against a library that stands in for CUDA's driver: what works, is refused, crashes or hangs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
# One connection makes a context cheaper; STAND_IN says what goes wrong in cuInit.
DRIVER = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
static void make(uint32_t class) {
  uint32_t body[8] = {1, 1, 1, class};
  ioctl(0, 0xc020462bul, body);
}
int cuInit(unsigned flags) {
  const char *fault = getenv("STAND_IN");
  if (fault && !strcmp(fault, "refuses")) return 304;
  if (fault && !strcmp(fault, "crashes")) abort();
  if (fault && !strcmp(fault, "hangs")) for (;;) pause();
  ioctl(0, 37ul, "");
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  for (int i = connections ? atoi(connections) : 8; i > 0; i--) make(0xc86f);
  *context = context;
  return 0;
}
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { return cuDevicePrimaryCtxRetain(context, device); }
int cuCtxDestroy_v2(void *context) { usleep(20000); return 0; }
int cuDevicePrimaryCtxReset_v2(int device) { return 0; }
int cuMemAlloc_v2(uint64_t *at, size_t bytes) { *at = 1; return 0; }
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) { return at == 1 && value == 7 && bytes == 1 << 20 ? 0 : 1; }
int cuCtxSynchronize(void) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1ul << 30; *total = 3ul << 30; return 0; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / "libdriver.so", folder / "driver.c"], check=True)
    return folder / "libdriver.so"


def rows(driver: Path, tmp_path: Path, *options: str, fault: str = "") -> tuple[int, list[dict[str, Any]]]:
    out = tmp_path / "out.json"
    command = [sys.executable, BENCHMARKS / "verify_contexts.py", "--out", out, "--driver", driver, "--device", "cpu", *options]
    done = subprocess.run(command, env=os.environ | {"STAND_IN": fault}, capture_output=True, text=True, check=False)
    assert out.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(out.read_text())["rows"]


def test_the_first_rows_are_written_although_there_is_no_time_for_all(driver: Path, tmp_path: Path) -> None:
    code, found = rows(driver, tmp_path, "--only", "driver", "--seconds", "1")
    assert code == 0
    first = found[0]
    assert (first["kind"], first["at_once"], first["setting"]) == ("bare", 4, "as it is")
    assert first["contexts"] >= 4
    assert first["per_second"] > 0
    assert list(first["ms"]) == ["library", "cuInit", "context", "first use", "exit"]
    assert first["gpu_mib"] == 2048
    assert len(first["cpu_ms"]) == 2


def test_the_calls_into_the_kernel_are_named_and_counted(driver: Path, tmp_path: Path) -> None:
    code, found = rows(driver, tmp_path, "--only", "calls", "--seconds", "5")
    assert code == 0
    plain, among, together = found
    assert any(" in 8, " in line and "context: make channel" in line for line in plain["calls"]), plain
    assert any(" in 8, " in line and "context: make channel" in line for line in among["calls"]), among
    assert any(" in 1, " in line and "context: make channel" in line for line in together["calls"]), together
    assert any(" in 1, " in line and "cuInit: UVM 37" in line for line in plain["calls"]), plain


@pytest.mark.parametrize(("fault", "said"), [("refuses", "cuInit gives 304"), ("crashes", "ended with -6")])
def test_what_goes_wrong_is_told_in_its_row(driver: Path, tmp_path: Path, fault: str, said: str) -> None:
    code, found = rows(driver, tmp_path, "--only", "driver", "--seconds", "1", fault=fault)
    assert code == 1
    assert all(said in str(row["failures"]) for row in found)
    assert all(row["contexts"] == 0 for row in found)


def test_one_that_hangs_is_ended_and_told(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import verify_contexts

    monkeypatch.setattr(verify_contexts, "CHILD_SECONDS", 0.3)
    monkeypatch.setenv("STAND_IN", "hangs")
    row = verify_contexts._measured(verify_contexts.Measurement("bare", 2, held=True), {"driver": str(driver), "device": "cpu"})
    assert row["failures"] == {"the process that holds a context: it did not get one": 1, "hangs": 2}


@pytest.mark.parametrize("ending", ["exit", "reset", "kill"])
def test_each_way_to_end_is_one(driver: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import verify_contexts

    monkeypatch.setattr(verify_contexts, "ROW_SECONDS", 0.05)
    options = {"driver": str(driver), "device": "cpu"}
    row = verify_contexts._measured(verify_contexts.Measurement("bare", 2, ending=ending, held=True), options)
    assert "failures" not in row
    assert ("reset" in row["ms"]) == (ending == "reset")


def test_contexts_one_after_the_other_in_one_process_are_counted(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import verify_contexts
    import verify_contexts_child

    monkeypatch.setattr(verify_contexts, "ROW_SECONDS", 0.01)
    monkeypatch.setattr(verify_contexts_child, "AGAIN_SECONDS", 0.1)
    row = verify_contexts._measured(verify_contexts.Measurement("again", 1), {"driver": str(driver), "device": "cpu"})
    assert row["contexts"] >= 2
    assert row["ms"]["each destroy"] >= 20


def test_all_settings_together_are_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from verify_contexts import PLANS, SETTINGS, TOGETHER

    for setting in SETTINGS.values():
        assert setting.items() <= SETTINGS[TOGETHER].items()
    planned = {(row.kind, row.at_once, row.setting) for plan in PLANS.values() for row in plan}
    for kind in ("bare", "torch"):
        assert {(kind, number, name) for number in (1, 4, 8, 16) for name in ("as it is", TOGETHER)} <= planned
    assert {name for _, _, name in planned} == set(SETTINGS)


def test_what_one_candidate_imports_and_starts_is_listed() -> None:
    command = [sys.executable, BENCHMARKS / "verify_parts.py", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("wrong: None") == 4
    assert done.stdout.count("imports: nothing\nprograms: none") == 4
    assert "work.py" in done.stdout
