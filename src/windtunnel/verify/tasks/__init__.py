"""Generated kernel tasks: fusions and single operators in three levels, each with its reference, sizes and variations."""

from __future__ import annotations

from windtunnel.recipe import UserError
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks import elementwise, gemm, layout, rows

__all__ = ["catalogue", "find"]


def catalogue() -> dict[str, Task]:
    """Return every generated task by name, in a fixed order."""
    found: dict[str, Task] = {}
    for family in (elementwise, rows, gemm, layout):
        for task in family.tasks():
            assert task.name not in found, f"two tasks are named {task.name}"
            found[task.name] = task
    return found


def find(name: str) -> Task:
    """Return the task of that name.

    Raises:
        UserError: there is none; names those that sound alike.
    """
    tasks = catalogue()
    if name in tasks:
        return tasks[name]
    import difflib

    near = difflib.get_close_matches(name, tasks, n=3) or sorted(tasks)[:3]
    raise UserError(f"there is no kernel task named {name!r}", f"take one of {len(tasks)} names, such as {', '.join(near)}")
