"""Check the interpreter and the packages: versions in the ranges that are declared, and everything imports."""

from __future__ import annotations

import platform
import sys
import time
import tomllib
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say

SLOW_SECONDS = 15.0
# Names of modules where they are not the package's own.
_MODULES = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml", "prometheus-client": "prometheus_client", "scikit-learn": "sklearn"}
_HUGGING_FACE = ("peft", "transformers")
_ROOMS = ("recipe", "rig", "model", "data", "plan", "run", "train", "evaluate", "serve", "launch", "watch")


def _python(context: Context, say: Say) -> Evidence:
    from packaging.specifiers import SpecifierSet

    found, own = Findings(), declared()
    version = platform.python_version()
    # prereleases: a release candidate of an allowed Python is allowed.
    if own and not SpecifierSet(own.python).contains(version, prereleases=True):
        found.problem(
            f"Python {version}; windtunnel needs {own.python}", "make the environment anew: make setup PYTHON=python3.12"
        )
    if sys.maxsize < 2**32:
        found.problem("a 32-bit Python: there is no torch for it", "install a 64-bit Python")
    if not __debug__:
        found.warn("PYTHONOPTIMIZE or -O switches assertions off: broken invariants would go unnoticed; unset it")
    if sys.getfilesystemencoding().lower() not in ("utf-8", "utf8"):
        found.warn(f"file names are {sys.getfilesystemencoding()}, not UTF-8: set LC_ALL=C.UTF-8 or PYTHONUTF8=1")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        found.warn("a Python without the GIL: torch and tokenizers are not tested with it")
    return found.evidence(
        f"Python {version} on {platform.system()} {platform.release()}", {"python": version, "platform": platform.platform()}
    )


def _packages(context: Context, say: Say) -> Evidence:
    own = declared()
    if own is None:
        return Evidence("neither installed nor beside a pyproject.toml", absent="install it: pip install windtunnel")
    say("reading versions")
    found = Findings()
    seen, wrong = conflicts(own.requirements)
    for conflict in wrong:
        _report(found, conflict)
    torch = seen.get("torch", "none")
    text = (
        f"{len(own.requirements)} direct and {len(seen) - len(own.requirements)} further packages in their ranges; torch {torch}"
    )
    return found.evidence(text, {"versions": {name: seen.get(name) for name in sorted(own.names)}})


def _report(found: Findings, conflict: Conflict) -> None:
    what = f"{conflict.package} {conflict.version or 'is missing'}; {conflict.wanted_by} needs {conflict.wanted}"
    fix = f"pip install '{conflict.package}{conflict.wanted}'"
    if conflict.direct:
        found.problem(what, fix)
    else:
        found.warn(f"{what}: {fix}")


def _torch(context: Context, say: Say) -> Evidence:
    say("importing torch")
    began = time.monotonic()
    try:
        import torch
    except Exception as error:
        raise CheckFailed(
            f"torch cannot be imported: {type(error).__name__}: {error}", "pip install --force-reinstall torch"
        ) from None
    seconds = time.monotonic() - began
    found = Findings()
    a = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    if (a @ a).sum().item() != 3920.0:  # the i-th column's sum times the i-th row's, summed
        found.problem("torch multiplies two small matrices wrongly", "pip install --force-reinstall torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        found.problem("this torch has no gloo: several ranks cannot work together", "install torch from pytorch.org's wheels")
    if seconds > SLOW_SECONDS:
        found.warn(f"importing torch took {seconds:.0f} s: put the environment on a local disk")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads()}
    return found.evidence(f"torch {torch.__version__} ({build}), {torch.get_num_threads()} threads", facts)


def _imports(context: Context, say: Say) -> Evidence:
    found, own = Findings(), declared()
    began = time.monotonic()
    names = [_MODULES.get(name, name.replace("-", "_")) for name in sorted(own.names if own else ())]
    # They take seconds to import, and a GPT of our own needs neither.
    for name in [name for name in names if name not in _HUGGING_FACE or not context.is_gpt]:
        say(name)
        _import(found, name)
    for room in _ROOMS:
        say(f"windtunnel.{room}")
        _import(found, f"windtunnel.{room}")
    for path in _shadows(set(names)):
        fix = f"rename {path}; torchrun and `python -m` look in the current folder first"
        found.problem(f"{path} hides the module {path.stem} from Python", fix)
    seconds = time.monotonic() - began
    return found.evidence(f"{len(names) + len(_ROOMS)} modules in {seconds:.1f} s", {"seconds": round(seconds, 2)})


