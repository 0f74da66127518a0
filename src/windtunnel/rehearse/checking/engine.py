"""Whether vLLM, where it is installed, knows the model: asked of its registry, which needs no GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from windtunnel.recipe import HuggingFaceModel

from .context import Context
from .reward_plugin import is_rl
from .types import Check, CheckFailed, Evidence, Say

SECONDS = 90.0
PROGRAM = (
    "import json, vllm; from vllm import ModelRegistry; "
    "print(json.dumps([getattr(vllm, '__version__', '?'), sorted(ModelRegistry.get_supported_archs())]))"
)


def engine(context: Context, say: Say) -> Evidence:
    """Look the architecture up."""
    say("transformers names the architecture")
    name = _architecture(context)
    if importlib.util.find_spec("vllm") is None:
        text = f"vLLM is not installed here: whether it knows {name} cannot be told"
        return Evidence(text, {"architecture": name}, absent="a machine with vLLM, or: pip install vllm")
    say("importing vLLM")
    found = _registry()
    if isinstance(found, str):
        if context.here.gpu:
            raise CheckFailed(f"vLLM cannot be imported: {found}", "install the vLLM that belongs to this torch")
        return Evidence(f"vLLM cannot be imported here: {found}", {"architecture": name}, absent="a machine with a GPU")
    version, known = found
    facts = {"architecture": name, "vllm": version, "known": name in known}
    if name not in known:
        warning = (
            f"vLLM {version} has no {name} of its own: it may run it through transformers, more slowly, or not at all; "
            f"choose another model.config, or a vLLM that has it"
        )
        return Evidence(f"vLLM {version} knows {len(known)} architectures", facts, warnings=[warning])
    return Evidence(f"vLLM {version} knows {name}", facts)


def _architecture(context: Context) -> str:
    """The class that transformers and vLLM name alike."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from windtunnel.model import causal_shape

    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    name: str = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[causal_shape(model.config).family]
    return name


def _registry() -> tuple[str, list[str]] | str:
    """vLLM's version and the architectures that it knows; or why it cannot be asked. In a process of its own: it is large."""
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS:.0f} s"
    lines = [line for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return f"{lines[-1][:200] if lines else 'no word'} (exit code {done.returncode})"
    try:
        version, known = json.loads(lines[-1])
    except (ValueError, IndexError, TypeError):
        return "its registry answered something else than names"
    return str(version), list(known)


CHECKS = (
    Check(
        "engine", "vLLM knows the model's architecture", "look at model.config", engine,
        shows="start", needs=("recipe", "torch", "model"), applies=is_rl,
    ),
)  # fmt: skip
