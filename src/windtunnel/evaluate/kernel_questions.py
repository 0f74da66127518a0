"""Held-out questions that ask for a kernel: conversations find their task again; of what is alike as few as can be are asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.data import TaskReader, kernels_of
from windtunnel.recipe import Recipe, UserError

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def records_of(prompts: Sequence[str], recipe: Recipe) -> list[dict[str, Any] | None]:
    """Return the record of the kernel task that each prompt shows the module of; None where the recipe's data have none such.

    Tasks are drawn anew, as when the data were prepared, until all are found.

    Raises:
        UserError: the recipe's conversations have no kernel tasks.
    """
    sources = kernels_of(recipe)
    if not sources:
        raise UserError(
            "stages.sft.answers.metric: kernel judges answers to kernel tasks, and data.corpus has none",
            "another metric, or data.corpus.kernels",
        )
    wanted = [_module(prompt) for prompt in prompts]
    # Prepared conversations keep text alone, so tasks are drawn again and found by the module shown.
    left, found = {module for module in wanted if module}, dict[str, dict[str, Any]]()
    for asked in sources:
        for task in TaskReader(asked, recipe.seed).read() if left else ():
            module = _module(task.prompt)
            if module in left:
                found[module] = task.record
                left.discard(module)
            if not left:
                break
    return [found.get(module) for module in wanted]


def _module(prompt: str) -> str:
    """Return the last block of Python, without white space, of which tokenizers make what they like."""
    blocks = _BLOCK.findall(prompt)
    # The last: a plan before it may hold code too.
    return "".join(blocks[-1].split()) if blocks else ""


def group_of(record: Mapping[str, Any]) -> str | None:
    """Return what tasks that are alike have in common, their operators; None: nothing is known of it."""
    operators = record.get("operators")
    return "+".join(map(str, operators)) if isinstance(operators, list) and operators else None


def spread(order: Sequence[int], groups: Sequence[str | None]) -> list[int]:
    """Return an order of which every beginning is of as many groups as can be: one of each, then a second of each, and so on.

    Of one group the first of `order` come first; a question whose group is None is alike to no other.
    """
    seen = Counter[str]()
    turns = []
    for number in order:
        group = groups[number]
        turns.append(0 if group is None else seen[group])
        seen.update([] if group is None else [group])
    return [order[place] for place in sorted(range(len(order)), key=turns.__getitem__)]
