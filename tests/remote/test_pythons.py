"""The Python of a machine that the package is installed with; those that will not do are named, with what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from windtunnel.remote.bring import install_script
from windtunnel.remote.probes import find_python

OLD = "import sys; sys.version_info = (3, 10, 4, 'final', 0)"
NO_VENV = "import sys; sys.modules['venv'] = None"
NO_ENSUREPIP = "import sys; sys.modules['ensurepip'] = None"
NO_PIP = f"{NO_ENSUREPIP}; sys.modules['pip'] = None"
OLD_PIP = f"{NO_ENSUREPIP}; import types; sys.modules['pip'] = types.SimpleNamespace(__version__='20.3.4')"


def machine(place: Path, pythons: Mapping[str, str | None]) -> Path:
    """A folder of programs with these interpreters: this one, after a line of its own; None: it does not run."""
    place.mkdir()
    for name, first in pythons.items():
        own = place / f"{name}.d"
        own.mkdir()
        (own / "sitecustomize.py").write_text(first or "")
        run = f'PYTHONPATH={own} exec {sys.executable} "$@"' if first is not None else "exit 127"
        (place / name).write_text(f"#!{shutil.which('sh')}\n{run}\n")
        (place / name).chmod(0o755)
    return place


def ask(path: Path, python: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(shutil.which("sh")), "-c", find_python(python)], env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3": ""}, "python3"),
        ({"python3.12": NO_VENV, "python3.11": "", "python3": ""}, "python3.11"),
        ({"python3.12": None, "python3": NO_ENSUREPIP}, "python3"),  # Debian without python3-venv: its pip is enough
    ],
)
def test_the_first_that_will_do_is_taken(pythons: dict[str, str | None], chosen: str, tmp_path: Path) -> None:
    path = machine(tmp_path / "bin", pythons)
    done = ask(path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(path / chosen), "")


@pytest.mark.parametrize(
    ("pythons", "said"),
    [
        ({}, "none of python3.12 "),
        ({"python3": OLD}, "/python3 is Python 3.10"),
        ({"python3": NO_VENV}, " without venv"),
        ({"python3": NO_PIP}, " with neither ensurepip nor a pip of 22.3 or newer"),
        ({"python3": OLD_PIP}, " with neither ensurepip nor a pip of 22.3 or newer"),
        ({"python3.11": None, "python3": OLD}, "/python3.11 does not run; "),
    ],
)
def test_what_will_not_do_is_named_with_what_to_do(pythons: dict[str, str | None], said: str, tmp_path: Path) -> None:
    path = machine(tmp_path / "bin", pythons)
    done = ask(path)
    error, fix = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert error.startswith("error: no Python 3.11 to 3.13 with venv there: ")
    assert said in error
    assert all(f"{path}/{name} " in error for name in pythons)
    assert "  fix: there: sudo apt install python3 python3-venv" in fix


def test_one_that_is_named_is_the_only_one_that_is_looked_at(tmp_path: Path) -> None:
    path = machine(tmp_path / "bin", {"python3": "", "mine": OLD})
    for python, said in ((str(path / "mine"), f"{path}/mine is Python 3.10"), ("/no/python", "/no/python is not there")):
        done = ask(path, python)
        assert (done.returncode, said in done.stderr) == (1, True)


def test_a_python_without_ensurepip_makes_an_environment_that_works(tmp_path: Path) -> None:
    path = machine(tmp_path / "bin", {"python3": NO_ENSUREPIP})
    package = tmp_path / "package"
    package.mkdir()
    (package / "brought.py").write_text("here = True\n")
    (package / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'brought'\nversion = '1'\n[tool.setuptools]\npy-modules = ['brought']\n"
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, package], check=True
    )
    (wheel,) = tmp_path.glob("brought-*.whl")
    script = install_script(str(path / "python3"), str(tmp_path / "made" / "it"), str(wheel), str(tmp_path / "current"))
    subprocess.run(["sh", "-c", script], check=True)
    subprocess.run([tmp_path / "current" / "bin" / "python", "-c", "import brought; assert brought.here"], check=True)
