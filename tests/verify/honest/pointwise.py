"""Honest solutions of tasks on every element by itself: one template, a table of expressions."""

from __future__ import annotations

from honest.render import Kernel, Launch, Solution

_SIGMOID = "1.0 / (1.0 + tl.exp(-({0})))"
_SOFTPLUS = "(tl.maximum({0}, 0.0) + tl.log(1.0 + tl.exp(-tl.abs({0}))))"
_GELU = "0.5 * ({0}) * (1.0 + tl.erf(({0}) * 0.7071067811865476))"


def _tanh(x: str) -> str:
    return f"(2.0 / (1.0 + tl.exp(-2.0 * ({x}))) - 1.0)"


# task → (inputs, scalars kept by __init__, parameters by column, expression)
_TABLE: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "relu": ("x", (), (), "tl.maximum(x, 0.0)"),
    "gelu": ("x", (), (), _GELU.format("x")),
    "gelu_tanh": ("x", (), (), f"0.5 * x * (1.0 + {_tanh('0.7978845608028654 * (x + 0.044715 * x * x * x)')})"),
    "silu": ("x", (), (), "x / (1.0 + tl.exp(-x))"),
    "sigmoid": ("x", (), (), "tl.sigmoid(x)"),
    "tanh": ("x", (), (), _tanh("x")),
    "softplus": ("x", (), (), _SOFTPLUS.format("x")),
    "hardswish": ("x", (), (), "x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0"),
    "mish": ("x", (), (), f"x * {_tanh(_SOFTPLUS.format('x'))}"),
    "softsign": ("x", (), (), "x / (1.0 + tl.abs(x))"),
    "squared_relu": ("x", (), (), "tl.maximum(x, 0.0) * tl.maximum(x, 0.0)"),
    "leaky_relu": ("x", ("slope",), (), "tl.where(x > 0, x, x * slope)"),
    "elu": ("x", ("alpha",), (), "tl.where(x > 0, x, alpha * (tl.exp(tl.minimum(x, 0.0)) - 1.0))"),
    "scale_shift_clamp": ("x", ("scale", "limit"), (), "tl.minimum(tl.maximum(x * scale + 0.5, 0.0), limit)"),
    "hinge_square": ("x", ("margin",), (), "tl.maximum(margin - x, 0.0) * tl.maximum(margin - x, 0.0)"),
    "add_multiply": ("xyz", (), (), "(x + y) * z"),
    "difference_square": ("xy", (), (), "(x - y) * (x - y)"),
    "lerp": ("xyz", (), (), "x + (y - x) * tl.sigmoid(z)"),
    "axpy_relu": ("xy", (), (), "tl.maximum(2.5 * x + y, 0.0)"),
    "root_sum_square": ("xy", (), (), "tl.sqrt(x * x + y * y + 1.0)"),
    "swiglu": ("xy", (), (), "x * tl.sigmoid(x) * y"),
    "geglu": ("xy", (), (), f"{_GELU.format('x')} * y"),
    "sin_cos_mix": ("xy", (), (), "tl.sin(x) * y + tl.cos(y) * x"),
    "gaussian": ("xy", (), (), "tl.exp(-x * x) * y"),
    "relu_into": ("x", (), (), "tl.maximum(x, 0.0)"),
    "accumulate_into": ("xy", (), (), "y + x * tl.sigmoid(x)"),
    "select_by_sign": ("xyz", (), (), "tl.where(z > 0, x, y * 0.5)"),
    "bias_gelu": ("x", (), ("bias",), _GELU.format("(x + bias)")),
    "bias_relu_residual": ("xy", (), ("bias",), "tl.maximum(x + bias, 0.0) + y"),
    "scale_shift_silu": ("x", (), ("scale", "shift"), "(x * scale + shift) * tl.sigmoid(x * scale + shift)"),
    "layer_scale_residual": ("xy", (), ("gamma",), "y + gamma * x"),
    "bias_swiglu": ("xy", (), ("bias", "other"), "(x + bias) * tl.sigmoid(x + bias) * (y + other)"),
    "bias_sigmoid_gate": ("xy", (), ("bias", "scale"), f"(x + bias) * ({_SIGMOID.format('y * scale')})"),
}


def solutions(block: int = 128, helper: bool = False, per_program: int = 1) -> dict[str, Solution]:
    """One solution a task.

    Args:
        block: elements a program handles at once.
        helper: whether the arithmetic lives in a jit function of its own.
        per_program: how many blocks one program handles one after another.
    """
    found = {name: _pointwise(name, *row, block, helper, per_program) for name, row in _TABLE.items()}
    found |= {solution.task: solution for solution in (_dropout(block), _quantise(block), _dequantise(block))}
    return found


