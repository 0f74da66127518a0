"""Products in TF32, as Triton's and cuDNN's default has them, pass where a task allows them; coarser ones do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from windtunnel.verify import find_task, kernel_tasks  # noqa: E402
from windtunnel.verify.kernel.child.compare import not_finite, values_differ  # noqa: E402
from windtunnel.verify.kernel.child.draw import Drawn  # noqa: E402
from windtunnel.verify.kernel.child.judge import TF32_RELATIVE  # noqa: E402
from windtunnel.verify.kernel.child.products import CoarseProducts, cut  # noqa: E402
from windtunnel.verify.kernel.hidden import WIDE, Case, full_cases, may_have_products  # noqa: E402

DEEP = 2048
EPILOGUES = {
    "none": lambda y: y,
    "relu": torch.relu,
    "squared relu": lambda y: torch.relu(y).square(),
    "silu": torch.nn.functional.silu,
    "softmax": lambda y: y.softmax(-1),
}


def factors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b, bias = (torch.randn(*shape, generator=generator) for shape in ((256, DEEP), (DEEP, 256), (256,)))
    return a, b / DEEP**0.5, bias


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 to the nearest with so many bits of mantissa."""
    low = 23 - bits
    return ((x.view(torch.int32) + (1 << (low - 1))) >> low << low).view(torch.float32)


def summed_in_half(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for at in range(0, DEEP, 16):
        total += (a[:, at : at + 16] @ b[at : at + 16]).half()
    return total.float()


PRODUCTS = {
    "float32": (torch.matmul, True),
    "TF32, cut": (lambda a, b: (cut(a.double()) @ cut(b.double())).float(), True),
    "TF32, rounded": (lambda a, b: rounded(a, 10) @ rounded(b, 10), True),
    "bfloat16": (lambda a, b: a.bfloat16().float() @ b.bfloat16().float(), False),
    "7 bits, cut": (lambda a, b: (a.view(torch.int32) >> 16 << 16).view(torch.float32) @ b, False),
    "sums in float16": (summed_in_half, False),
}


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_ten_bits_pass_and_of_fewer_do_not(name: str, epilogue: str) -> None:
    a, b, bias = factors()
    after, (product, passes) = EPILOGUES[epilogue], PRODUCTS[name]

    def reference(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return after(a @ b + bias)

    wide = (a.double(), b.double(), bias.double())
    with CoarseProducts():
        coarse = reference(*wide)
    given = after(product(a, b) + bias)
    found = values_differ(given, reference(a, b, bias), reference(*wide), "The output", {"float32": TF32_RELATIVE}, 0.0, coarse)
    assert (found is None) == passes, found
    own = reference(a, b, bias)
    with CoarseProducts():
        coarse = reference(a, b, bias)
    near = values_differ(given, own, own.double(), "The output", {"float32": TF32_RELATIVE}, 0.0, coarse)
    assert (near is None) == passes, "float32 tells as much"


def test_where_a_task_does_not_allow_tf32_it_is_refused() -> None:
    a, b, _ = factors()
    exact = a.double() @ b.double()
    given = PRODUCTS["TF32, cut"][0](a, b)
    assert values_differ(a @ b, a @ b, exact, "The output", {}, 0.0) is None
    assert values_differ(given, a @ b, exact, "The output", {}, 0.0) is not None


@pytest.mark.parametrize(
    "made",
    [
        torch.matmul,
        lambda a, b: torch.bmm(a[None], b[None]),
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        lambda a, b: torch.nn.functional.linear(a, b.t()),
        lambda a, b: torch.nn.functional.conv1d(a.t()[None], b.t()[..., None]),
    ],
)
def test_every_kind_of_product_is_made_coarser_and_nothing_else(made) -> None:
    a, b = (torch.randn(8, 8, dtype=torch.float64) for _ in range(2))
    with CoarseProducts():
        off, sums = made(a, b) - made(cut(a), cut(b)), (a + b).exp() * a
    assert off.abs().max() == 0
    assert (made(a, b) - made(cut(a), cut(b))).abs().max() > 1e-6
    assert torch.equal(sums, (a + b).exp() * a)


def test_products_inside_of_attention_are_made_coarser_too() -> None:
    q, k, v = (torch.randn(1, 1, 8, 8, dtype=torch.float64) for _ in range(3))
    with CoarseProducts():
        coarse = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    off = (coarse - torch.nn.functional.scaled_dot_product_attention(q, k, v)).abs().max()
    assert 1e-6 < off < 1e-2


def test_factors_in_float16_overflow_where_tf32_does_not() -> None:
    a, b, _ = factors()
    a *= 65536
    own, exact = a @ b, a.double() @ b.double()
    assert not_finite(PRODUCTS["TF32, rounded"][0](a, b), own, exact, "The output") is None
    found = not_finite(a.half().float() @ b.half().float(), own, exact, "The output")
    assert found is not None
    assert found.reason == "non-finite"


def test_wide_cases_are_of_tasks_with_products_in_tf32_alone() -> None:
    def wide(task) -> int:
        return sum(case.variation in WIDE and case.dtype == "float32" for case in full_cases(task))

    assert wide(find_task("gemm_bias_relu")) == 1
    assert wide(replace(find_task("gemm_bias_relu"), tf32=False)) == 0
    assert wide(find_task("softmax")) == 0
    families = {task.family for task in kernel_tasks().values() if may_have_products(task.source)}
    assert {"gemm", "attention"} <= families
    assert not may_have_products("y = comma(x.max(-1))")


def test_each_input_is_beyond_float16_in_a_wide_case_and_scores_stay_small() -> None:
    """A mask of -1e6 is added by some, and others' maximum is off by its last bit: both need scores that are no larger."""
    task = find_task("causal_attention")
    drawn = Drawn(task.at("tiny"), "float32", 1, [])
    plain, *wide = ([x.abs().max() for x in drawn.inputs(Case("tiny", "float32", v).as_json(), 2)] for v in ("plain", *WIDE))
    beyond = [[bool(x > torch.finfo(torch.float16).max) for x in case] for case in wide]
    assert beyond == [[True, False, True]]
    assert all(torch.isclose(q * k, plain[0] * plain[1]) for q, k, _ in wide)


def test_a_whole_number_may_be_that_of_the_dtype_or_that_of_float64() -> None:
    """x · 16 + ½ rounds up to the next number in float16 where it is just below it in float64."""
    own, exact = torch.tensor([1, 7, -3], dtype=torch.int8), torch.tensor([0, 7, -3], dtype=torch.int8)
    assert values_differ(own, own, exact, "The output", {}, 0.0) is None
    assert values_differ(exact, own, exact, "The output", {}, 0.0) is None
    for place, value in ((0, 2), (0, -1), (1, 6), (2, -2)):
        given = exact.clone()
        given[place] = value
        assert values_differ(given, own, exact, "The output", {}, 0.0) is not None
