"""Runs a user's reward in a process of its own; started by `reward_process`, imports nothing of the package.

Arguments: file, function, bytes of address space, descriptor to read from, descriptor to write to. Requests
and replies are JSON lines; values travel as text, because JSON has no NaN. What the reward prints goes elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

LONGEST = 300


def main() -> int:
    """Import the reward, tell what came of it, then answer calls until the input ends."""
    file, name, space, source, target = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_AS)[1]  # less where whoever started all of this set a limit
    resource.setrlimit(resource.RLIMIT_AS, (space if most == resource.RLIM_INFINITY else min(space, most), most))
    own = os.getpid()
    requests = os.fdopen(source, "r", encoding="utf-8", errors="surrogatepass")
    replies = os.fdopen(target, "w", encoding="utf-8")

    def reply(message: dict[str, Any]) -> None:
        if os.getpid() != own:  # the reward forked and its child came back here
            message = {"forked": True}
        with contextlib.suppress(Exception):  # the reward's own stream, by now, perhaps
            sys.stdout.flush()  # what it printed is there when the reply is, and is not lost if it dies later
        replies.write(json.dumps(message) + "\n")
        replies.flush()
        if os.getpid() != own:
            os._exit(0)

    began = time.perf_counter()
    function, problem, fix = _load(file, name)
    reply({"loaded": problem is None, "problem": problem, "fix": fix, "seconds": time.perf_counter() - began})
    if function is None:
        return 0
    for line in requests:
        reply(_call(function, json.loads(line)))
    return 0


def _load(file: str, name: str) -> tuple[Callable[..., Any] | None, str | None, str]:
    """Return the function, or None with what is wrong and what to do. Modules beside the file can be imported.

    name: the function's name in it; or 'module:function', of an installed package that the file belongs to.
    """
    sys.argv = [file]
    installed, _, name = name.rpartition(":")
    try:
        if installed:
            return _function(importlib.import_module(installed), name)
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
        spec = importlib.util.spec_from_file_location("user_reward", file)
        if spec is None or spec.loader is None:
            return None, "it is no Python file", "give a file whose name ends in .py"
        module = importlib.util.module_from_spec(spec)
        sys.modules["user_reward"] = module
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = error.filename or file
        return (
            None,
            f"line {error.lineno}{_of(where, file)}: {error.msg}",
            f"mend that line: python -m py_compile {where} shows it",
        )
    except BaseException as error:  # sys.exit() at import is one of them
        fix = f"python {file} has to run to its end: install what it imports here, and do nothing but define functions in it"
        return None, f"importing it raises {_describe(error)}{_where(error, file)}", fix
    return _function(module, name)


def _of(where: str, file: str) -> str:
    """Name another file than the reward's own."""
    return "" if os.path.realpath(where) == os.path.realpath(file) else f" of {where}"


def _function(module: ModuleType, name: str) -> tuple[Callable[..., Any] | None, str | None, str]:
    if not hasattr(module, name):
        found = sorted(n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__)
        fix = f"name one of them after the colon: {found[0]}" if found else f"define {name}(prompt, answer, truth) in it"
        return None, f"it has no function {name}; it has {', '.join(found) or 'none'}", fix
    function = getattr(module, name)
    if callable(function):
        return function, None, ""
    return None, f"{name} is a {type(function).__name__}, not a function", f"define {name}(prompt, answer, truth) in it"


def _call(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"id": request["id"]}
    try:
        with contextlib.suppress(ValueError):  # some builtins have no signature
            inspect.signature(function).bind(request["prompt"], request["answer"], request["truth"])
        began = time.perf_counter()
        value = function(request["prompt"], request["answer"], request["truth"])
        message["seconds"] = time.perf_counter() - began
        message |= _number(value)
    except TypeError as error:
        signature = "wrong arguments" if "argument" in str(error) and "seconds" not in message else None
        message |= {"problem": _describe(error), "signature": signature, "raised": True}
    except BaseException as error:  # the user's function raises what it likes
        message |= {"problem": _describe(error), "raised": True, "memory": isinstance(error, MemoryError)}
    message.setdefault("seconds", 0.0)
    return message


def _number(value: Any) -> dict[str, Any]:
    kind = type(value).__name__
    if value is None or isinstance(value, str | bytes | list | tuple | dict | set | complex):
        return {"problem": f"it returns {kind if value is not None else 'None'}, not a number"}
    try:
        return {"value": repr(float(value)), "kind": kind}
    except Exception as error:  # its own __float__
        return {"problem": f"it returns {kind}, not a number ({_describe(error)})"}


def _describe(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".splitlines()[0] if str(error) else type(error).__name__
    return text.encode("ascii", "backslashreplace").decode()[:LONGEST]


def _where(error: BaseException, file: str) -> str:
    """Return the last line of the user's own file in a traceback."""
    line, step = None, error.__traceback__
    while step is not None:
        if os.path.realpath(step.tb_frame.f_code.co_filename) == os.path.realpath(file):
            line = step.tb_lineno
        step = step.tb_next
    return f" (line {line})" if line else ""


if __name__ == "__main__":
    sys.exit(main())
