"""Which outputs count as right: metadata exactly, values within what the dtype and the task allow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.verify.kernel.arrays import Array, array_from, row_major
from windtunnel.verify.kernel.compare import difference, is_flat, is_rough, unmoved_share
from windtunnel.verify.kernel.hidden import Case
from windtunnel.verify.kernel.prepared import Ready
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.tiny import judge_tiny
from windtunnel.verify.sandbox import Outcome

TASK = Task(name="t", source="")


def array(values: np.ndarray, dtype: str | None = None, stride: tuple[int, ...] | None = None) -> Array:
    return Array(dtype or str(values.dtype), values.shape, stride or row_major(values.shape), values.tobytes())


def ready(own: np.ndarray, exact: np.ndarray | None = None, kind: str = "tensor") -> Ready:
    right = own.astype(np.float64) if exact is None else exact
    return Ready(Case("tiny", str(own.dtype), "plain"), [], [], [], [], [], [array(own)], [array(right)], kind)


def reason(given: Array, of: Ready, task: Task = TASK) -> str:
    found = difference([given], "tensor", of, task)
    return "" if found is None else found.reason


RIGHT = np.random.default_rng(0).standard_normal((7, 9)).astype(np.float32)


def test_the_reference_itself_passes() -> None:
    assert reason(array(RIGHT), ready(RIGHT)) == ""


@pytest.mark.parametrize(
    ("given_array", "slug"),
    [
        (array(RIGHT[:, :8].copy()), "wrong-shape"),
        (array(RIGHT[None].copy()), "wrong-shape"),
        (array(RIGHT.astype(np.float64)), "wrong-dtype"),
        (array(RIGHT, stride=(1, 7)), "wrong-stride"),
        (array(np.zeros_like(RIGHT)), "wrong-values"),
        (array(np.full_like(RIGHT, RIGHT.mean())), "wrong-values"),
        (array(np.where(RIGHT.max() == RIGHT, np.nan, RIGHT).astype(np.float32)), "non-finite"),
        (array(np.where(RIGHT.max() == RIGHT, np.inf, RIGHT).astype(np.float32)), "non-finite"),
        (array(np.where(RIGHT.max() == RIGHT, 9, RIGHT).astype(np.float32)), "wrong-values"),
        (array(RIGHT.astype(np.float16).astype(np.float32)), "wrong-values"),
    ],
)
def test_wrong_outputs_are_refused_by_name(given_array: Array, slug: str) -> None:
    assert reason(given_array, ready(RIGHT)) == slug


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), magnitude=st.sampled_from([1e-12, 1e-4, 1.0, 1e6]))
def test_rounding_passes_and_zeros_never_do_at_any_magnitude(seed: int, magnitude: float) -> None:
    exact = np.random.default_rng(seed).standard_normal((5, 11)) * magnitude
    own = exact.astype(np.float32)
    nearby = np.nextafter(own, np.float32(np.inf))
    assert reason(array(nearby), ready(own, exact)) == ""
    assert reason(array(np.zeros_like(own)), ready(own, exact)) == "wrong-values"


def test_infinities_of_the_reference_are_demanded_not_wildcards() -> None:
    own = RIGHT.copy()
    own[0, 0] = -np.inf
    of = ready(own)
    assert reason(array(own), of) == ""
    for other in (np.inf, np.nan, 0.0):
        changed = own.copy()
        changed[0, 0] = other
        assert reason(array(changed), of) == "wrong-values"


def test_whole_numbers_are_exact_unless_the_task_lets_a_few_be_off_by_one() -> None:
    own = np.arange(200, dtype=np.int64)
    given_values = own.copy()
    given_values[3] += 1
    assert reason(array(given_values), ready(own)) == "wrong-values"
    assert reason(array(given_values), ready(own), Task(name="t", source="", mismatched=0.01)) == ""
    given_values[4] += 2
    assert reason(array(given_values), ready(own), Task(name="t", source="", mismatched=0.02)) == "wrong-values"


def test_structure_is_exact() -> None:
    one = array(RIGHT)
    assert difference([one, one], "tuple", ready(RIGHT), TASK).reason == "wrong-structure"
    assert difference([one], "tuple", ready(RIGHT), TASK).reason == "wrong-structure"


def test_constant_outputs_are_flat_and_varied_ones_are_not() -> None:
    assert is_flat(ready(np.zeros((4, 4), np.float32)), TASK)
    assert is_flat(ready(np.full((4, 4), 3.0, np.float32)), TASK)
    assert not is_flat(ready(RIGHT), TASK)


def test_bfloat16_bits_are_read() -> None:
    bits = (np.array([1.0, -2.5], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert Array("bfloat16", (2,), (1,), bits.tobytes()).values().tolist() == [1.0, -2.5]


def test_output_that_is_there_without_kernels_is_counted() -> None:
    half = np.full_like(RIGHT, np.nan)
    half[:, :3] = 1
    assert unmoved_share([array(half)], ready(RIGHT)) == pytest.approx(1 / 3)
    assert unmoved_share([array(np.full_like(RIGHT, np.nan))], ready(RIGHT)) == 0


@settings(max_examples=80, deadline=None)
@given(
    head=st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["float32", "int64", "object", 3]),
            "shape": st.lists(st.integers(-2, 9)),
            "stride": st.lists(st.integers(-2, 9)),
        }
    ),
    size=st.integers(0, 64),
)
def test_a_forged_head_never_gives_more_elements_than_bytes(head: dict, size: int) -> None:
    made = array_from(head, bytes(size))
    assert made is None or made.raw().nbytes == size


def test_a_whole_number_is_right_where_the_dtype_or_float64_has_it() -> None:
    own, exact = np.array([1, 7, -3], np.int8), np.array([0, 7, -3], np.int8)
    of = Ready(Case("tiny", "float16", "plain"), [], [], [], [], [], [array(own)], [array(exact)], "tensor")
    assert reason(array(own), of) == reason(array(exact), of) == ""
    assert reason(array(np.array([2, 7, -3], np.int8)), of) == "wrong-values"
    assert reason(array(np.array([0, 6, -3], np.int8)), of) == "wrong-values"


def test_a_reference_is_rough_where_it_would_be_refused_itself() -> None:
    exact = np.random.default_rng(1).standard_normal((40, 40))
    rounded = exact.astype(np.float16)
    assert not is_rough(ready(rounded, exact), TASK)
    peaked = np.exp(2 * exact)  # its largest element's rounding is more than most elements are
    assert not is_rough(ready(peaked.astype(np.float16), peaked), TASK)
    assert is_rough(ready(((exact + 4096).astype(np.float16) - np.float16(4096)), exact), TASK)
    assert not is_rough(ready(np.arange(9), np.arange(9)), TASK)


def test_one_number_that_is_right_by_luck_is_no_measure_of_its_rounding() -> None:
    """What the reference is off by with inputs nearby counts too, as far as its own error ever does."""
    of = ready(np.array([3.6e-4], np.float32))
    off = array(np.array([3.604e-4], np.float32))
    assert reason(off, of) == "wrong-values"
    assert reason(off, replace(of, errors=lambda: [6e-8])) == ""
    assert reason(array(np.array([3.7e-4], np.float32)), replace(of, errors=lambda: [1e-5])) == "wrong-values"


@pytest.mark.parametrize(("size", "found"), [("tiny", "wrong-values"), ("tiny_long_WIDTH_512", "")])
def test_a_size_that_is_not_the_tasks_own_asks_for_no_more_digits_than_its_reference_has(size: str, found: str) -> None:
    exact = np.random.default_rng(2).standard_normal(999)
    rough = ready((exact * 1.01).astype(np.float32), exact)
    case = replace(rough, case=Case(size, "float32", "plain"))
    for factor, noted in ((1.012, found), (2.0, "wrong-values")):
        given_array, fragile = array((exact * factor).astype(np.float32)), list[str]()
        run = {"kind": "tensor", "outputs": [{**given_array.head(), "at": 0}]}
        outcome = Outcome("finished", "", {"runs": [run]}, (bytes(given_array.data),))
        judged = judge_tiny(outcome, TASK, [case], fragile)
        assert ("" if judged is None else judged.reason) == noted
        assert bool(fragile) is not bool(noted)


def test_inputs_nearby_are_asked_for_only_where_an_output_of_few_numbers_is_wrong() -> None:
    asked: list[int] = []

    def errors() -> list[float]:
        asked.append(1)
        return [0.0]

    few, many = (replace(ready(np.arange(1, n, dtype=np.float32)), errors=errors) for n in (9, 900))
    assert reason(array(np.arange(1, 9, dtype=np.float32)), few) == ""
    assert reason(array(np.arange(2, 901, dtype=np.float32)), many) == "wrong-values"
    assert not asked
    assert reason(array(np.arange(2, 10, dtype=np.float32)), few) == "wrong-values"
    assert asked == [1]
