"""NVIDIA's libdevice on Triton's interpreter, which has none. Runs only in sandboxed children; imports triton."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter

from windtunnel.verify.kernel.plan.language import words

ROUNDED = ("_rn", "_rz", "_rd", "_ru")  # to the nearest, towards zero, down, up: of a fraction all are as good as the nearest
_SAME_NAME = words(
    """tanh exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh sqrt floor ceil trunc rint fmod fmin fmax hypot cbrt isnan
    isinf isfinite signbit copysign nextafter ldexp"""
)
_WHOLE_AS = (("float", "int"), ("float", "uint"), ("double", "longlong"))
_FAST = words("exp exp2 log log2 log10 sin cos tan tanh")


def _each(function: Callable[..., float]) -> Callable[..., Any]:
    """Compute by Python's function of one number, which raises where a GPU's gives infinity or NaN."""

    def one(*given: float) -> float:
        try:
            return function(*given)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return np.vectorize(one, otypes=[np.float64])


def _length(*parts: Any) -> Any:
    return np.sqrt(sum(part * part for part in parts))


_ELEMENTWISE: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in _SAME_NAME} | {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": np.power, "powi": np.power, "rsqrt": lambda x: 1 / np.sqrt(x), "nearbyint": np.rint,
    "fabs": np.abs, "fma": lambda x, y, z: x * y + z, "fdivide": np.divide, "scalbn": np.ldexp,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "fdim": lambda x, y: np.maximum(x - y, 0),
    "saturate": lambda x: np.clip(x, 0, 1), "exp10": lambda x: np.power(10.0, x), "rcbrt": lambda x: 1 / np.cbrt(x),
    "rhypot": lambda x, y: 1 / np.hypot(x, y), "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "erfc": _each(math.erfc), "normcdf": _each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))), "lgamma": _each(math.lgamma),
    "abs": np.abs, "llabs": np.abs, "finite": np.isfinite, "isfinited": np.isfinite, "isnand": np.isnan, "isinfd": np.isinf,
    "signbitd": np.signbit, "llrint": np.rint, "llround": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "ilogb": lambda x: np.frexp(x)[1] - 1, "cyl_bessel_i0": np.i0, "double2float": np.array,
    "norm3d": _length, "norm4d": _length, "rnorm3d": lambda *x: 1 / _length(*x), "rnorm4d": lambda *x: 1 / _length(*x),
    "tgamma": _each(math.gamma), "remainder": _each(math.remainder), "logb": lambda x: np.floor(np.log2(np.abs(x))),
}  # fmt: skip
_ELEMENTWISE |= {f"{kind}_as_{name}": lambda x: x.view(f"i{x.itemsize}") for kind, name in _WHOLE_AS}
_ELEMENTWISE |= {f"{name}_as_{kind}": lambda x: x.view(f"f{x.itemsize}") for kind, name in _WHOLE_AS}
_ELEMENTWISE |= {f"fast_{name}": getattr(np, name) for name in _FAST}
_ELEMENTWISE |= {"fast_pow": np.power, "fast_exp10": _ELEMENTWISE["exp10"], "fast_fdivide": np.divide}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "rsqrt": _ELEMENTWISE["rsqrt"],
    "rcp": lambda x: 1 / x,
}  # fmt: skip
# In fp32 and fp64 with a rounding that is named: add_rn is __nv_fadd_rn and __nv_dadd_rn.
_ELEMENTWISE |= {f"{kind}{name}": function for kind in "fd" for name, function in _ARITHMETIC.items()}
_ELEMENTWISE |= {
    f"{kind}2{whole}{way}": function
    for kind in ("float", "double")
    for whole in ("int", "uint", "ll", "ull")
    for way, function in zip(ROUNDED, (np.rint, np.trunc, np.floor, np.ceil), strict=True)
}
_ELEMENTWISE |= {f"{whole}2{kind}": np.array for whole in ("int", "uint", "ll", "ull") for kind in ("float", "double")}


def own_libdevice(builder: Any) -> None:
    """Give the interpreter's builder the functions of libdevice by what they are called there ('__nv_tanhf')."""

    def extern(library: str, path: str, symbol: str, arguments: list[Any], kind: Any, pure: bool) -> Any:
        name = symbol.removeprefix("__nv_")
        if name in ("erf", "erff"):
            return builder.create_erf(arguments[0])
        function = _found(name)
        if function is None:
            raise NotImplementedError(f"libdevice {symbol} on the interpreter")
        data = function(*(argument.data for argument in arguments))
        element = kind.scalar if hasattr(kind, "scalar") else kind
        return interpreter.TensorHandle(np.asarray(data).astype(interpreter._get_np_dtype(element)), element)

    builder.create_extern_elementwise = extern
    for name in dir(cuda_libdevice):
        function = getattr(cuda_libdevice, name)
        if not name.startswith("_") and callable(function) and hasattr(libdevice, name):
            called = functools.partial(function, _semantic=interpreter.interpreter_semantic)
            setattr(libdevice, name, called)
            setattr(cuda_libdevice, name, called)


def _found(name: str) -> Callable[..., Any] | None:
    """Return a function by its name there: 'tanhf' is tanh in fp32, 'fmaf_rn' is fma."""
    plain = name[:-3] if name.endswith(ROUNDED) else name
    tried = (name, name.removesuffix("f"), plain, plain.removesuffix("f"))
    return next((_ELEMENTWISE[one] for one in tried if one in _ELEMENTWISE), None)
