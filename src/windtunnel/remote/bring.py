"""What a machine needs to train a recipe, brought there: the package, an environment, the recipe and the files that it names."""

from __future__ import annotations

import glob
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import windtunnel
from windtunnel.recipe import PLACES, Recipe, UserError, dump_recipe

from .host import Host
from .probes import find_python

EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure", "sftp": "sftp"}
# The new environment sees what the interpreter has already, also where that is itself an environment: images come with torch.
_LEND = """
import pathlib, site, sys, sysconfig
place = pathlib.Path(sys.argv[1])
target = next(place.glob('lib/python3*/site-packages'))
if sys.prefix != sys.base_prefix:
    (target / 'lent.pth').write_text(sysconfig.get_path('purelib') + '\\n')
"""


@dataclass(frozen=True)
class Brought:
    """What is on the machine now. Attributes: python: the interpreter there. program: the command `windtunnel` there."""

    python: str
    program: str


def bring_package(host: Host, say: Callable[[str], None], *, python: str | None = None, mirror: str | None = None) -> Brought:
    """Install this very version of the package there, once for each content.

    Args:
        host: where to.
        say: told what is done.
        python: the interpreter there; None: the first suitable one.
        mirror: the address of the run's mirror: what reaches such a store is installed too.

    Raises:
        UserError: no suitable Python there, no network for what is missing, no source here to build from.
    """
    found = host.run(find_python(python)).strip()
    with tempfile.TemporaryDirectory(prefix="wt-wheel-") as place:
        wheel = build_wheel(Path(place))
        extra = EXTRAS.get((mirror or "").partition("://")[0], "")
        # By content, so that a changed source is installed beside the old one, which may be training.
        key = hashlib.sha256(wheel.read_bytes() + f"{found} {extra}".encode()).hexdigest()[:12]
        folder = f"{host.root}/installed/{key}"
        brought = Brought(f"{folder}/bin/python", f"{folder}/bin/windtunnel")
        if host.has("-f", f"{folder}/complete"):
            return brought
        say(f"installing windtunnel {windtunnel.__version__} on {host.address}, with {found}")
        host.push([wheel], f"{host.root}/wheels")
        remote = f"{host.root}/wheels/{wheel.name}" + (f"[{extra}]" if extra else "")
        q = shlex.quote
        host.run(install_script(q(found), q(folder), q(remote), q(f"{host.root}/current")))
    return brought


def install_script(python: str, folder: str, package: str, current: str) -> str:
    """Return a script that installs the package in an environment which sees what the interpreter has already.

    Args:
        python: the interpreter; like the others a word of the shell.
        folder: of the environment.
        package: the wheel, with its extras.
        current: the link to the folder, by which the package is found again.
    """
    # The interpreter's own pip installs into the environment where it knows how: another one takes seconds to be put there.
    return (
        f"set -e; rm -rf {folder}; mkdir -p $(dirname {folder}); {python} -m venv --system-site-packages --without-pip {folder}\n"
        f"set -- {python} -m pip --python {folder}/bin/python\n"
        f'if ! "$@" --version > /dev/null 2>&1; then\n'
        f"  {python} -m venv --system-site-packages {folder}; set -- {folder}/bin/python -m pip\nfi\n"
        f"{python} -c {shlex.quote(_LEND)} {folder}\n"
        f'"$@" install --quiet --disable-pip-version-check {package} 1>&2\n'
        f"touch {folder}/complete; ln -sfn {folder} {current}\n"
    )


def current(host: Host) -> Brought:
    """Return what was installed there last. Raises UserError where nothing was."""
    folder = f"{host.root}/current"
    if not host.has("-x", f"{folder}/bin/windtunnel"):
        raise UserError(f"nothing was launched on {host.address}", f"windtunnel launch charlm --to {host.address}")
    return Brought(f"{folder}/bin/python", f"{folder}/bin/windtunnel")


def build_wheel(place: Path) -> Path:
    """Build the package that runs here as a wheel in a folder. Raises UserError where its source is not here."""
    source = Path(windtunnel.__file__).resolve().parents[2]
    if not (source / "pyproject.toml").is_file():
        raise UserError(
            "this windtunnel was not installed from its source, from which it could be brought to another machine",
            "install it from a checkout: pip install -e .",
        )
    copy = place / "source"
    # A copy: building in the checkout would leave build/ and egg-info in it.
    shutil.copytree(source / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(source / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(place), str(copy)]
    # The same content is the same file, whenever it is built.
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"}, check=False
    )  # fmt: skip
    built = list(place.glob("windtunnel-*.whl"))
    if done.returncode or not built:
        last = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise UserError(f"the package cannot be built: {last}", "pip install 'setuptools>=77'")
    return built[0]


def bring_recipe(host: Host, recipe: Recipe, job: str, say: Callable[[str], None]) -> str:
    """Bring a recipe and the files and folders that it names to a job's folder there; returns the recipe's file there.

    Raises:
        UserError: the connection was lost, or the disk there is full.
    """
    places = {path: f"{job}/files/{number}/{path.name}" for number, path in enumerate(sorted(set(named_files(recipe))))}
    for path, there in places.items():
        say(f"bringing {path}")
        host.push([path], there.rpartition("/")[0])
    text = dump_recipe(moved(recipe, places))
    with tempfile.TemporaryDirectory(prefix="wt-job-") as place:
        file = Path(place) / "recipe.yaml"
        file.write_text(text, encoding="utf-8")
        host.push([file], job)
    return f"{job}/recipe.yaml"


def named_files(recipe: Recipe) -> Iterator[Path]:
    """Yield the files and folders here that a recipe names, absolute: data, a tokenizer, a model, weights to begin with."""
    for key, value in _leaves(recipe.model_dump(mode="json")):
        if key == "files":
            for name in sorted(glob.glob(os.path.expanduser(value))) or [value]:
                if os.path.exists(name):
                    yield Path(os.path.abspath(name))
        elif key in PLACES and os.path.exists(os.path.expanduser(value)):
            yield Path(os.path.abspath(os.path.expanduser(value)))


def moved(recipe: Recipe, places: dict[Path, str]) -> Recipe:
    """Return the recipe with those files and folders named where they are there."""

    def change(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: change(item, name) for name, item in value.items()}
        if isinstance(value, list) and key == "files":
            # Patterns are expanded here: what matches there may be something else.
            names = [n for v in value for n in (sorted(glob.glob(os.path.expanduser(v))) or [v])]
            return [places.get(Path(os.path.abspath(name)), name) for name in names]
        if isinstance(value, list):
            return [change(item) for item in value]
        if isinstance(value, str) and key in PLACES:
            return places.get(Path(os.path.abspath(os.path.expanduser(value))), value)
        return value

    return Recipe.model_validate(change(recipe.model_dump(mode="json"))) if places else recipe


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of a recipe with the keys that they belong to."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, key)
    elif isinstance(value, str):
        yield key, value
