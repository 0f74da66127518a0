"""All keys of a recipe with meaning, unit and default, as the schema has them."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .errors import UserError
from .explain import sections_of
from .load import load_recipe, recipe_names, template_names
from .schema import Recipe
from .section import Every
from .synonyms import KEYS, same_key

# By the key's name where its type does not tell: the longest ending counts.
_UNITS = {
    "dollars": "$", "hours": "h", "tokens": "tokens", "sequence": "tokens", "steps": "steps", "days": "days", "bytes": "bytes",
    "megabytes": "MB", "share": "0 to 1", "epochs": "epochs", "lr": "a step", "learning_rate": "a step", "warmdown": "0 to 1",
    "final": "0 to 1", "documents": "documents", "records": "records", "puzzles": "puzzles", "depth": "layers",
    "head_dim": "channels", "aspect": "channels a layer", "batch": "sequences", "refinement": "%", "utilisation": "%",
    "vocab_size": "tokens", "engine_memory": "0 to 1", "validation": "0 to 1", "validation_loss": "nats a token",
    "gap_warn": "0 to 1", "memory_warn": "0 to 1", "throughput_warn": "0 to 1", "overfit_margin": "0 to 1", "horizon": "days",
    "loss": "", "every": "steps or time", "validate_every": "steps or time", "vocab_pad": "tokens", "mean_answer": "0 to 1",
}  # fmt: skip
_DERIVED = "null"


@dataclass(frozen=True)
class Key:
    """One key: its path, meaning, unit ('' where it has none), what may stand there, and what stands there otherwise."""

    path: str
    meaning: str
    unit: str
    accepts: str
    default: str


@dataclass(frozen=True)
class Group:
    """The keys of one section; of a section that has kinds, one group for each."""

    path: str
    kind: str
    meaning: str
    keys: tuple[Key, ...]

    @property
    def title(self) -> str:
        """Return a heading such as 'model, kind gpt'."""
        return (self.path or "the recipe itself") + (f", kind {self.kind}" if self.kind else "")


def recipe_keys() -> list[Group]:
    """Return every section of a recipe, in the schema's order; a section that stands in several places is listed once."""
    return list(_groups(Recipe, "", "", {}))


def keys_of(recipe: Recipe) -> list[Group]:
    """Return the groups of what a recipe has: of sections with kinds those of its own."""
    groups = recipe_keys()
    kinded = {group.path for group in groups if group.kind}
    written = recipe.model_dump(mode="json")
    written["stages"] = {stage["kind"]: stage for stage in written["stages"].values()}

    def has(group: Group) -> bool:
        here: Any = written
        for part in group.path.split(".") if group.path else ():
            here = here[0] if isinstance(here, list) and here else here
            here = here.get(part) if isinstance(here, dict) else None
        return here is not None and (group.path not in kinded or here["kind"] == group.kind)

    return [group for group in groups if has(group)]


def find_keys(word: str) -> list[Group]:
    """Return the groups of a section, a kind or a recipe, those with keys that speak of a word, or that others call so.

    Raises:
        UserError: no key is called so; names the nearest. A recipe that cannot be read.
    """
    groups, wanted = recipe_keys(), word.strip().lower().strip(".")
    below = [group for group in groups if wanted in (group.path, group.kind) or group.path.startswith(f"{wanted}.")]
    if below:
        return below
    # After sections: a recipe called like one would hide it.
    if word in (*recipe_names(), *template_names()) or word.endswith((".yaml", ".yml")):
        return keys_of(load_recipe(word))
    spoken = re.compile(rf"\b{re.escape(wanted)}")  # 'rate' is not in 'generated', and 'token' is in 'tokens'
    found = [
        Group(group.path, group.kind, group.meaning, keys)
        for group in groups
        if (keys := tuple(key for key in group.keys if wanted in key.path.lower() or spoken.search(key.meaning.lower())))
    ]
    if found:
        return found
    same = KEYS.get(re.sub(r"[\s-]", "_", wanted.rpartition(".")[2]), ("", ""))[0].replace("NAME", "pretrain")
    if same.partition(".")[0] in Recipe.model_fields:
        return find_keys(same)
    names = {key.path for group in groups for key in group.keys} | {group.path for group in groups}
    nearest = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    hint = same_key(wanted) or (f"nearest: {', '.join(nearest)}" if nearest else "")
    raise UserError(f"no key of a recipe is called {word!r}", hint or f"sections: {', '.join(Recipe.model_fields)}")


