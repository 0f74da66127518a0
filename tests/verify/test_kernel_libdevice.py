"""Functions of libdevice on the interpreter, by the names that Triton's compiler links."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("triton")

from windtunnel.verify.kernel.child.libdevice import _found

FOUND = {
    ("tanhf", (0.5,)): math.tanh(0.5),
    ("fmaf_rn", (2.0, 3.0, 4.0)): 10.0,
    ("fadd_rz", (2.0, 3.0)): 5.0,
    ("fast_expf", (1.0,)): math.e,
    ("float2int_rd", (-1.5,)): -2,
    ("double2float_rn", (0.5,)): 0.5,
    ("erfcf", (0.3,)): math.erfc(0.3),
    ("normcdf", (0.0,)): 0.5,
    ("rnorm3df", (2.0, 3.0, 6.0)): 1 / 7,
    ("norm4d", (1.0, 1.0, 1.0, 1.0)): 2.0,
    ("llabs", (-3,)): 3,
    ("isnand", (math.nan,)): True,
    ("finitef", (math.inf,)): False,
    ("ilogbf", (9.0,)): 3,
    ("llroundf", (-2.5,)): -3,
    ("tgammaf", (200.0,)): math.inf,
}


@pytest.mark.parametrize(("name", "given"), FOUND)
def test_a_function_is_found_by_its_symbol(name: str, given: tuple[float, ...]) -> None:
    function = _found(name)
    assert function is not None
    assert function(*(np.array([value]) for value in given))[0] == pytest.approx(FOUND[name, given])


def test_bits_are_kept() -> None:
    to, back = _found("float_as_int"), _found("int_as_float")
    assert to is not None
    assert back is not None
    bits = to(np.array([1.0], np.float32))
    assert bits.tolist() == [0x3F800000]
    assert back(bits).tolist() == [1.0]


def test_what_is_unknown_is_not_found() -> None:
    assert _found("byte_perm") is None
