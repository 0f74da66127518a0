"""Detection within this process's limits, and the driver's names of GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.rig import detect_rig, load_catalog, measure_cpu_gflops
from windtunnel.rig.checks import _undriven
from windtunnel.rig.detect import cgroup_cpu_quota, cpu_cores
from windtunnel.rig.nvml import match_gpu, visible


def test_this_machine() -> None:
    rig = detect_rig(gpus=False)
    assert rig.rung == "cpu"
    assert rig.gpus == 0
    assert 1 <= rig.cpu_cores <= (os.cpu_count() or 1)
    assert rig.ram_gib > 0.25
    assert rig.disk_free_gib is not None
    assert rig.cpu_gflops is not None
    assert rig.cpu_gflops > 0.1


def test_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    rig = detect_rig(tmp_path / "runs" / "later", gpus=False, measure_cpu=False)
    assert rig.disk_free_gib is not None
    assert rig.cpu_gflops is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_affinity_is_respected() -> None:
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); from windtunnel.rig import detect_rig; print(detect_rig().cpu_cores)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"


def test_cgroup_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cgroup_cpu_quota(tmp_path) == 0.5
    assert cpu_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cgroup_cpu_quota(tmp_path) is None


def test_measured_speed_is_plausible() -> None:
    assert 0.1 < measure_cpu_gflops() < 100_000


def test_speed_is_measured_once_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    first = detect_rig(gpus=False).cpu_gflops
    assert detect_rig(gpus=False).cpu_gflops == first
    file = tmp_path / "cache" / "cpu-speed.json"
    for damaged in ("", "[1]", '{"another machine": 3.0}', '{"a": "b"}'):
        file.write_text(damaged)
        assert (detect_rig(gpus=False).cpu_gflops or 0) > 0
    monkeypatch.setenv("WINDTUNNEL_CACHE", "/dev/null/nowhere")
    assert (detect_rig(gpus=False).cpu_gflops or 0) > 0, "a cache that cannot be written costs a measurement, nothing else"


@pytest.mark.parametrize(
    ("driver", "memory", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100"),
        ("NVIDIA H100 PCIe", 79.6, "H100-PCIe"),
        ("NVIDIA H100 NVL", 93.6, "H100-NVL"),
        ("NVIDIA H200", 140.4, "H200"),
        ("NVIDIA GH200 480GB", 95.6, "GH200"),
        ("NVIDIA A100-SXM4-40GB", 40.0, "A100-40"),
        ("NVIDIA A100-SXM4-80GB", 80.0, "A100-80"),
        ("NVIDIA A100 80GB PCIe", 80.0, "A100-80"),
        ("NVIDIA A10G", 22.5, "A10G"),
        ("NVIDIA L40S", 45.0, "L40S"),
        ("NVIDIA GeForce RTX 3090", 24.0, "RTX3090"),
        ("NVIDIA GeForce RTX 4090", 24.0, "RTX4090"),
        ("NVIDIA B200", 179.0, "B200"),
        ("NVIDIA GeForce GTX 1080", 8.0, None),
    ],
)
def test_driver_names(driver: str, memory: float, name: str | None) -> None:
    assert match_gpu(driver, memory, load_catalog()) == name


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, [0, 1, 2]), ("", []), ("-1", []), ("2,0", [2, 0]), ("0,7,1", [0]), ("GPU-bb", [1]), ("GPU-xx", [])],
)
def test_cuda_visible_devices(setting: str | None, expected: list[int]) -> None:
    assert visible(["GPU-aa", "GPU-bb", "GPU-cc"], setting) == expected


def test_no_torch_at_import() -> None:
    code = "import sys, windtunnel.rig, windtunnel.plan; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_gpus_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    rig = detect_rig(measure_cpu=False)
    assert rig.gpu is not None
    assert rig.gpus == torch.cuda.device_count()
    assert rig.gpu.capability == torch.cuda.get_device_capability()
    assert rig.gpu.memory_gib == pytest.approx(torch.cuda.get_device_properties(0).total_memory / 2**30, rel=0.03)


def test_a_gpu_that_no_driver_shows_is_named(tmp_path: Path) -> None:
    """As on an image without a driver: what computes is on the bus, and nothing answers for it."""
    for name, vendor, kind in (("0000:00:02.0", "0x8086", "0x030000"), ("0000:01:00.0", "0x10de", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert _undriven(tmp_path, tmp_path / "nvidia0") is None  # a screen's own card may be without a driver
    (tmp_path / "nvidia0").touch()
    assert "nvidia0" in str(_undriven(tmp_path, tmp_path / "nvidia0"))
    (tmp_path / "0000:17:00.0").mkdir()
    (tmp_path / "0000:17:00.0" / "vendor").write_text("0x10de\n")
    (tmp_path / "0000:17:00.0" / "class").write_text("0x030200\n")
    assert _undriven(tmp_path, tmp_path / "nvidia0") == "an NVIDIA GPU at PCI 0000:17:00.0"
