"""config.json of a Hugging Face model: read from disk, and its keys checked as they are used; no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

# A config.json has a few kilobytes; more is something else, such as weights.
LARGEST = 16 * 2**20
# No dimension of a model comes near.
LARGEST_SIZE = 10**8


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in a config.json, or in the one of a folder.

    Raises:
        UserError: missing, unreadable, not JSON, or not an object.
    """
    expected = "give a Hugging Face model's config.json, its folder, or a built-in name"
    file = path
    try:
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():  # nor a pipe, which would never end
            raise UserError(f"model.config: {path} {'has no config.json' if path.is_dir() else 'is no file'}", expected)
        size = file.stat().st_size
        if size > LARGEST:
            raise UserError(f"model.config: {file} has {size / 2**20:.0f} MiB, too much for a config.json", expected)
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"model.config: cannot read {file}: {error.strerror or error}", expected) from None
    except UnicodeDecodeError:
        raise UserError(f"model.config: {file} is not text", expected) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"model.config: {file} is not JSON: {error}", expected) from None
    if not isinstance(content, dict):
        raise UserError(f"model.config: {file} holds a {_kind(content)}, not an object of keys", expected)
    return content


class Keys:
    """The keys of one config.json over a family's defaults; whatever cannot be is a UserError with file and key."""

    def __init__(self, source: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.source = source
        self.values = values
        self.defaults = defaults

    def fail(self, key: str, problem: str, fix: str) -> UserError:
        """The error to raise about a key."""
        return UserError(f"{self.source}: {key} {problem}", fix)

    def name_of(self, *keys: str) -> str:
        """Which of a key's spellings the file uses; the first where it uses none."""
        return next((key for key in keys if self.values.get(key) is not None), keys[0])

    def size(self, *keys: str, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A whole number from `least` to `most`, under any of the key's spellings; it must be there or have a default."""
        value = self.optional_size(*keys, least=least, most=most)
        if value is None:
            raise self.fail(keys[0], "is missing", f"add {keys[0]}, a whole number, as the model's authors publish it")
        return value

    def optional_size(self, *keys: str, least: int = 1, most: int = LARGEST_SIZE) -> int | None:
        """As `size`; None where it is neither there nor has a default."""
        key = self.name_of(*keys)
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fail(key, f"is {str(value)[:80]}", f"{key} must be a whole number from {least} to {most:,}")
        return value

    def flag(self, key: str) -> bool:
        """true or false; false where it is neither there nor has a default."""
        value = self._get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.fail(key, f"is {str(value)[:80]}", f"{key} must be true or false")
        return value

    def listed(self, key: str, length: int | None, kind: type) -> list[Any] | None:
        """A list of `kind`, of `length` elements unless that is None; None where the key is absent."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
            raise self.fail(key, f"is {_kind(value)}", f"{key} must be a list of {kind.__name__}")
        if length is not None and len(value) != length:
            raise self.fail(key, f"has {len(value)} elements", f"give one for each of the {length} layers (num_hidden_layers)")
        return value

    def _get(self, key: str) -> Any:
        # An explicit null counts: Mistral's "sliding_window": null means none, its default is 4096.
        return self.values[key] if key in self.values else self.defaults.get(key)


def _kind(value: Any) -> str:
    return {list: "list", str: "string", type(None): "null", bool: "boolean"}.get(type(value), "number")
