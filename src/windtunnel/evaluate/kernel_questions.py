"""Held-out conversations that ask for a kernel: each finds its task again, which the verifier of kernels needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from windtunnel.data import TaskReader
from windtunnel.recipe import ConversationCorpus, KernelTasks, MixtureCorpus, Recipe, UserError

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def tasks_of(prompts: Sequence[str], recipe: Recipe) -> list[dict[str, Any] | None]:
    """Return the kernel task that each prompt shows the module of; None where the recipe's data have none such.

    Tasks are drawn anew, as when the data were prepared, until all are found.

    Raises:
        UserError: the recipe's conversations have no kernel tasks.
    """
    sources = list(_sources(recipe))
    if not sources:
        raise UserError(
            "stages.sft.answers.metric: kernel judges answers to kernel tasks, and data.corpus has none",
            "another metric, or data.corpus.kernels",
        )
    wanted = [_module(prompt) for prompt in prompts]
    left, found = {module for module in wanted if module}, dict[str, dict[str, Any]]()
    for asked in sources:
        for task in TaskReader(asked, recipe.seed).read() if left else ():
            module = _module(task.prompt)
            if module in left:
                found[module] = task.record["task"]
                left.discard(module)
            if not left:
                break
    return [found.get(module) for module in wanted]


def _module(prompt: str) -> str:
    """Return the last block of Python, without white space, of which tokenizers make what they like."""
    blocks = _BLOCK.findall(prompt)
    return "".join(blocks[-1].split()) if blocks else ""


def _sources(recipe: Recipe) -> Iterator[KernelTasks]:
    corpus = recipe.data.corpus
    for one in [source.corpus for source in corpus.sources] if isinstance(corpus, MixtureCorpus) else [corpus]:
        if isinstance(one, ConversationCorpus) and one.kernels is not None:
            yield one.kernels
