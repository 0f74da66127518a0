"""The judge computes of a reference what it needs, and no more often than it has to."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windtunnel.verify.kernel.child.compare import Leave, values_differ  # noqa: E402
from windtunnel.verify.kernel.child.group import Group  # noqa: E402
from windtunnel.verify.kernel.child.judge import compared  # noqa: E402
from windtunnel.verify.kernel.compare import Difference  # noqa: E402
from windtunnel.verify.kernel.hidden import Case  # noqa: E402

SOURCE = """\
import torch
import torch.nn as nn

N = 96


class Model(nn.Module):
    def forward(self, a, b):
        a.mul_(2)
        return a @ b


def get_inputs():
    return [torch.randn(N, N), torch.randn(N, N)]


def get_init_inputs():
    return []
"""


def message(**more) -> dict:
    common = {"sources": {"full": SOURCE}, "seed": 3, "fixed": [], "device": "cpu", "training": False}
    return common | {"tolerance": {}, "tf32": True, "timed": 0, "flops": {}} | more


def inputs_of(group: Group, variation: str = "plain") -> list:
    return group.drawn.inputs(Case("full", group.key[1], variation).as_json(), 5)


def test_what_a_call_multiplies_is_counted_once_for_a_task() -> None:
    group = Group(message(), "full", "float32")
    group.answers(inputs_of(group))
    assert group.flops == 2 * 96**3
    assert group.tf32
    again = Group(message(flops={"full float32": 7}), "full", "float32")
    again.answers(inputs_of(again))
    assert again.flops == 7


@pytest.mark.parametrize(
    ("dtype", "more"), [("float16", {}), ("float32", {"tf32": False}), ("float32", {"tolerance": {"float32": 1e-3}})]
)
def test_it_is_not_counted_where_neither_clock_nor_products_need_it(dtype: str, more: dict) -> None:
    group = Group(message(**more), "full", dtype)
    group.answers(inputs_of(group))
    assert group.flops is None
    assert not group.tf32
    timed = Group(message(**more, timed=3), "full", dtype)
    timed.answers(inputs_of(timed))
    assert timed.flops == 2 * 96**3
    assert not timed.tf32


def test_a_reference_that_writes_to_its_inputs_leaves_the_judges_alone() -> None:
    for dtype in ("float32", "float64"):
        group = Group(message(), "full", dtype)
        inputs = inputs_of(group)
        before = inputs[0].clone()
        own, exact, _ = group.answers(inputs)
        group.drawn.coarse(inputs)
        assert torch.equal(inputs[0], before)
        assert torch.allclose(own[0].double(), exact[0], atol=1e-3)


def test_the_rounding_of_plain_values_serves_scaled_and_negated_ones_alone() -> None:
    group = Group(message(), "full", "float32")
    made = []
    coarse = group.drawn.coarse
    group.drawn.coarse = lambda inputs, **how: made.append(1) or coarse(inputs, **how)  # type: ignore[method-assign]
    assert group.known_roundings("plain") is None
    found = {}
    for variation in ("plain", "negated", "scaled", "large"):
        inputs = inputs_of(group, variation)
        own, exact, _ = group.answers(inputs)
        known = group.known_roundings(variation)
        found[variation] = known or group.roundings(variation, inputs, own, exact, 1)
        assert (
            values_differ(coarse(inputs)[0].float(), own[0], exact[0], "It", {"float32": 2e-3}, 0.0, found[variation][0]) is None
        )
        off = exact[0] + 40 * found["plain"][0].worst * exact[0].abs().mean()
        assert values_differ(off.float(), own[0], exact[0], "It", {"float32": 2e-3}, 0.0, found[variation][0]) is not None
    assert len(made) == 2  # plain and large
    assert found["negated"] is found["scaled"] is found["plain"]


class Given:
    """What a candidate gave."""

    finite_alone, part = False, 1

    def __init__(self, output: torch.Tensor) -> None:
        self.output = output

    def judge(self, own: list, exact: list, roundings: list, *, tf32: bool, leave: Leave | None = None) -> Difference | None:
        tolerance = {"float32": 2e-3} if tf32 else {}
        return values_differ(self.output.to(own[0].dtype), own[0], exact[0], "It", tolerance, 0.0, roundings[0], leave)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_as_near_to_the_reference_in_its_own_dtype_needs_no_float64(dtype: str) -> None:
    group = Group(message(), "full", dtype)
    inputs = inputs_of(group)
    own, exact_of, _ = group.answers(inputs)
    made, exact = [], group.drawn.exact
    group.drawn.exact = lambda inputs: made.append(1) or exact(inputs)  # type: ignore[method-assign]
    assert compared(Given(exact_of[0]), group, "plain", inputs, own) is None
    assert not made
    wrong = compared(Given(exact_of[0] * 1.2), group, "plain", inputs, own)
    assert wrong is not None
    assert wrong.reason == "wrong-values"
    assert made == [1], "who is refused is refused by float64"


ATTENTION = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.125)


def get_inputs():
    return [torch.randn(4, 8, 128, 64) for _ in range(3)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("bits", "right"), [("float16", True), ("bfloat16", False)])
def test_an_attention_that_rounds_its_scaled_queries_is_right_in_their_own_dtype_alone(bits: str, right: bool) -> None:
    """Scores of 45 turn on the last bit of a query: a few elements are off by as much as the reference with other last bits."""
    group = Group(message(sources={"full": ATTENTION}), "full", "float16")
    refused = set()
    for seed in range(3):
        inputs = group.drawn.inputs(Case("full", "float16", "scaled").as_json(), seed)
        own, _ = group.own(inputs)
        q, k, v = (value.float() for value in inputs)
        scores = (q * 0.125 * 1.44269504).to(getattr(torch, bits)).float() @ k.transpose(-1, -2)
        scores = scores.masked_fill(torch.ones(128, 128, dtype=torch.bool).triu(1), -float("inf"))
        weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
        given = (weights.half().float() @ v) / weights.sum(-1, keepdim=True)
        refused.add(compared(Given(given), group, "scaled", inputs, own) is not None)
        exact = group.drawn.exact(inputs)
        alone = Given(given).judge(own, exact, [None], tf32=False)
        assert alone is not None, "or this shows nothing"
    assert refused == {not right}


def test_digits_that_the_reference_has_not_itself_are_doubtful_unless_the_inputs_are_the_tasks_own() -> None:
    cancelling = SOURCE.replace("a.mul_(2)\n        return a @ b", "return (a + 4096) - 4096 + b")

    def doubtful(group: Group, variation: str, off: float) -> bool:
        inputs = inputs_of(group, variation)
        own, exact, _ = group.answers(inputs)
        wrong = compared(Given(exact[0] + off), group, variation, inputs, own)
        assert wrong is not None
        return wrong.doubtful

    rough = Group(message(sources={"full": cancelling}), "full", "float16")
    assert not doubtful(rough, "plain", 2.5)
    assert doubtful(rough, "scaled", 2.5)
    assert not doubtful(rough, "scaled", 9.0), "more than the reference itself"
    assert not doubtful(rough, "scaled", float("nan"))
    steady = Group(message(sources={"full": cancelling.replace("4096", "0.5")}), "full", "float16")
    assert not doubtful(steady, "scaled", 2.5)


def test_what_stands_for_no_number_is_doubtful_and_the_numbers_beside_are_not() -> None:
    logarithm = SOURCE.replace("a.mul_(2)\n        return a @ b", "return a.log() + 0 * b").replace(
        "torch.randn(N", "torch.rand(N"
    )
    group = Group(message(sources={"full": logarithm}), "full", "float32")
    inputs = inputs_of(group)
    own, _ = group.own(inputs)
    assert compared(Given(own[0]), group, "plain", inputs, own) is None
    inputs[0] -= 0.5
    own, exact, _ = group.answers(inputs)
    filled = exact[0].nan_to_num(-23.0)
    for given, doubtful in ((filled, True), (torch.where(exact[0].isnan(), filled, filled + 1), False)):
        wrong = compared(Given(given), group, "scaled", inputs, own)
        assert wrong is not None
        assert wrong.doubtful == doubtful


def test_of_a_single_number_the_references_rounding_is_known_from_inputs_nearby() -> None:
    """A sum that cancels is off by another amount each time; a matrix shows that by itself."""
    summed = SOURCE.replace("a.mul_(2)\n        return a @ b", "return (a.sum() + 1e4) - 1e4 - a.sum() + 2")
    group = Group(message(sources={"full": summed}, tf32=False), "full", "float32")
    right = 0
    for seed in range(8):
        inputs = group.drawn.inputs(Case("full", "float32", "plain").as_json(), seed)
        own, exact, _ = group.answers(inputs)
        assert 1e-4 < group.drawn.errors(inputs, own, exact)[0] < 1e-2
        right += Given(exact[0] + 2e-3).judge(own, exact, [None], tf32=False) is None
        assert compared(Given(exact[0] + 2e-3), group, "plain", inputs, own) is None
        wrong = compared(Given(exact[0] + 0.05), group, "plain", inputs, own)
        assert wrong is not None
        assert not wrong.doubtful
    assert right < 8, "or this shows nothing"
    matrix = Group(message(), "full", "float32")
    inputs = inputs_of(matrix)
    own, exact, _ = matrix.answers(inputs)
    assert matrix.drawn.errors(inputs, own, exact) == [0.0]
