"""YAML and JSON read strictly: duplicate keys refused, 1e-3 a number, every key's line known, no nesting without end."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import yaml

from .errors import UserError

Path_ = tuple[str, ...]

SUCH_AS = "such as {name: mine, extends: charlm}"
LONGEST_FILE = 1_000_000  # characters; a recipe has thousands, a text to train on may have billions
MOST_FOR_LIBYAML = 16_000  # characters: it recurses on the C stack, which 50,000 open brackets overflow
DEEPEST = 200
"""Lists and objects in one another. Python's own limit depends on who calls, and what it reads it may not be able to write."""
MOST_KEYS = 100_000  # once its aliases are written out: nine lines of them can stand for billions


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 numbers: 1e-3 is 0.001, and 9:30 and 010 are text, not 570 and 8."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml, where PyYAML has it: five times as fast, but it says less about what it cannot read."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which _Loader would take for a number, and escapes Unicode's own line ends."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Only double quotes escape them; elsewhere they are folded away as line ends.
    style = '"' if any(end in text for end in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


# YAML 1.1, which PyYAML reads, takes 1e-3 for text, 9:30 for 570 and 010 for 8. These are YAML 1.2's forms, as JSON and
# everybody else read them.
_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)",
    "tag:yaml.org,2002:float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
}
for _loader in (_Loader, _FastLoader):
    _loader.yaml_implicit_resolvers = {
        k: [rule for rule in v if rule[0] not in _NUMBERS] for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
# A copy for each class: PyYAML's add_implicit_resolver would otherwise change the list that SafeDumper has too.
_Dumper.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeDumper.yaml_implicit_resolvers.items()}
for _class in (_Loader, _FastLoader, _Dumper):
    for _tag, _pattern in _NUMBERS.items():
        _class.add_implicit_resolver(_tag, re.compile(rf"^({_pattern})$"), list("-+.0123456789"))


def parse_scalar(text: str) -> Any:
    """Return a value as it would be read from a recipe: '12' -> 12, '1e-3' -> 0.001, 'null' -> None."""
    return yaml.load(text, Loader=_Loader)


def dump_yaml(data: dict[str, Any]) -> str:
    """YAML that read_yaml reads back as the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Path_, int]]:
    """Return the mapping in a YAML file and the line of each key path.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8, not YAML, not a mapping, repeats a key or is far too long.
    """
    text = _read(path)
    try:
        if len(text) <= MOST_FOR_LIBYAML:
            with contextlib.suppress(yaml.YAMLError, ValueError):  # the other says it in more words
                return _parse(text, path, _FastLoader)
        return _parse(text, path, _Loader)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where else ""
        raise UserError(f"recipe file {path}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    except ValueError as error:  # such as the date 2024-13-45
        raise UserError(f"recipe file {path}: not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"recipe file {path}: an alias refers to itself, or nesting is too deep") from None


def _parse(text: str, path: Path, kind: type[Any]) -> tuple[dict[str, Any], dict[Path_, int]]:
    """kind: of loader."""
    loader = kind(text)
    node = loader.get_single_node()
    lines: dict[Path_, int] = {}
    if node is None:
        raise UserError(f"recipe file {path} is empty; expected a mapping of keys", SUCH_AS)
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        raise UserError(f"recipe file {path}: expected a mapping of keys, found {found}", SUCH_AS)
    _walk(node, (), lines, path)
    return loader.construct_document(node), lines


def _read(path: Path) -> str:
    if path.is_fifo() and path.parts[:2] != ("/", "dev"):  # the shell's <(...) stands there and has a writer
        raise UserError(f"recipe file {path} is a pipe", "name a file")
    try:
        with path.open(encoding="utf-8") as file:
            # One more than allowed, which tells a file that is too long from one that just fits, without reading gigabytes.
            text = file.read(LONGEST_FILE + 1)
    except FileNotFoundError:
        raise UserError(f"recipe file {path} does not exist", "check the path, or name a shipped recipe such as charlm") from None
    except UnicodeDecodeError as error:
        where = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise UserError(f"recipe file {path} is not UTF-8 text: {where}", "a recipe is YAML text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"recipe file {path} cannot be read: {getattr(error, 'strerror', None) or error}",
            "check the path and its permissions",
        ) from None
    if len(text) > LONGEST_FILE:
        raise UserError(
            f"recipe file {path} is longer than {LONGEST_FILE:,} characters: that is no recipe",
            "texts to train on are named in a recipe: --set data.corpus.kind=text --set 'data.corpus.files=[a.txt]'",
        )
    return text


def _walk(node: yaml.Node, prefix: Path_, lines: dict[Path_, int], path: Path) -> None:
    if len(lines) > MOST_KEYS:
        raise UserError(f"recipe file {path} has more than {MOST_KEYS:,} keys and items, aliases written out")
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            # Items have lines as keys have: pydantic's errors count list items from 0 too.
            lines[(*prefix, str(number))] = item.start_mark.line + 1
            _walk(item, (*prefix, str(number)), lines, path)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        # PyYAML itself lets the later of two equal keys win without a word.
        where = (*prefix, str(key.value))
        if where in lines:
            raise UserError(f"{path}:{key.start_mark.line + 1}: key {'.'.join(where)} is given twice")
        lines[where] = key.start_mark.line + 1
        _walk(value, where, lines, path)


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: it is no JSON, or nested more than `DEEPEST` deep.
    """
    too_deep = f"nested more than {DEEPEST} deep"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    # Looking through the value costs as much as parsing it: only texts with enough brackets to be too deep are.
    opened = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if opened > DEEPEST and _deeper_than(value, DEEPEST):
        raise ValueError(too_deep)
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True
