"""Which inputs a candidate is run on that it has not seen: other values, other signs, other magnitudes, other shapes."""

from __future__ import annotations

import ast
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from windtunnel.verify.kernel.task import Task, may_follow_mode


@dataclass(frozen=True)
class Change:
    """What becomes of the floating inputs that the task does not fix.

    All get the sign, where it is not 0, with larger ones at the ends of dimensions; then they are multiplied, every second one by
    the second factor; then the offset is added.
    """

    factor: float = 1.0
    offset: float = 0.0
    sign: float = 0.0
    second_factor: float | None = None


# Beyond float16's range, and not TF32's, which is float32's. Inputs take turns, so that a product of two is as large as before:
# where all scores of attention are huge, they turn on a maximum's last bit, and a mask of -1e6 hides none of them.
FAR = 131072.0
CHANGES = {
    "plain": Change(),
    "scaled": Change(3.0),
    "small": Change(0.01),
    "negated": Change(-1.0),
    "large": Change(100.0),
    "wide": Change(FAR, second_factor=1 / FAR),
    "steep": Change(8.0),
    "faint": Change(1e-4),
    "shifted": Change(offset=200.0),  # exp overflows there, and all differences stay what they are
    "positive": Change(sign=1.0),  # no zero of a block's padding is the largest then
    "negative": Change(sign=-1.0),  # or the smallest
}
ONE_SIGN = ("positive", "negative")
FULL_VARIATIONS = ("plain", "negated", "scaled", "large", "shifted", "steep")
ALWAYS_FULL = FULL_VARIATIONS[:2]  # also where the interpreter ran them
WIDE = ("wide",)
PRODUCTS = ("bmm", "addmm", "addmv", "matmul", "linear", "conv", "einsum", "dot", "attention", "cdist", "rnn", "lstm", "gru")
SHORT_PRODUCTS = ("mm", "mv")
HIDDEN_ELSEWHERE = ("negated", "large", "steep", "shifted")  # of the dtypes after the first


@dataclass(frozen=True)
class Case:
    """One run of reference and candidate. variation: a key of CHANGES.

    training: the module is in training mode and gradients are on, as nothing that a kernel may depend on.
    """

    size: str
    dtype: str
    variation: str
    training: bool = False

    @property
    def group(self) -> tuple[str, str]:
        """Cases of one group share a model."""
        return self.size, self.dtype

    def label(self) -> str:
        """Return 'tiny float32 negated', for messages."""
        words = [self.size.replace("_", " "), self.dtype, self.variation.replace("_", " ")]
        return " ".join([*words, "in training mode"] if self.training else words)

    def as_json(self) -> dict[str, Any]:
        """Return the case as JSON, for a child."""
        return {**asdict(self), **asdict(CHANGES[self.variation])}


def new_seed() -> int:
    """Draw a seed from the operating system: no candidate can replay it."""
    return secrets.randbits(62)


def interpreted(task: Task) -> tuple[str, ...]:
    """Return the dtypes that the interpreter runs: the task's first one, and of the others those that it computes in quickly."""
    return (task.dtypes[0], *(dtype for dtype in task.dtypes[1:] if dtype != "bfloat16"))


def tiny_cases(task: Task) -> list[Case]:
    """Return what the interpreter runs: every variation once or twice over two shapes and the dtypes that it is asked for."""
    first, *others = interpreted(task)
    cases = [Case("tiny", first, variation) for variation in _ordered(task)]
    if not task.training and not may_follow_mode(task):
        cases.insert(1, Case("tiny", first, "plain", training=True))
    signs = ONE_SIGN if "negated" in task.variations else ()
    if "tiny_ragged" in task.sizes:
        hidden = [variation for variation in _ordered(task) if variation != "plain"]
        cases += [Case("tiny_ragged", first, variation) for variation in ("plain", *hidden[:1], *signs)]
    for dtype in others:  # host code may do something else for each
        cases += [Case("tiny", dtype, "plain"), *(Case("tiny", dtype, v) for v in HIDDEN_ELSEWHERE if v in task.variations)]
        if "tiny_ragged" in task.sizes:
            cases += [Case("tiny_ragged", dtype, variation) for variation in ("plain", *signs)]
    return [replace(case, training=True) for case in cases] if task.training else cases


def full_cases(task: Task, seen: Collection[str] = ()) -> list[Case]:
    """Return what a GPU runs before anything is timed: what the tiny sizes cannot show, since values are hidden there too.

    seen: variations that were run at tiny sizes.
    """
    cases = []
    for number, dtype in enumerate(task.dtypes):
        some = [v for v in FULL_VARIATIONS if v in ALWAYS_FULL or v not in seen] if number == 0 else ["plain"]
        asked = set(task.variations) - set(task.fragile)  # for which nobody is refused: a note is not worth a GPU's time
        cases += [Case("full", dtype, variation) for variation in some if variation in asked]
        if "full_ragged" in task.sizes:
            cases.append(Case("full_ragged", dtype, "plain"))
    if task.tf32 and "float32" in task.dtypes and may_have_products(task.source):
        cases.append(Case("full", "float32", "wide"))
    return [replace(case, training=task.training) for case in cases]


@lru_cache(maxsize=256)
def may_have_products(source: str) -> bool:
    """Return whether the text of a reference names a matrix product. One too many costs a run. Kept: every answer asks."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.MatMult):
            return True
        name = node.attr.lower() if isinstance(node, ast.Attribute) else node.id.lower() if isinstance(node, ast.Name) else ""
        if name in SHORT_PRODUCTS or any(word in name for word in PRODUCTS):
            return True
    return False


def _ordered(task: Task) -> tuple[str, ...]:
    return ("plain", *(variation for variation in task.variations if variation != "plain"))