def keys_page(groups: Sequence[Group]) -> str:
    """Write the keys as Markdown."""
    lines = [
        "# Keys of a recipe",
        "",
        "Made by `windtunnel recipe --keys --markdown`; a test compares it with the schema. `windtunnel recipe --keys WORD`",
        "prints part of it: a section (`model`, `stages.sft`), a key, whatever a word is part of, or what nanoGPT, Hugging Face",
        "and others call it (`n_embd`). A stage that is not named after its kind is written with its own name",
        "(`stages.quality.micro_batch`). `null` stands for what is derived or not limited: the plan prints every derived value",
        "with its rule.",
    ]
    for group in groups:
        lines += [
            "",
            f"## {group.title}",
            "",
            group.meaning,
            "",
            "| key | meaning | unit | accepts | default |",
            "| --- |" + " --- |" * 4,
        ]
        lines += [
            f"| `{key.path}` | {_cell(key.meaning)} | {key.unit} | {_cell(key.accepts)} | {_cell(key.default)} |"
            for key in group.keys
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _groups(model: type[BaseModel], path: str, kind: str, seen: dict[type[BaseModel], str]) -> Iterator[Group]:
    """Yield a section and those below it; `seen` holds where each class is listed, wherever else it stands."""
    rows, below = [], []
    for name, field in model.model_fields.items():
        if field.exclude or name == "overridden":  # written by windtunnel, not by people
            continue
        here = f"{path}.{name}" if path else name
        inner = list(dict.fromkeys(sections_of(field.annotation)))
        if not inner:
            rows.append(Key(here, _meaning(name, field, model), _unit(name, field), _accepts(field), _default(field)))
            continue
        named = get_origin(field.annotation) is dict
        again = list(dict.fromkeys(seen[section] for section in inner if section in seen))
        for section in inner:
            # Budget, Schedule and the like stand in several places; listing them once keeps the page readable.
            if section not in seen:
                seen[section] = f"{here}.{_name(section)}" if named else here
                below.append((section, seen[section], _name(section) if len(inner) > 1 else ""))
        accepts = "a section" if len(inner) == 1 else "a section of kind " + ", ".join(_name(section) for section in inner)
        if get_origin(field.annotation) is list:
            accepts = f"a list of them: {accepts}"
        note = f"; keys as under {', '.join(again)}" if again else ""
        where = f"{here}.NAME" if named else here
        rows.append(Key(where, _meaning(name, field, inner[0]) + note, "", accepts, _default(field)))
    yield Group(path, kind, _sentence(model), tuple(rows))
    for section, where, of_kind in below:
        yield from _groups(section, where, of_kind, seen)


def _name(section: type[BaseModel]) -> str:
    kind = section.model_fields.get("kind")
    return str(kind.default) if kind is not None and isinstance(kind.default, str) else section.__name__.lower()


def _sentence(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().partition("\n")[0]


def _meaning(name: str, field: FieldInfo, model: type[BaseModel]) -> str:
    """Return a key's description; a section's is its own, and of a kind what it is."""
    if field.description:
        return field.description
    return _sentence(model) if name == "kind" or list(sections_of(field.annotation)) else ""


def _unit(name: str, field: FieldInfo) -> str:
    if _is(field.annotation, Every):
        return "steps or time"
    numbers = any(_is(field.annotation, kind) for kind in (int, float, tuple))
    if not numbers:
        return ""
    # The longest ending is the most particular one: validation_tokens is of tokens, not of a share as validation is.
    endings = [end for end in _UNITS if name == end or name.endswith(f"_{end}")]
    return _UNITS[max(endings, key=len)] if endings else ""


def _is(annotation: Any, kind: type) -> bool:
    if annotation is kind or get_origin(annotation) is kind:
        return True
    return any(_is(argument, kind) for argument in get_args(annotation) if get_origin(annotation) is not Literal)


def _accepts(field: FieldInfo) -> str:
    limits = [
        f"{word} {getattr(item, name):,}" for item in field.metadata for name, word in _LIMITS.items() if hasattr(item, name)
    ]
    return ", ".join([" or ".join(dict.fromkeys(_kinds(field.annotation))), *limits])


_LIMITS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
_PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null", Every: "interval"}


def _kinds(annotation: Any) -> Iterator[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        yield ", ".join(str(value) for value in get_args(annotation))
    elif origin in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _kinds(argument)
    elif origin in (list, tuple):
        yield "a list"
    elif origin is dict:
        yield "a section"
    elif origin is not None:  # Annotated
        yield from _kinds(get_args(annotation)[0])
    else:
        yield _PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return _DERIVED
    if isinstance(value, BaseModel):
        return "its own defaults"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    return str(value) if value not in ("", {}, []) else "empty"
