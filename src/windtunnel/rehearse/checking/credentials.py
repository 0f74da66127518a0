"""What must be shown to others: a token where a model lies behind one, or the model in the local cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

from windtunnel.recipe import HuggingFaceModel

from .context import Context
from .types import Check, Evidence, Findings, Say

# Publishers whose models ask for a signed licence: every download needs a token.
GATED = ("meta-llama/", "google/gemma", "mistralai/", "bigcode/", "nvidia/llama")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_YES = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads it


def _credentials(context: Context, say: Say) -> Evidence:
    found, name = Findings(), _repository(context)
    assert name is not None
    cached = cached_snapshot(name)
    token, where = _token(found)
    offline = next((v for v in _OFFLINE if os.environ.get(v, "").upper() in _YES), None)
    gated = name.lower().startswith(GATED)
    if cached is None and offline:
        fix = f"unset {offline}, or fetch it first: hf download {name}"
        found.problem(f"{offline} forbids the network, and {name} is not in the cache {hub_cache()}", fix)
    elif cached is None and gated and token is None:
        fix = f"accept its licence at huggingface.co/{name}, then: hf auth login, or HF_TOKEN=hf_..."
        found.problem(f"{name} needs a token, and there is neither HF_TOKEN nor a saved one", fix)
    text = f"{name}: " + (
        f"in the cache at {cached}" if cached else "from huggingface.co" + (f", with the token of {where}" if token else "")
    )
    return found.evidence(text, {"repository": name, "gated": gated, "cached": cached is not None, "token": token is not None})


def _token(found: Findings) -> tuple[str | None, str]:
    """(the token, where it stands). It is never shown."""
    for variable in _TOKENS:
        value = os.environ.get(variable)
        if value is not None:
            return _looked_at(found, value, variable), variable
    file = Path(os.environ.get("HF_TOKEN_PATH") or _home() / "token").expanduser()
    try:
        return _looked_at(found, file.read_text(encoding="utf-8").rstrip("\n"), str(file)), str(file)
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError) as error:
        found.problem(f"the token in {file} cannot be read: {error}", "hf auth login")
        return None, ""


def _looked_at(found: Findings, value: str, where: str) -> str | None:
    if not re.fullmatch(r"hf_[A-Za-z0-9]{20,}|hf_oauth_\S+|hf_jwt_\S+", value):
        why = (
            "is empty" if not value.strip() else "has blanks around it" if value != value.strip() else "does not look like hf_..."
        )
        found.problem(f"the token of {where} {why}", "hf auth login, or copy it again from huggingface.co/settings/tokens")
        return None
    return value


def cached_snapshot(name: str) -> Path | None:
    """The folder of a repository's snapshot with a config.json in the local cache."""
    folder = hub_cache() / f"models--{name.replace('/', '--')}" / "snapshots"
    return next(iter(sorted(path.parent for path in folder.glob("*/config.json"))), None)


def hub_cache() -> Path:
    """Where huggingface_hub keeps what it fetched."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(named).expanduser() if named else _home() / "hub"


def _home() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or Path(shared) / "huggingface").expanduser()


def _repository(context: Context) -> str | None:
    """The id on Hugging Face that the recipe's model names; None where it is a file or a built-in name."""
    model = context.recipe.model
    if not isinstance(model, HuggingFaceModel) or Path(model.config).expanduser().exists():
        return None
    return model.config if re.fullmatch(r"[\w.-]+/[\w.-]+", model.config) and not model.config.endswith(".json") else None


def _remote(context: Context) -> bool:
    return _repository(context) is not None


CHECKS = (
    Check(
        "credentials",
        "what the model's publisher asks for is there",
        "hf auth login",
        _credentials,
        needs=("recipe",),
        applies=_remote,
    ),
)
