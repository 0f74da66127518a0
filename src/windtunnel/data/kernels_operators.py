"""Operators that kernel tasks are made of: each in PyTorch, in Triton and in words.

A pointwise step rewrites `x`, whatever its shape. A core (a row's norm, a product, a convolution) has a loop of its own, which
`kernels_write` knows; here are its PyTorch and, for rows, the statements that do it.
"""

from __future__ import annotations

from dataclasses import dataclass

SOFTPLUS = "tl.maximum(x, 0.0) + libdevice.log1p(tl.exp(-tl.abs(x)))"
# tanh(log(1 + e)) with e = exp(x), without a difference of nearly equal numbers.
MISH = "e = tl.exp(tl.minimum(x, 20.0))\nx * e * (e + 2.0) / (e * (e + 2.0) + 2.0)"
NUMBERS = {"add": (0.125, 0.25, 0.375, 0.5, 0.625, 0.75), "mul": (0.125, 0.25, 0.5, 0.75, 1.5, 2.0, 2.5, 3.0)}


@dataclass(frozen=True)
class Pointwise:
    """One step on every element by itself.

    Attributes:
        torch: expression of `x` in PyTorch, and of {c} where it takes a number. triton: in Triton, perhaps behind statements.
        words: in a plan.
        numbers: those that {c} may be.
    """

    torch: str
    triton: str
    words: str
    numbers: tuple[float, ...] = ()


UNARY: dict[str, Pointwise] = {
    "relu": Pointwise("F.relu(x)", "tl.maximum(x, 0.0)", "relu"),
    "gelu": Pointwise("F.gelu(x)", "0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))", "exact gelu by erf"),
    "silu": Pointwise("F.silu(x)", "x * tl.sigmoid(x)", "silu"),
    "sigmoid": Pointwise("torch.sigmoid(x)", "tl.sigmoid(x)", "sigmoid"),
    "tanh": Pointwise("torch.tanh(x)", "libdevice.tanh(x)", "tanh"),
    "softplus": Pointwise("F.softplus(x)", SOFTPLUS, "softplus that cannot overflow"),
    "hardswish": Pointwise("F.hardswish(x)", "x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0", "hardswish"),
    "mish": Pointwise("F.mish(x)", MISH, "mish by one exponential"),
    "elu": Pointwise("F.elu(x)", "tl.where(x > 0, x, libdevice.expm1(x))", "elu"),
    "leakyrelu": Pointwise(
        "F.leaky_relu(x, {c})", "tl.where(x > 0, x, x * {c})", "leaky relu with slope {c}", (0.01, 0.05, 0.1, 0.2)
    ),
    "softsign": Pointwise("F.softsign(x)", "x / (1.0 + tl.abs(x))", "softsign"),
    "square": Pointwise("torch.square(x)", "x * x", "square"),
    "abs": Pointwise("torch.abs(x)", "tl.abs(x)", "absolute value"),
    "sin": Pointwise("torch.sin(x)", "tl.sin(x)", "sine"),
    "cos": Pointwise("torch.cos(x)", "tl.cos(x)", "cosine"),
    "clamp": Pointwise(
        "torch.clamp(x, -{c}, {c})", "tl.minimum(tl.maximum(x, -{c}), {c})", "clamp to -{c} and {c}", (0.5, 1.0, 1.5, 2.0)
    ),
}
# What `add` and `mul` are with: a parameter by column, a second input, a number.
BINARY = {"add": "+", "mul": "*"}


@dataclass(frozen=True)
class Row:
    """What is done along the last dimension.

    Attributes:
        torch: expression of `x` in PyTorch.
        init: the layer that `__init__` makes of `cols`; '' for none.
        triton: statements on `x` and `mask` that leave the result in `x`; {sum:...} and {max:...} reduce a row and keep its
            dimension, {n} is its length.
        parameters: what Triton calls the layer's weight and bias.
        reduces: the result is a number a row.
        words: in a plan.
    """

    torch: str
    triton: str
    words: str
    init: str = ""
    parameters: tuple[str, ...] = ()
    reduces: bool = False


_SHIFTED = 'x = tl.where(mask, x, -float("inf"))\nx = x - {max:x}\n'
_IN_ROW = "{sum:tl.where(mask, x, 0.0)}"
_SQUARES = "{sum:tl.where(mask, x * x, 0.0)}"
ROWS: dict[str, Row] = {
    "softmax": Row("F.softmax(x, dim=-1)", _SHIFTED + "x = tl.exp(x)\nx = x / {sum:x}", "softmax less the row's maximum"),
    "logsoftmax": Row(
        "F.log_softmax(x, dim=-1)", _SHIFTED + "x = x - tl.log({sum:tl.exp(x)})", "log-softmax less the row's maximum"
    ),
    "layernorm": Row(
        "self.norm(x)",
        f"mean = {_IN_ROW} / {{n}}\nd = tl.where(mask, x - mean, 0.0)\nvariance = {{sum:d * d}} / {{n}}\n"
        "x = d * tl.rsqrt(variance + 1e-5) * weight + shift",
        "layernorm by the row's mean and variance",
        "nn.LayerNorm({cols})",
        ("weight", "shift"),
    ),
    "rmsnorm": Row(
        "self.norm(x)",
        f"power = {_SQUARES} / {{n}}\nx = x * tl.rsqrt(power + 1e-5) * weight",
        "rmsnorm by the row's mean square",
        "nn.RMSNorm({cols}, eps=1e-5)",
        ("weight",),
    ),
    "normalize": Row("F.normalize(x, dim=-1)", f"x = x / tl.maximum(tl.sqrt({_SQUARES}), 1e-12)", "division by the row's length"),
    "sum": Row("torch.sum(x, dim=-1)", f"x = {_IN_ROW}", "sum of the row", reduces=True),
    "mean": Row("torch.mean(x, dim=-1)", f"x = {_IN_ROW} / {{n}}", "mean of the row", reduces=True),
    "amax": Row("torch.amax(x, dim=-1)", 'x = {max:tl.where(mask, x, -float("inf"))}', "maximum of the row", reduces=True),
    "logsumexp": Row(
        "torch.logsumexp(x, dim=-1)",
        'x = tl.where(mask, x, -float("inf"))\ntop = {max:x}\nx = top + tl.log({sum:tl.exp(x - top)})',
        "logsumexp less the row's maximum",
        reduces=True,
    ),
}
NORMS = tuple(name for name, row in ROWS.items() if not row.reduces)
# Steps that would leave little of what a row's operator gives: they come before it.
FLATTEN = {"sum": ("sigmoid", "tanh", "clamp"), "logsumexp": ("sigmoid", "tanh", "clamp")}
# Steps with which about the same comes out for every row, or where fp32 cannot compute the result.
NEVER = {"amax": ("clamp", "sin", "cos"), "logsoftmax": ("relu", "clamp", "gelu", "hardswish", "tanh")}
