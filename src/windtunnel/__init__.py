"""windtunnel: plan, check, rehearse, train, evaluate and serve language models on rented GPUs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

__version__ = "0.1.0"


def lazy(package: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports a name when it is first used.

    The names are those which the package's `__init__.py` imports under `if TYPE_CHECKING:`, so that type checkers and the running
    program read the same list. What uses torch or matplotlib is listed there, and the command line answers without them.

    Args:
        package: the package's `__name__`.
    """

    @functools.cache
    def places() -> dict[str, tuple[str, str]]:
        """Return name → (module, name in it)."""
        import ast
        import inspect

        found: dict[str, tuple[str, str]] = {}
        for block in ast.parse(inspect.getsource(sys.modules[package])).body:
            if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
                for line in block.body:
                    if isinstance(line, ast.ImportFrom):
                        module = "." * line.level + (line.module or "")
                        found |= {alias.asname or alias.name: (module, alias.name) for alias in line.names}
        return found

    def getattribute(name: str) -> Any:
        if name.startswith("__") or name not in places():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return imported(package, *places()[name])

    return getattribute


def imported(package: str, module: str, name: str) -> Any:
    """Return a name of a module of a package.

    Raises:
        ImportError: an attribute was missing meanwhile. `from package import name` would take an AttributeError for a name that
            the package does not have, and hide what was wrong.
    """
    from importlib import import_module

    try:
        return getattr(import_module(module, package), name)
    except AttributeError as error:
        raise ImportError(f"{name} of {package}{module} cannot be imported: {error}", name=f"{package}{module}") from error
