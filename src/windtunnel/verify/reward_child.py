"""Runs a user's reward in a process of its own; started by `reward_process`, imports nothing of the package.

Arguments: file, function, bytes of address space, descriptor to read from, descriptor to write to. Requests
and replies are JSON lines; values travel as text, because JSON has no NaN. What the reward prints goes elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any, NamedTuple

LONGEST = 300
PROMPT, ANSWER, TRUTH = "prompt", "answer", "truth"
ANSWERS = (
    "completion", "solution_str", "response", "model_output", "model_response", "predict_str", "prediction", "pred",
    "llm_solution",
)  # fmt: skip
"""What the trainers that rewards are written for call a model's answer; beside one of these `answer` is the right one."""
TRUTHS = ("truth", "ground_truth", "solution", "label", "target", "reference", "expected", "gold")
NOTHING: dict[str, Any] = {"data_source": "", "extra_info": {}}
"""What verl hands over beside them, where the record has no such columns; a reward that needs it fails aloud."""
COLUMNS = ("answer", "solution", "ground_truth")
"""What TRL's rewards find among their keywords: columns of the data, by names that are common for the right answer."""
SCORES = ("score", "reward", "rewards", "overall")
"""Keys of a reward's number where it returns more than that."""


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
    call = Call(function)
    for line in requests:
        reply(_call(call, json.loads(line)))
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


class Asked(NamedTuple):
    """An answer to be judged. right: the right one as the record has it, truth: as text. record: its other columns."""

    prompt: str
    answer: str
    truth: str | None
    right: Any
    record: Mapping[str, Any]


class Call:
    """Calls a reward in the way that it was written for: this package's, TRL's, verl's or OpenRLHF's.

    The names of its parameters say which. One that names none of those that are known is given prompt, answer and truth in this
    order. TRL's and OpenRLHF's rewards take lists and are given one answer at a time, so that one that compares the answers of a
    batch has nothing to compare. Any other parameter is given the record's column of its name.

    Args:
        function: the reward.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._parameters: Mapping[str, inspect.Parameter] = {}
        with contextlib.suppress(ValueError):  # some builtins have no signature
            self._parameters = inspect.signature(function).parameters
        kinds = [parameter.kind for parameter in self._parameters.values()]
        self._any_keyword = inspect.Parameter.VAR_KEYWORD in kinds
        # By a name of the answer, of which several come as a list.
        lists = (*(f"{name}s" for name in ANSWERS), "queries")
        self._lists = any(name in lists for name in self._parameters)
        self._answer_named = self._lists or any(name in ANSWERS for name in self._parameters)
        # TRL gives conversations where prompts are conversations: rewards that read `completion[0]["content"]` want these.
        self._messages = self._lists and "content" in _constants(getattr(inspect.unwrap(function), "__code__", None))
        self._needed = [
            name
            for name, parameter in self._parameters.items()
            if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ]
        self._nameless = inspect.Parameter.POSITIONAL_ONLY in kinds

    def _names_say(self, unknown: bool) -> bool:
        """Return whether the parameters' names say what each is given, and not their order. unknown: one of them is not known."""
        names = list(self._parameters)
        # In this package's order the prompt would be taken for an answer, or an answer for the right one.
        misled = any(name in ANSWERS for name in names[:1]) or any(name in TRUTHS for name in names[:2])
        if self._lists or misled:
            return True
        if unknown:  # of three, in names of the user's own, the order says it
            return self._answer_named and len(names) != 3
        return self._answer_named or ANSWER in names

    def __call__(self, asked: Asked) -> Any:
        """Return what the reward does; waits for one that is asynchronous. Raises TypeError before it is called."""
        unknown = [name for name in self._needed if self._given(name, asked) is None]
        by_name = not self._nameless and self._names_say(bool(unknown))
        if not by_name:
            given = asked.prompt, asked.answer, asked.truth
            if self._parameters:
                inspect.signature(self._function).bind(*given)
            value = self._function(*given)
        else:
            if unknown:
                columns = f"; columns of the record: {', '.join(sorted(asked.record)) or 'none'}"
                raise TypeError(f"its argument {unknown[0]!r} is none of those that are known{columns}")
            names = [name for name, one in self._parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
            if self._any_keyword:
                more = ["prompts", *COLUMNS] if self._lists else []
                names = list(dict.fromkeys([*names, *more, *asked.record]))
            found = {name: self._given(name, asked) for name in names}
            value = self._function(**{name: given[0] for name, given in found.items() if given is not None})
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return self._unpacked(value) if by_name else value

    def _given(self, name: str, asked: Asked) -> tuple[Any] | None:
        """Return what a parameter is given, as a tuple of one; None: its name is not known."""
        one = name.removesuffix("s")
        value: Any
        if one == PROMPT:
            value = [{"role": "user", "content": asked.prompt}] if self._messages else asked.prompt
        elif name == "queries":
            value = asked.prompt + asked.answer  # OpenRLHF's: a whole text
        elif one in ANSWERS or (one == ANSWER and not self._answer_named):
            value = [{"role": "assistant", "content": asked.answer}] if self._messages else asked.answer
        elif one == TRUTH:
            value = asked.truth
        elif name in asked.record:
            value = asked.record[name]
        elif one == ANSWER or one in TRUTHS:
            value = asked.right
        elif one in NOTHING:
            value = NOTHING[one]
        else:
            return None
        return ([value] if self._lists else value,)

    def _unpacked(self, value: Any) -> Any:
        """Return the number in what others' rewards return: a list of one, or a table with a score."""
        for _ in range(2):  # OpenRLHF's is a table of a list
            if isinstance(value, dict):
                value = next((value[key] for key in SCORES if key in value), value)
            if self._lists and isinstance(value, list | tuple) and len(value) == 1:
                value = value[0]
        return value


def _constants(code: CodeType | None) -> Iterator[Any]:
    """Yield the constants of a function's code, and of what is written within it."""
    for value in () if code is None else code.co_consts:
        if isinstance(value, CodeType):
            yield from _constants(value)
        else:
            yield value


def _call(call: Call, request: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"id": request["id"]}
    try:
        began = time.perf_counter()
        value = call(Asked(request["prompt"], request["answer"], request["truth"], request["right"], request["record"]))
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