def _import(found: Findings, name: str) -> None:
    try:
        module = import_module(name)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        found.problem(f"{name} cannot be imported: {text}", f"pip install --force-reinstall {name.partition('.')[0]}")
        return
    file = getattr(module, "__file__", None)
    if file is None:
        found.problem(f"{name} is an empty folder at {list(getattr(module, '__path__', []))}", "remove or rename that folder")


def _shadows(names: set[str]) -> list[Path]:
    """Files in the current folder and in PYTHONPATH's that Python takes for modules of its own or of ours."""
    import os

    folders = [Path.cwd(), *(Path(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part)]
    installed = {Path(part).resolve() for part in sys.path if part.endswith(("site-packages", "dist-packages"))}
    # These three are no library: nobody's program breaks where they are hidden.
    known = names | (sys.stdlib_module_names - {"__main__", "this", "antigravity"})
    found = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir()):
        if folder in installed or folder == Path(metadata.__file__).resolve().parents[2]:
            continue
        # `pip install --target` makes folders of whole packages: what is installed there hides nothing by accident.
        placed = {name for made in metadata.distributions(path=[str(folder)]) for name in _top_names(made)}
        found += [path for path in folder.glob("*.py") if path.stem in known - placed]
        found += [path for path in folder.glob("*/__init__.py") if path.parent.name in names - placed]
    return [path.parent if path.name == "__init__.py" else path for path in sorted(found)]


def _top_names(made: metadata.Distribution) -> set[str]:
    """Modules and packages that an installed distribution's own list of files names."""
    return {file.parts[0].removesuffix(".py") for file in made.files or ()}


# What the installed package declares to need, and what does not fit.

PACKAGE = "windtunnel"


@dataclass(frozen=True)
class Declared:
    """Ranges of the interpreter and of the packages, without those of extras."""

    python: str
    requirements: tuple[Requirement, ...]

    @property
    def names(self) -> set[str]:
        """Canonical names of the packages."""
        return {str(canonicalize_name(requirement.name)) for requirement in self.requirements}


@dataclass(frozen=True)
class Conflict:
    """A package that is missing (version None) or outside the range that another needs."""

    package: str
    version: str | None
    wanted: str
    wanted_by: str
    direct: bool


def declared() -> Declared | None:
    """Return what the package needs: by installed metadata, else by the source tree's pyproject.toml; None: neither is there."""
    try:
        found = metadata.metadata(PACKAGE)
        python, texts = str(found["Requires-Python"] or ""), metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        file = Path(__file__).parents[3] / "pyproject.toml"
        try:
            project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
            python, texts = project["requires-python"], project["dependencies"]
        except (OSError, ValueError, KeyError):
            return None
    return Declared(python, tuple(_applying(texts)))


def conflicts(requirements: tuple[Requirement, ...]) -> tuple[dict[str, str], list[Conflict]]:
    """Return (versions of all that is needed directly or by what is, what does not fit)."""
    versions: dict[str, str] = {}
    wrong: list[Conflict] = []
    waiting = [(requirement, PACKAGE) for requirement in requirements]
    looked: set[str] = set()
    while waiting:
        requirement, by = waiting.pop(0)
        name = str(canonicalize_name(requirement.name))
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(Conflict(name, None, str(requirement.specifier), by, by == PACKAGE))
            continue
        versions[name] = version
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(Conflict(name, version, str(requirement.specifier), by, by == PACKAGE))
        # A package is asked for with and without extras, which need more.
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key not in looked:
            looked.add(key)
            waiting += [(further, name) for further in _applying(metadata.requires(name) or [], requirement.extras)]
    return versions, wrong


def _applying(texts: list[str], extras: set[str] | None = None) -> list[Requirement]:
    """Return the requirements whose markers hold on this machine."""
    found = []
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            found.append(requirement)
    return found


CHECKS = (
    Check("python", "the interpreter is one that the package supports", "make setup PYTHON=python3.12", _python),
    Check(
        "packages",
        "every package is there, in the version that is needed",
        "make setup, or: pip install -U windtunnel",
        _packages,
    ),
    Check("torch", "torch loads and computes", "pip install --force-reinstall torch", _torch, limit=120.0),
    Check(
        "imports",
        "everything else that a run imports can be imported, and is what it seems",
        "pip install --force-reinstall what is named",
        _imports,
        needs=("recipe", "torch"),
        limit=120.0,
    ),
)  # fmt: skip
