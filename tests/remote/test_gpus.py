"""A machine that does not show the GPUs which a job needs is refused by its shell, with why, before anything is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from windtunnel.remote.probes import require_gpus


@pytest.mark.parametrize(
    ("listed", "cards", "said"),
    [
        (8, 8, None),
        (8, 0, None),  # a container need not show the bus
        (None, 0, "GPUs there: 0; --on asked for 8"),
        (4, 4, "GPUs there: 4; --on asked for 8"),
        (None, 8, "NVIDIA GPUs there: 8, of which the driver shows 0: the image has no driver that knows them"),
        (0, 8, "NVIDIA GPUs there: 8, of which the driver shows 0"),
    ],
)
def test_gpus_are_counted_and_a_missing_driver_is_named(tmp_path: Path, listed: int | None, cards: int, said: str | None) -> None:
    tools, bus = tmp_path / "tools", tmp_path / "bus with a space"
    tools.mkdir()
    for name in ("cat", "grep"):  # and nothing else: this machine's own nvidia-smi is not asked
        (tools / name).symlink_to(str(shutil.which(name)))
    if listed is not None:
        lines = "".join(f"echo 'GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})'\n" for i in range(listed))
        (tools / "nvidia-smi").write_text(f"#!{shutil.which('sh')}\n{lines or 'echo NVIDIA-SMI has failed; exit 9'}\n")
        (tools / "nvidia-smi").chmod(0o755)
    for number in range(cards + 2):  # and two devices that compute nothing: NVIDIA's audio, another one's display
        (bus / f"0000:{number:02}:00.0").mkdir(parents=True)
        vendor = "0x1af4" if number == cards + 1 else "0x10de"
        (bus / f"0000:{number:02}:00.0" / "vendor").write_text(f"{vendor}\n")
        (bus / f"0000:{number:02}:00.0" / "class").write_text("0x040300\n" if number == cards else "0x030200\n")
    done = subprocess.run(
        [str(shutil.which("sh")), "-c", require_gpus(8, bus)], env={"PATH": str(tools)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if said is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        error, fix = done.stderr.splitlines()
        assert (done.returncode, error.startswith(f"error: {said}"), fix.startswith("  fix: take ")) == (1, True, True)
