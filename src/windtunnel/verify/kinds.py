"""All verifiers by kind, each with the warm workers that it needs, started when first used."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import UserError

from .pool import Sandboxes
from .reading import read_text, without_doubles
from .sandbox import Layers, Sandbox
from .types import Verifier

if TYPE_CHECKING:
    from .kernel import GpuMemory, KernelVerifier, Task

KINDS = ("code", "math", "exact", "format", "kernel")
MOST_TASK_FILE = 64 << 20
MOST_GIVEN = 256  # tasks given as sources whose verifiers are kept, with their cases
WORKERS_A_CONTEXT = 4  # a process on a GPU serves several that record and compile
MOST_CONTEXTS = 4  # compiling takes the time: more of these processes would only take memory of the GPU


class Verifiers:
    """Makes verifiers of any kind and keeps their workers. A context manager; safe to use from several threads.

    Args:
        workers: warm workers for each kind that runs something.
        tasks: a folder of tasks that can then be named: NAME.json files, each {'kind': ..., 'task': ...}, and NAME.py files,
            kernel tasks in KernelBench's form.
        gpu: run the stages of kernels that need a GPU; None where this machine has one.
        sources: a kernel task may be given as {'name': ..., 'source': ...}, a module in KernelBench's form. Only where whoever
            gives tasks is trusted: such a module is run.
        timed_against: what a right kernel's time is compared with on a GPU, of `kernel.BASELINES`; empty: none is timed, which
            saves a GPU's turn to itself for each.
        gpu_index: the GPU's number among those that this process may use.
    """

    def __init__(
        self, workers: int, tasks: Path | None = None, *, gpu: bool | None = None, sources: bool = False,
        timed_against: Collection[str] = ("eager", "compiled"), gpu_index: int = 0,
    ) -> None:  # fmt: skip
        self.workers, self._sources, self.timed_against, self._gpu_index = workers, sources, timed_against, gpu_index
        self._tasks = tasks
        self._gpu = gpu
        self._lock = threading.Lock()
        self._pools: dict[str, Sandboxes] = {}
        self._named: dict[tuple[str, str], Verifier] = {}
        self._given: OrderedDict[tuple[str, str], Verifier] = OrderedDict()
        self._golds: set[str] = set()
        self._stopped = False
        self._gpu_memory: GpuMemory | None = None

    def make(self, kind: str, task: Any) -> Verifier:
        """Return a verifier of a kind for a task given as plain JSON, or as a name: a kernel task's, or a file's in the folder.

        A named kernel task's reference is run here, once, so that a task that cannot be used is known before any answer; that
        of one given as a source is run when its first answer comes. Answers are code, or text with the code in a block.

        Raises:
            UserError: the kind or task is unknown, malformed or cannot be used; says what is accepted.
        """
        if kind not in KINDS:
            raise UserError(f"kind is {kind!r}"[:200], f"one of {', '.join(KINDS)}")
        if isinstance(task, str):
            return self._by_name(kind, task)
        if kind == "kernel" and self._sources:
            return self._given_kernel(task)
        if kind == "kernel":
            raise UserError(
                "a kernel task is given by its name",
                "one of those that windtunnel verify kernel --list prints, or of a NAME.py in the folder of tasks",
            )
        if not isinstance(task, Mapping):
            raise UserError("task is neither an object nor a name", f"an object with the keys of a {kind} task")
        if kind == "code":
            from .code import CodeTask, CodeVerifier

            return CodeVerifier(CodeTask.of(task), self.pool("code"))
        if kind == "math":
            from .mathematics import MathVerifier

            return MathVerifier.of(task, self.pool("math"), known=self._golds)
        if kind == "exact":
            from .exact import ExactVerifier

            return ExactVerifier.of(task)
        from .format import FormatVerifier

        return FormatVerifier.of(task)

    def pool(self, kind: str) -> Sandboxes:
        """Return the warm workers of a kind; kernels have 'compiler' beside 'kernel', and 'gpu' with 'gpu reference'."""
        with self._lock:
            if self._stopped:
                raise UserError("the workers were stopped")
            if kind not in self._pools:
                workers = self.workers
                if kind.startswith("gpu"):
                    workers = max(1, min(MOST_CONTEXTS, workers // WORKERS_A_CONTEXT))
                self._pools[kind] = Sandboxes(workers, _maker(kind, self._gpu_index))
            return self._pools[kind]

    def layers(self) -> Layers:
        """Return what the sandbox is made of on this machine."""
        return self.pool("code").start()

    def task_names(self) -> list[str]:
        """Return the names in the folder of tasks."""
        return sorted(path.stem for path in self._tasks.glob("*.json")) if self._tasks else []

    @property
    def restarts(self) -> int:
        """How many workers were replaced because they were sick."""
        return sum(pool.restarts for pool in list(self._pools.values()))

    def stop(self) -> None:
        """End all workers at once, whatever they run, and start no more: nothing is known of the answers under way."""
        with self._lock:
            self._stopped = True
        for pool in self._pools.values():
            pool.stop()

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

    def _given_kernel(self, given: Any) -> Verifier:
        """Return a verifier of a task's source; the last ones are kept."""
        from .kernel import task_from_source

        if not isinstance(given, Mapping) or not isinstance(given.get("source"), str):
            raise UserError("a kernel task is its name, or {'name': ..., 'source': ...} with a module's text as source")
        key = str(given.get("name", "given")), given["source"]
        with self._lock:
            known = self._given.get(key)
        if known is None:
            known = self.of_task(task_from_source(key[1], name=key[0], where=f"task {key[0]}"))
        with self._lock:
            known = self._given.setdefault(key, known)
            self._given.move_to_end(key)
            if len(self._given) > MOST_GIVEN:
                self._given.popitem(last=False)
        return known

    def _kernel(self, name: str) -> Verifier:
        """Return all stages that this machine has, as on the command line."""
        from .kernel import ReferenceBroken

        verifier = self.of_task(self._kernel_task(name))
        with contextlib.suppress(ReferenceBroken):  # of this moment; a verdict says so if it lasts
            verifier.prepare()
        return verifier

    def of_task(self, task: Task) -> KernelVerifier:
        """Return a verifier of a kernel task, with all stages that this machine has. Its reference is not run yet."""
        from .kernel import GpuMemory, GpuStages, KernelVerifier, has_gpu

        use_gpu = has_gpu(self._gpu_index) if self._gpu is None else self._gpu
        for kind in ("kernel", "compiler", *(("gpu", "gpu reference") if use_gpu else ())):
            self.pool(kind).begin()  # each imports for seconds, and they can do so side by side
        gpu = None
        if use_gpu:
            with self._lock:
                self._gpu_memory = self._gpu_memory or GpuMemory.of(self._gpu_index)
            gpu = GpuStages(
                task, self.pool("gpu"), self.pool("gpu reference"), memory=self._gpu_memory,
                clock=bool(self.timed_against), baseline=self.timed_against, index=self._gpu_index,
            )  # fmt: skip
        return KernelVerifier(task, self.pool("kernel"), compiler=self.pool("compiler"), gpu=gpu)

    def _kernel_task(self, name: str) -> Task:
        """Return a file of the folder, or else a generated task."""
        from .kernel import load_task
        from .tasks import find

        files = {path.stem: path for path in self._tasks.glob("*.py")} if self._tasks else {}
        # Named, not by its path: whoever asks may be on another machine.
        return load_task(files[name], f"task {name}") if name in files else find(name)

    def _file(self, kind: str, name: str) -> Verifier:
        names = self.task_names()
        if name not in names or self._tasks is None:
            raise UserError(
                f"there is no task named {name[:80]!r}",
                f"one of {', '.join(names[:20])}" if names else "give the task as an object",
            )
        spec = read_json(self._tasks / f"{name}.json", f"task {name}")
        if not isinstance(spec, dict) or set(spec) != {"kind", "task"}:
            raise UserError(f"{name}.json is no task file", "an object with the keys kind and task")
        if spec["kind"] != kind:
            raise UserError(f"task {name} is of kind {spec['kind']}, not {kind}")
        if isinstance(spec["task"], str):  # of another file, which may name this one
            raise UserError(f"{name}.json names another task in place of one", f"an object with the keys of a {kind} task")
        return self.make(kind, spec["task"])


def read_json(path: Path, what: str | None = None) -> Any:
    """Return what a JSON file holds. what: how to call it in messages, otherwise by its path.

    Raises:
        UserError: it cannot be read, is too long or no JSON; says where.
    """
    what = str(path) if what is None else what
    text = read_text(path, MOST_TASK_FILE, what)
    try:
        return json.loads(text, object_pairs_hook=without_doubles)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} is not JSON: {error}", "a task file is JSON in UTF-8") from None


def _maker(kind: str, gpu: int) -> Callable[[], Sandbox]:
    if kind in ("kernel", "compiler", "gpu", "gpu reference"):
        from . import kernel

        return {
            "kernel": kernel.kernel_sandbox,
            "compiler": kernel.compiler_sandbox,
            "gpu": lambda: kernel.gpu_sandbox(gpu),
            "gpu reference": lambda: kernel.reference_sandbox(gpu),
        }[kind]
    if kind == "math":
        return lambda: Sandbox(preload=("windtunnel.verify.mathematics_child:warm_up",))
    return lambda: Sandbox(preload=("windtunnel.verify.code.child", "windtunnel.verify.sandbox.selfcheck"))
