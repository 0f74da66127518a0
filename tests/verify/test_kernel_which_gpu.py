"""Judges are on the GPU that their caller would use, whatever CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

from pathlib import Path

import pytest

import windtunnel.rig
from windtunnel.rig import InstalledGPU
from windtunnel.verify import GpuStages, find_task, gpu_sandbox, has_gpu, kernel_sandbox, reference_sandbox
from windtunnel.verify.kernel import GpuMemory, gpu_seen
from windtunnel.verify.kernel.admission import SHARED
from windtunnel.verify.kernel.gpu_seen import SeenGPU, chosen, seen_gpu
from windtunnel.verify.sandbox import Sandbox, SandboxJob

NAME = "CUDA_VISIBLE_DEVICES"
# The driver's first one need not be the first file.
GPUS = [InstalledGPU(f"GPU-{letter * 8}-0000", number, (80 + number) << 30) for letter, number in (("a", 2), ("b", 0), ("c", 1))]
FILES = (0, 1, 2)


def seen(setting: str | None, index: int = 0, gpus: list[InstalledGPU] = GPUS, files: tuple[int, ...] = FILES) -> SeenGPU | None:
    return chosen(index, {} if setting is None else {NAME: setting}, gpus, files)


@pytest.mark.parametrize(
    ("setting", "index", "number", "uuid"),
    [
        ("0", 0, 2, GPUS[0].uuid),
        ("1", 0, 0, GPUS[1].uuid),
        (" 2 , 0", 0, 1, GPUS[2].uuid),
        ("2,0", 1, 2, GPUS[0].uuid),
        (GPUS[2].uuid, 0, 1, GPUS[2].uuid),
        ("GPU-bbb", 0, 0, GPUS[1].uuid),  # the beginning of one is enough
        (None, 1, 0, GPUS[1].uuid),
    ],
)
def test_a_judge_gets_the_file_and_the_name_of_the_gpu_that_is_visible(
    setting: str | None, index: int, number: int, uuid: str
) -> None:
    found = seen(setting, index)
    assert found is not None
    assert found.number == number
    assert found.environment == {NAME: uuid}
    assert found.memory_bytes == (80 + number) << 30
    assert found.devices == (f"/dev/nvidia{number}", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def test_the_first_of_all_is_taken_as_it_is() -> None:
    assert seen(None) == SeenGPU(2, None, 82 << 30)
    assert seen("MIG-1234") == SeenGPU(0)  # CUDA finds the part


@pytest.mark.parametrize("setting", ["", "-1", "none", "NoDevFiles", "3", "x,0", "GPU-ddd"])
def test_where_none_is_visible_none_is_found(setting: str) -> None:
    assert seen(setting) is None


def test_of_fewer_than_were_asked_for_none_is_found() -> None:
    assert seen("0,1", 2) is None
    assert seen(None, 3) is None


def test_without_the_drivers_list_a_number_is_that_of_a_file() -> None:
    assert seen(None, gpus=[]) == SeenGPU(0)
    assert seen("1", gpus=[]) == SeenGPU(1, "0")
    assert seen("GPU-aaa", gpus=[]) == SeenGPU(0)
    assert seen("3", gpus=[]) is None


def test_a_container_with_one_of_a_machines_gpus_finds_its_file() -> None:
    assert seen(None, gpus=GPUS[:1], files=(2,)) == SeenGPU(2, None, 82 << 30)
    assert seen(None, gpus=GPUS[:1], files=(5,)) == SeenGPU(5, None, 82 << 30)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_seen, "gpu_numbers", lambda: FILES)
    monkeypatch.setattr(windtunnel.rig, "installed_gpus", lambda: GPUS)
    monkeypatch.setenv(NAME, GPUS[2].uuid)


@pytest.mark.usefixtures("machine")
def test_everything_of_a_judge_is_on_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen_gpu() == SeenGPU(1, GPUS[2].uuid, 81 << 30)
    for make in (gpu_sandbox, reference_sandbox):
        with make() as box:
            assert box._setup["devices"] == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
            assert box._template.environment[NAME] == GPUS[2].uuid
    with kernel_sandbox() as box:
        stages = GpuStages(find_task("relu"), box, box)
        assert NAME not in box._template.environment
    assert stages.use == Path("/tmp/windtunnel-gpu1-use")
    assert stages.memory.capacity == GpuMemory.of(0).capacity == int(SHARED * (81 << 30))
    assert has_gpu()
    monkeypatch.setenv(NAME, "")
    assert not has_gpu()


@pytest.mark.usefixtures("machine")
def test_a_child_reads_that_name_and_not_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "2,0")
    gpu = seen_gpu()
    assert gpu is not None
    ask = {"source": f"import os\ndef f(): return os.environ['{NAME}']", "function": "f", "args": [], "kwargs": {"dict": []}}
    child = "windtunnel.verify.code.child"
    with Sandbox(preload=(child,), environment=gpu.environment, devices=gpu.devices) as box:
        outcome = box.run(SandboxJob(f"{child}:call", ask))
    assert outcome.message.get("value") == GPUS[2].uuid, outcome
