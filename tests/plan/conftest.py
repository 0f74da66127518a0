"""Plans here know nothing of the user's own rigs, prices and calibrations."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the configuration of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("WINDTUNNEL_RIGS", "WINDTUNNEL_PRICE", "WINDTUNNEL_CALIBRATION"):
        monkeypatch.delenv(name, raising=False)