def _pointwise(
    task: str,
    inputs: str,
    scalars: tuple[str, ...],
    columns: tuple[str, ...],
    expression: str,
    block: int,
    helper: bool,
    repeat: int,
) -> Solution:
    loads = [f"{name} = tl.load({name}_ptr + offsets, mask=mask, other=0.0).to(tl.float32)" for name in inputs]
    loads += [f"{name} = tl.load({name}_ptr + offsets % cols, mask=mask, other=0.0).to(tl.float32)" for name in columns]
    names = [*inputs, *columns, *scalars]
    text, value = "", expression
    if helper:
        text = f"@triton.jit\ndef combine({', '.join(names)}):\n    return {expression}"
        value = f"combine({', '.join(names)})"
    work = ["mask = offsets < total", *loads, f"tl.store(out_ptr + offsets, ({value}).to(out_ptr.dtype.element_ty), mask=mask)"]
    if repeat == 1:
        body = ["offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", *work]
    else:
        body = [
            "for step in tl.static_range(REPEAT):",
            "    offsets = (tl.program_id(0) * REPEAT + step) * BLOCK + tl.arange(0, BLOCK)",
        ]
        body += ["    " + line for line in work]
    constants = {"BLOCK": str(block)} | ({"REPEAT": str(repeat)} if repeat > 1 else {})
    kernel = Kernel(
        f"{task}_kernel",
        (*(f"{name}_ptr" for name in (*inputs, *columns)), "out_ptr", "total", *(["cols"] if columns else []), *scalars),
        tuple(constants),
        "\n".join(body),
        text,
    )
    values = {f"{name}_ptr": name for name in inputs} | {f"{name}_ptr": f"self.{name}" for name in columns}
    values |= {"out_ptr": "out", "total": "total", "cols": "x.shape[-1]"} | {name: f"self.{name}" for name in scalars}
    share = "@BLOCK@" if repeat == 1 else "@BLOCK@ * @REPEAT@"
    init = "\n".join(
        [f"self.{name} = {name}" for name in scalars] + [f"self.{name} = nn.Parameter(torch.randn(cols))" for name in columns]
    )
    host = (
        "x = x.contiguous()",
        "out = torch.empty_like(x)",
        "total = out.numel()",
        Launch(kernel, (f"triton.cdiv(total, {share})",), values, constants),
    )
    return Solution(task, tuple(inputs), (*host, "return out"), init, scalars or (("cols",) if columns else ()))


def _dropout(block: int) -> Solution:
    kernel = Kernel(
        "residual_dropout",
        ("x_ptr", "y_ptr", "keep_ptr", "out_ptr", "total", "p"),
        ("BLOCK",),
        """
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < total
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        keep = tl.load(keep_ptr + offsets, mask=mask, other=0)
        tl.store(out_ptr + offsets, (y + tl.where(keep != 0, x / (1.0 - p), 0.0)).to(out_ptr.dtype.element_ty), mask=mask)
        """,
    )
    values = {"x_ptr": "x", "y_ptr": "y", "keep_ptr": "keep", "out_ptr": "out", "total": "total", "p": "self.p"}
    launch = Launch(kernel, ("triton.cdiv(total, @BLOCK@)",), values, {"BLOCK": str(block)})
    host = ("out = torch.empty_like(x)", "total = x.numel()", launch, "return out")
    return Solution("residual_masked_dropout", ("x", "y", "keep"), host, "self.p = p", ("p",))


def _quantise(block: int) -> Solution:
    kernel = Kernel(
        "quantise",
        ("x_ptr", "out_ptr", "total"),
        ("BLOCK",),
        """
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < total
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        code = tl.floor(x * 16.0 + 0.5)
        code = tl.minimum(tl.maximum(code, -127.0), 127.0)
        tl.store(out_ptr + offsets, code.to(tl.int8), mask=mask)
        """,
    )
    launch = Launch(
        kernel, ("triton.cdiv(total, @BLOCK@)",), {"x_ptr": "x", "out_ptr": "out", "total": "total"}, {"BLOCK": str(block)}
    )
    host = ("out = torch.empty(x.shape, dtype=torch.int8, device=x.device)", "total = x.numel()", launch, "return out")
    return Solution("quantise_int8", ("x",), host)


def _dequantise(block: int) -> Solution:
    kernel = Kernel(
        "dequantise",
        ("codes_ptr", "scale_ptr", "out_ptr", "total", "cols"),
        ("BLOCK",),
        """
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < total
        code = tl.load(codes_ptr + offsets, mask=mask, other=0).to(tl.float32)
        scale = tl.load(scale_ptr + offsets // cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + offsets, (code * scale).to(out_ptr.dtype.element_ty), mask=mask)
        """,
    )
    values = {"codes_ptr": "codes", "scale_ptr": "scale", "out_ptr": "out", "total": "total", "cols": "codes.shape[1]"}
    launch = Launch(kernel, ("triton.cdiv(total, @BLOCK@)",), values, {"BLOCK": str(block)})
    host = (
        "out = torch.empty(codes.shape, dtype=scale.dtype, device=codes.device)",
        "total = codes.numel()",
        launch,
        "return out",
    )
    return Solution("dequantise_int8", ("codes", "scale"), host)
