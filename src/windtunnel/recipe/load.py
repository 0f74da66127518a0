"""From a recipe's name or file and --set overrides to a validated Recipe."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    from .reading import Path_
    from .schema import Recipe

HERE = Path(__file__).parent
FILE_LISTS = ("files", "problems", "pairs", "held_out")
"""Keys of a corpus that list files."""


def recipe_names() -> list[str]:
    """Names of the recipes that ship with the package."""
    return _names("recipes")


def template_names() -> list[str]:
    """Names of the templates: recipes to plan with, whose data is only counted."""
    return _names("templates")


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name, or a file, and apply 'key.path=value' overrides.

    A file may start from another recipe with `extends: NAME-or-file`.

    Raises:
        UserError: names the file, line and key, what was expected and the nearest valid name.
    """
    data, origin, path = _read_extended(str(source), seen=())

    from .overlay import apply_overrides

    def shipped(where: Path_) -> bool:
        return origin.get(where, "").startswith(f"{HERE}/")

    changed = apply_overrides(data, overrides, shipped)
    # What stood below a key that was replaced is gone, and so are its lines.
    kept = {where: line for where, line in origin.items() if not any(where[: len(key)] == key for key in changed)}

    # Making the schema takes longer than all else: a recipe that cannot be read is refused without it.
    from .staged import validate

    return validate(data, str(path), kept | changed)


def dump_recipe(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML; loading it gives the same recipe."""
    from .reading import dump_yaml

    return dump_yaml(recipe.model_dump(mode="json"))


def _names(folder: str) -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in (HERE / folder).iterdir() if p.name.endswith(".yaml"))


def _find(source: str) -> Path:
    for folder in ("recipes", "templates"):
        if source in _names(folder):
            return HERE / folder / f"{source}.yaml"
    # A shipped name goes first: a folder that happens to be called charlm must not hide it. ./charlm.yaml is a path.
    path = Path(source)
    if not source.strip():
        raise UserError("the recipe's name is empty", f"name a recipe file or one of: {', '.join(recipe_names())}")
    try:
        path.resolve()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, a loop of links
        raise UserError(f"recipe {source[:80]!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if is_folder:
        raise UserError(f"recipe {source} is a directory", f"name a recipe file or one of: {', '.join(recipe_names())}")
    if exists or path.suffix in (".yaml", ".yml"):
        return path

    nearest = difflib.get_close_matches(source, recipe_names() + template_names(), n=1, cutoff=0.5)
    known = f"shipped recipes: {', '.join(recipe_names())}; templates to plan with: {', '.join(template_names())}"
    hint = f"did you mean {nearest[0]}?" if nearest else f"{known}; or give a .yaml file"
    raise UserError(f"no recipe named {source!r}", hint)


def _read_extended(source: str, seen: tuple[str, ...]) -> tuple[dict[str, Any], dict[Path_, str], Path]:
    """Return a recipe over the one it extends, and where each key stands ('file:line')."""
    path = _find(source)
    # By the resolved path: a link to itself is a circle as well.
    if str(path.resolve()) in seen:
        raise UserError(f"recipe {path}: 'extends' goes round in a circle")

    from .overlay import merge
    from .reading import read_yaml

    data, lines = read_yaml(path)
    origin = {where: f"{path}:{line}" for where, line in lines.items()}
    parent = data.pop("extends", None)
    _refuse_foreign(data, parent, origin)
    _anchor_files(data, path)
    if parent is None:
        return data, origin, path
    if not isinstance(parent, str):
        raise UserError(f"{origin[('extends',)]}: extends: expected a recipe's name or file (got {parent!r})")
    # Relative to the file that says `extends`, as people expect of includes; then a shipped recipe.
    beside = path.parent / parent
    base, base_origin, _ = _read_extended(str(beside) if beside.is_file() else parent, (*seen, str(path.resolve())))
    # The child's lines win: whoever is told of a wrong key can change the file that was named on the command line.
    return merge(base, data), {**base_origin, **origin}, path


def _refuse_foreign(data: dict[str, Any], parent: Any, origin: dict[Path_, str]) -> None:
    """Refuse another's word for `extends` before what the named recipe would have given is missed."""
    from .synonyms import PATHS, same_key

    for word in data if parent is None else ():
        if PATHS.get(word, ("",))[0] == "extends":
            raise UserError(f"{origin[word,]}: {word}: unknown key; {same_key(word)}", f"extends: {data[word]}")


def _anchor_files(data: dict[str, Any], path: Path) -> None:
    """Files named in a recipe are found from its folder, or else from the current one."""
    folder = path.parent
    _anchor_lists(_section(data, "data", "corpus"), folder)
    for holder, key in ((_section(data, "data", "tokenizer"), "path"), (_section(data, "model"), "config")):
        _anchor_one(holder, key, folder)
    for name in _section(data, "stages"):
        stage = _section(data, "stages", name)
        _anchor_lists(_section(stage, "set"), folder)
        _anchor_one(stage, "reward_examples", folder)
        rewards = stage.get("rewards")
        sources = [(one, "function") for one in rewards] if isinstance(rewards, list) else []
        for holder, key in ((stage, "reward"), (_section(stage, "answers"), "metric"), *sources):
            _anchor_one(holder, key, folder, called=True)


def _anchor_lists(section: dict[str, Any], folder: Path) -> None:
    """Anchor lists of files in a section and what is in it; its keys may be dotted, as those of a stage's `set` are."""
    for key, value in section.items():
        if isinstance(value, list) and key.rpartition(".")[2] in FILE_LISTS:
            section[key] = [str(folder / f) if isinstance(f, str) and _stands_in(folder, f) else f for f in value]
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                _anchor_lists(part, folder)


def _anchor_one(holder: Any, key: str, folder: Path, *, called: bool = False) -> None:
    """Anchor one file; `called`: with the name of a function of its behind a colon."""
    name = holder.get(key) if isinstance(holder, dict) else None
    if isinstance(name, str) and _stands_in(folder, name.rpartition(":")[0] if called else name):
        holder[key] = str(folder / name)


def _section(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a section of what was read, or an empty one where something else stands there."""
    here: Any = data
    for name in names:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def _stands_in(folder: Path, pattern: str) -> bool:
    try:
        return bool(pattern) and not Path(pattern).is_absolute() and any(folder.glob(pattern))
    except (OSError, ValueError):  # not a path at all; the corpus will say so
        return False
