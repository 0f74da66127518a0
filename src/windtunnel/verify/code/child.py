"""Runs in the candidate's child: one call, or one run as a program. What is expected is not here."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..sandbox.channel import note
from .values import decode, encode

Reply = tuple[dict[str, Any], list[bytes]]
FILE = "answer.py"


class NoFunction(Exception):
    """The answer defines no function of the name that a test calls."""


def call(message: dict[str, Any], buffers: list[memoryview]) -> Reply:
    """Load the answer, call one function, return its value in plain form.

    message: source (and preface), function, args and kwargs (encoded), around: what is made of its value, such as ['bool'] of
    one that is only to be true or false, whatever its class.
    """
    module = _load(message, "answer")
    note("call")
    value = _function(module, message["function"])(*decode(message["args"]), **decode(message["kwargs"]))
    # Builtins alone, by a list of the task's: round, sorted, len.
    for name, *more in decode(message.get("around", [])):
        value = getattr(builtins, name)(value, *more)
    note("return")
    return {"value": encode(value)}, []


def program(message: dict[str, Any], buffers: list[memoryview]) -> Reply:
    """Run the answer as a program; what it prints is its child's log."""
    Path("stdin").write_text(message["stdin"], encoding="utf-8")
    fd = os.open("stdin", os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)
    # Held twice, as in any program: whoever wraps its buffer anew drops the first, and must not close the file with it.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    quiet = os.open("stderr", os.O_WRONLY | os.O_CREAT)
    os.dup2(quiet, 2)
    try:
        _load(message, "__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    # What Python does at the end of a program, and this process would leave out.
    threading._shutdown()  # type: ignore[attr-defined]  # no public name: it waits for the program's threads
    atexit._run_exitfuncs()
    _flush()
    with contextlib.suppress(Exception):
        sys.modules["__main__"].__dict__.clear()  # files that it left open are written out as they go
    _flush()
    return {"done": True}, []


def _flush() -> None:
    """Write out what was printed, also before sys.stdout became something else."""
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]  # it may be None, or of the answer's class: whatever it raises is ignored


def _load(message: dict[str, Any], name: str) -> types.ModuleType:
    note("load")
    parts = [part for part in (message.get("preface", ""), message["source"]) if part]
    Path(FILE).write_text("\n".join(parts), encoding="utf-8")
    module = types.ModuleType(name)
    module.__file__ = FILE
    sys.modules[name] = module
    for code in _compiled(parts):
        exec(code, module.__dict__)
    return module


def _compiled(parts: list[str]) -> list[types.CodeType]:
    """Return the parts as one text, since a preface may be the head of a function; one after the other where only that parses.

    An answer may begin with an import from __future__.
    """

    def one(text: str) -> types.CodeType:
        return compile(text, FILE, "exec", dont_inherit=True)

    try:
        return [one("\n".join(parts))]
    except SyntaxError:
        if len(parts) > 1:
            with contextlib.suppress(SyntaxError):
                return [one(part) for part in parts]
        raise


def _function(module: types.ModuleType, path: str) -> Callable[..., Any]:
    if path.isidentifier() and not hasattr(module, path) and hasattr(getattr(module, "Solution", None), path):
        path = f"Solution().{path}"
    found: Any = module
    for part in path.split("."):
        name = part.removesuffix("()")
        if name != part or isinstance(found, type):
            found = found() if isinstance(found, type) else found
        if not hasattr(found, name):
            raise NoFunction(path)
        found = getattr(found, name)
        if name != part:
            found = found()
    if not callable(found):
        raise NoFunction(path)
    function: Callable[..., Any] = found
    return function
