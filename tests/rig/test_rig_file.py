"""Rigs described by a file: quantities with units, and what is said where one is missing."""

from pathlib import Path

import pytest

from windtunnel.recipe import UserError
from windtunnel.rig import parse_rig


@pytest.fixture(autouse=True)
def no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WINDTUNNEL_RIGS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my-rig.yaml"
    path.write_text(text)
    return path


def test_a_gpu_of_the_catalog_with_own_numbers(tmp_path: Path) -> None:
    path = write(
        tmp_path, "{gpu: h100-sxm, gpus_per_node: 8, nodes: 2, ram: 2 TiB, disk: 10 TB, network: 3200 Gbit/s, price: $50/h}"
    )
    rig = parse_rig(str(path))
    assert (rig.name, rig.gpus, rig.nodes, rig.gpu and rig.gpu.name) == ("my-rig", 16, 2, "H100")
    assert rig.ram_gib == 2048
    assert rig.disk_free_gib == pytest.approx(10e12 / 2**30)
    assert rig.network_gbs == pytest.approx(400)
    assert rig.dollars_per_hour == 50
    assert parse_rig(f"{path}@$60/h").dollars_per_hour == 60
    assert parse_rig(f"{path} at $60/h").dollars_per_hour == 60


def test_a_gpu_of_ones_own(tmp_path: Path) -> None:
    gpu = "{name: L4, memory: 22 GiB, bf16: 121 TFLOP/s, bandwidth: 300 GB/s, capability: [8, 9]}"
    rig = parse_rig(str(write(tmp_path, f"gpu: {gpu}\nlink: 32 GB/s")))
    assert rig.gpu is not None
    assert (rig.gpu.memory_gib, rig.gpu.bf16_tflops, rig.gpu.bandwidth_gbs, rig.gpus) == (22, 121, 300, 1)
    assert rig.dollars_per_hour is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{gpu: H100, ram: 512}", ("ram", "512 without one", "GiB", "1 TiB")),
        ("{gpu: H100, network: 400}", ("network", "GB/s", "Gbit/s")),
        ("{gpu: H100, network: 400 GB}", ("network", "'400 GB'", "GB/s")),
        ("{gpu: H100, price: 50}", ("price", "$50/h")),
        ("{gpu: H100, price: $-5/h}", ("price", "above zero")),
        ("{gpu: {name: L4, memory: 22, bf16: 121 TFLOP/s, bandwidth: 300 GB/s, capability: [8, 9]}}", ("gpu.memory", "GiB")),
        ("{gpu: {name: L4, memory: 22 GiB, bandwidth: 300 GB/s, capability: [8, 9]}}", ("gpu.bf16", "missing", "TFLOP/s")),
        ("{gpu: H10}", ("H10", "H100")),
        ("{gpus_per_node: 8}", ("gpu: missing", "gpu: H100")),
        ("{gpu: H100, gpus: 8}", ("gpus: unknown key", "gpu")),
        ("{gpu: H100, nodes: 0}", ("nodes", "at least 1")),
        ("[1, 2]", ("mapping",)),
        ("{gpu: [", ("not valid YAML",)),
    ],
)
def test_faults_name_file_key_and_unit(tmp_path: Path, text: str, says: tuple[str, ...]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as error:
        parse_rig(str(path))
    assert "my-rig.yaml" in str(error.value)
    for word in says:
        assert word in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        parse_rig(str(tmp_path / "none.yaml"))
