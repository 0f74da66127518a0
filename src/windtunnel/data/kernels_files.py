"""Kernel tasks from files of others: problems in KernelBench's form, and pairs of PyTorch and Triton as records.

What cannot be used is named with its reason and counted; what is like a held-out task is left out and named too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from windtunnel.recipe import ConversationCorpus, KernelTasks, PromptCorpus, Recipe, UserError

from .corpus import CorpusFile, corpora_of, listed_files
from .formats import form_of, records
from .kernels import KernelTask, draw_tasks, split_keys, task_answer, task_prompt
from .kernels_alike import HeldOut, NoTask, Profile, profile
from .kernels_write import without_settings

# KernelBook's columns, and what others call theirs.
PYTORCH_KEYS = ("python_code", "pytorch_code", "pytorch", "reference")
TRITON_KEYS = ("triton_code", "triton", "kernel")
MOST_SHOWN = 3
FUSED = 3  # operators of level 2 at most


@dataclass(frozen=True)
class Tasked:
    """A task to learn from.

    Attributes:
        where: the file, or a generated task's name.
        prompt: what is asked. answer: what is to be answered; None where nothing is known.
        record: what stands beside a prompt; see `KernelTask.record`. side: decides the split.
    """

    where: str
    prompt: str
    answer: str | None
    record: dict[str, Any]
    side: int


@dataclass
class TaskReader:
    """Reads everything that a recipe names as kernel tasks, the same each time.

    Attributes:
        asking: what is read is asked only, so that a plan is asked for where no answer has one.
        dropped: where and why something was left out, of the last reading.
        like: those of them that are like a held-out task.
    """

    asked: KernelTasks
    seed: int
    asking: bool = False
    dropped: list[str] = field(default_factory=list)
    like: list[str] = field(default_factory=list)

    def read(self) -> Iterator[Tasked]:
        """Yield the tasks: generated ones, then those of files.

        Raises:
            UserError: a file is missing or cannot be read, or nothing in the files can be used.
        """
        self.dropped, self.like = [], []
        held = held_out_tasks(self.asked)
        for task in draw_tasks(self.asked, self.seed):
            # Profiles are read only where there is something to compare with.
            if held.profiles and self._is_like(held, profile(task.written.reference, task.name)):
                continue
            yield self._generated(task)
        used = self.asked.tasks
        for one in self._of_files(held):
            used += 1
            yield one
        if not used:
            raise UserError(
                f"data.corpus.kernels: of {len(self.dropped) + len(self.like):,} tasks in its files none can be used, the first: "
                f"{[*self.dropped, *self.like][0]}",
                "mend the files, or ask for generated tasks: --set data.corpus.kernels.tasks=2000",
            )

    def notes(self) -> list[str]:
        """Say what was left out."""
        said = []
        for found, why in ((self.dropped, "cannot be used"), (self.like, "are like held-out ones")):
            if found:
                more = " ..." if len(found) > MOST_SHOWN else ""
                said.append(f"{len(found):,} tasks {why} and were left out: {'; '.join(found[:MOST_SHOWN])}{more}")
        return said

    def facts(self) -> dict[str, Any]:
        """Return all that was left out, for the prepared data's description."""
        return {"kernels": {"left_out": self.dropped, "like_held_out": self.like}}

    def _is_like(self, held: HeldOut, one: Profile) -> bool:
        why = held.like(one)
        if why is not None:
            self.like.append(f"{one.where} {why}")
        return why is not None

    def _generated(self, task: KernelTask) -> Tasked:
        prompt = task_prompt(task.written.reference, plan=self.asked.plan)
        answer = task_answer(task.written.plan if self.asked.plan else "", task.written.answer)
        return Tasked(task.name, prompt, answer, task.record, task.key)

    def _of_files(self, held: HeldOut) -> Iterator[Tasked]:
        keys = split_keys()
        for where, source, answer in self._texts():
            try:
                one = profile(source, where)
            except NoTask as error:
                self.dropped.append(f"{where}: {error}")
                continue
            if self._is_like(held, one):
                continue
            name = one.combination
            # A combination that is generated too lies on the same side as there.
            side = keys[name] if name in keys else xxhash.xxh3_64_intdigest(name.encode())
            # A model that was shown the sizes and kinds of inputs would write for those alone.
            shown = without_settings(source)
            record = {
                "task": {"name": Path(where).stem, "source": source},
                "level": _level(len(one.operators)),
                "operators": list(one.operators),
            }
            yield Tasked(where, task_prompt(shown, plan=self.asking and self.asked.plan), answer, record, side)

    def _texts(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield where a task stands, its module and its answer."""
        for file in _listed(self.asked.problems):
            try:
                yield file.path, _text(file.path), None
            except NoTask as error:
                self.dropped.append(f"{file.path}: {error}")
        for file in _listed(self.asked.pairs):
            for number, record in records(file.path, form_of(file.path, "records")):
                where = f"{file.path}:{number}"
                source, answer = self._column(record, PYTORCH_KEYS), self._column(record, TRITON_KEYS)
                if source is None or answer is None:
                    expected = f"{' or '.join(PYTORCH_KEYS)}, and {' or '.join(TRITON_KEYS)}"
                    self.dropped.append(f"{where}: has the keys {', '.join(sorted(record))}, expected {expected}")
                elif (why := _no_kernel(answer)) is not None:
                    self.dropped.append(f"{where}: {why}")
                else:
                    yield where, _as_model(source, record.get("entry_point")), task_answer("", answer)

    def _column(self, record: dict[str, Any], keys: Sequence[str]) -> str | None:
        return next((record[key] for key in keys if isinstance(record.get(key), str) and record[key].strip()), None)


def kernels_of(recipe: Recipe) -> list[KernelTasks]:
    """Return the kernel tasks that a recipe's corpora ask for."""
    found = (one.kernels for one in corpora_of(recipe) if isinstance(one, ConversationCorpus | PromptCorpus))
    return [one for one in found if one is not None]


def kernel_files(asked: KernelTasks) -> list[CorpusFile]:
    """Return every file that a recipe names for its kernel tasks. Raises UserError where one is missing."""
    return [file for patterns in (asked.problems, asked.pairs, asked.held_out) for file in _listed(patterns)]


def held_out_tasks(asked: KernelTasks) -> HeldOut:
    """Return the tasks of the folders that are kept for an evaluation.

    Raises:
        UserError: a file is missing, or none of them is a task: nothing would be compared with anything.
    """
    found, bad = [], []
    for file in _listed(asked.held_out):
        try:
            found.append(profile(_text(file.path), file.path))
        except NoTask as error:
            bad.append(f"{file.path}: {error}")
    if bad and not found:
        raise UserError(
            f"data.corpus.kernels.held_out: no task among {len(bad):,} files: {bad[0]}", "name KernelBench's problems"
        )
    return HeldOut(found)


def _listed(patterns: Sequence[str]) -> list[CorpusFile]:
    """Return the files of patterns; a folder stands for its Python files."""
    inside = [str(Path(name).expanduser() / "**" / "*.py") if Path(name).expanduser().is_dir() else name for name in patterns]
    return listed_files(inside) if inside else []


def _level(operators: int) -> int:
    """Return the level of a task of others: as of generated ones, by how many operators it has."""
    return 1 if operators <= 1 else 2 if operators <= FUSED else 3


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise NoTask(f"cannot be read ({error})") from None


def _as_model(source: str, entry: Any) -> str:
    """Return a module whose class is called Model: KernelBook names it by the record's entry point."""
    if not isinstance(entry, str) or not entry.isidentifier() or "class Model(" in source:
        return source
    return f"{source.rstrip()}\n\n\nclass Model({entry}):\n    pass\n"


def _no_kernel(text: str) -> str | None:
    """Return why a text is no Triton code; None where it is."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"its Triton code is not Python ({error})"
    jitted = any(
        isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(one) for one in node.decorator_list)
        for node in ast.walk(tree)
    )
    # KernelBook's answers are TorchInductor's output, which holds kernels as text.
    return None if jitted or "async_compile.triton" in text else "its Triton code has no @triton.jit function"
