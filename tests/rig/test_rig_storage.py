"""Where runs and caches live on rented machines."""

from pathlib import Path

import pytest

from windtunnel.rig.storage import Mount, advise, file_system, mounts, volumes


@pytest.fixture
def pod(tmp_path: Path) -> list[Mount]:
    """A rented pod: its own layer, a network volume, and what every container has."""
    for name in ("workspace", "scratch", "etc"):
        (tmp_path / name).mkdir()
    return [
        Mount("/", "overlay"),
        Mount("/proc", "proc"),
        Mount("/etc/hosts", "ext4"),
        Mount(str(tmp_path / "workspace"), "nfs4"),
    ]


def test_a_containers_layer_is_no_place_for_runs(pod: list[Mount], tmp_path: Path) -> None:
    (said,) = advise(tmp_path / "runs", tmp_path / "cache", pod)
    assert "gone when the pod is" in said
    assert f"--root {tmp_path}/workspace/runs" in said
    (alone,) = advise(tmp_path / "runs", tmp_path / "cache", [Mount("/", "overlay")])
    assert "no volume is mounted" in alone


def test_a_disk_of_the_machine_is_named_before_the_networks(pod: list[Mount], tmp_path: Path) -> None:
    table = [*pod, Mount(str(tmp_path / "scratch"), "xfs"), Mount(str(tmp_path / "etc"), "ext4", writable=False)]
    assert volumes(table) == [str(tmp_path / "scratch"), str(tmp_path / "workspace")]


def test_a_volume_keeps_runs_and_is_too_slow_for_caches(pod: list[Mount], tmp_path: Path) -> None:
    volume = tmp_path / "workspace"
    runs, cache = advise(volume / "runs", volume / "cache", pod)
    assert "slow" in runs
    assert "WINDTUNNEL_CACHE" in cache
    assert advise(tmp_path / "runs", tmp_path / "cache", [Mount("/", "ext4")]) == []


def test_the_mount_that_lies_deepest_holds_a_folder(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/a / ext4 rw 0 0\nnone {tmp_path} tmpfs rw,size=4k 0 0\n/dev/b /mnt xfs ro 0 0\nbroken\n")
    found = mounts(table)
    assert file_system(tmp_path / "runs", found) == "tmpfs"
    assert file_system(Path("/somewhere"), found) == "ext4"
    assert not found[2].writable
    assert "gone after a reboot" in advise(tmp_path, Path("/c"), found)[0]
    assert mounts(tmp_path / "none") == []
