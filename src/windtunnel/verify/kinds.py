"""All verifiers by kind, each with the warm workers that it needs, started when first used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .pool import Sandboxes
from .sandbox import Layers, Sandbox
from .types import Verifier

KINDS = ("code", "math", "exact", "format", "kernel")
MOST_TASK_FILE = 64 << 20


class Verifiers:
    """Makes verifiers of any kind and keeps their workers. A context manager; safe to use from several threads.

    Args:
        workers: warm workers for each kind that runs something.
        tasks: a folder of NAME.json files, each {'kind': ..., 'task': ...}, which can then be named.
    """

    def __init__(self, workers: int, tasks: Path | None = None) -> None:
        self.workers = workers
        self._tasks = tasks
        self._lock = threading.Lock()
        self._pools: dict[str, Sandboxes] = {}
        self._named: dict[tuple[str, str], Verifier] = {}

    def make(self, kind: str, task: Any) -> Verifier:
        """A verifier of a kind for a task given as plain JSON, or as a name: a kernel task's, or a file's in the folder.

        Raises:
            UserError: the kind or task is unknown or malformed; says what is accepted.
        """
        if kind not in KINDS:
            raise UserError(f"kind is {kind!r}"[:200], f"one of {', '.join(KINDS)}")
        if isinstance(task, str):
            return self._by_name(kind, task)
        if kind == "kernel":
            raise UserError("a kernel task is given by its name", "list them with: windtunnel verify kernel --list")
        if not isinstance(task, Mapping):
            raise UserError("task is neither an object nor a name", f"an object with the keys of a {kind} task")
        if kind == "code":
            from .code import CodeTask, CodeVerifier

            return CodeVerifier(CodeTask.of(task), self.pool("code"))
        if kind == "math":
            from .mathematics import MathVerifier

            return MathVerifier.of(task, self.pool("math"))
        if kind == "exact":
            from .exact import ExactVerifier

            return ExactVerifier.of(task)
        from .format import FormatVerifier

        return FormatVerifier.of(task)

    def pool(self, kind: str) -> Sandboxes:
        """The warm workers of a kind."""
        with self._lock:
            if kind not in self._pools:
                self._pools[kind] = Sandboxes(self.workers, _maker(kind))
            return self._pools[kind]

    def layers(self) -> Layers:
        """What the sandbox is made of on this machine."""
        return self.pool("code").start()

    def task_names(self) -> list[str]:
        """The names in the folder of tasks."""
        return sorted(path.stem for path in self._tasks.glob("*.json")) if self._tasks else []

    @property
    def restarts(self) -> int:
        """How many workers were replaced because they were sick."""
        return sum(pool.restarts for pool in list(self._pools.values()))

    def close(self) -> None:
        """End all workers."""
        for pool in self._pools.values():
            pool.close()

    def __enter__(self) -> Verifiers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_name(self, kind: str, name: str) -> Verifier:
        with self._lock:
            known = self._named.get((kind, name))
        if known is None:
            known = self._kernel(name) if kind == "kernel" else self._file(kind, name)
            with self._lock:
                known = self._named.setdefault((kind, name), known)
        return known

    def _kernel(self, name: str) -> Verifier:
        from .kernel import KernelVerifier
        from .tasks import find

        return KernelVerifier(find(name), self.pool("kernel"))

    def _file(self, kind: str, name: str) -> Verifier:
        names = self.task_names()
        if name not in names or self._tasks is None:
            raise UserError(
                f"there is no task named {name[:80]!r}",
                f"one of {', '.join(names[:20])}" if names else "give the task as an object",
            )
        spec = read_json(self._tasks / f"{name}.json")
        if not isinstance(spec, dict) or set(spec) != {"kind", "task"}:
            raise UserError(f"{name}.json is no task file", "an object with the keys kind and task")
        if spec["kind"] != kind:
            raise UserError(f"task {name} is of kind {spec['kind']}, not {kind}")
        return self.make(kind, spec["task"])


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        UserError: it cannot be read, is too long or no JSON; says where.
    """
    try:
        if path.stat().st_size > MOST_TASK_FILE:
            raise UserError(f"{path} is longer than {MOST_TASK_FILE:,} bytes")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "name a readable file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}", "a task file is JSON in UTF-8") from None


def _maker(kind: str) -> Callable[[], Sandbox]:
    if kind == "kernel":
        from .kernel import kernel_sandbox

        return kernel_sandbox
    if kind == "math":
        return lambda: Sandbox(preload=("windtunnel.verify.mathematics_child:warm_up",))
    return lambda: Sandbox(preload=("windtunnel.verify.code.child", "windtunnel.verify.sandbox.selfcheck"))
