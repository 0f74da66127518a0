"""Tasks on every element by itself: activations, chains of them, and fusions with a bias, a scale or a residual."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import FORMS, LARGE, ROWS_COLS, grids, task

_X = "torch.randn(ROWS, COLS)"
_VECTOR = "nn.Parameter(torch.randn(COLS))"

# name → (summary, expression of x, bears inputs in the hundreds)
_ACTIVATIONS = {
    "relu": ("Rectified linear unit.", "torch.relu(x)", True),
    "gelu": ("Gaussian error linear unit, exact (erf) form.", "F.gelu(x)", True),
    "gelu_tanh": ("Gaussian error linear unit, tanh form.", 'F.gelu(x, approximate="tanh")', True),
    "silu": ("x times its sigmoid.", "F.silu(x)", True),
    "sigmoid": ("Logistic function.", "torch.sigmoid(x)", False),
    "tanh": ("Hyperbolic tangent.", "torch.tanh(x)", False),
    "softplus": ("log(1 + exp(x)), finite for large x.", "torch.logaddexp(x, torch.zeros_like(x))", True),
    "hardswish": ("x · clamp(x + 3, 0, 6) / 6.", "x * torch.clamp(x + 3, 0, 6) / 6", True),
    "mish": ("x · tanh(softplus(x)).", "x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))", False),
    "softsign": ("x / (1 + |x|).", "x / (1 + x.abs())", True),
    "squared_relu": ("The square of the rectified input.", "torch.square(torch.relu(x))", False),
}

# name → (summary, expression of x with the constants below, constants: (tiny, ragged, full, ragged))
_WITH_CONSTANTS = {
    "leaky_relu": ("Leaky rectified linear unit.", "torch.where(x > 0, x, x * self.slope)", {"slope": (0.1, 0.25, 0.1, 0.3)}),
    "elu": (
        "Exponential linear unit.",
        "torch.where(x > 0, x, self.alpha * (torch.exp(torch.clamp(x, max=0)) - 1))",
        {"alpha": (1.0, 0.5, 1.0, 0.7)},
    ),
    "scale_shift_clamp": (
        "Scale, shift, then clamp to [0, limit].",
        "torch.clamp(x * self.scale + 0.5, 0, self.limit)",
        {"scale": (2.0, 1.5, 2.0, 0.75), "limit": (2.0, 1.25, 2.0, 3.0)},
    ),
    "hinge_square": (
        "Square of the hinge margin − x.",
        "torch.square(torch.clamp(self.margin - x, min=0))",
        {"margin": (1.0, 0.5, 1.0, 2.0)},
    ),
}

# name → (summary, inputs, expression)
_CHAINS = {
    "add_multiply": ("(x + y) · z.", "xyz", "(x + y) * z"),
    "difference_square": ("(x − y)².", "xy", "(x - y) * (x - y)"),
    "lerp": ("Linear interpolation between x and y by sigmoid(z).", "xyz", "x + (y - x) * torch.sigmoid(z)"),
    "axpy_relu": ("relu(2.5 x + y).", "xy", "torch.relu(2.5 * x + y)"),
    "root_sum_square": ("sqrt(x² + y² + 1).", "xy", "torch.sqrt(x * x + y * y + 1)"),
    "swiglu": ("silu(x) · y, the gate of a transformer's MLP.", "xy", "F.silu(x) * y"),
    "geglu": ("gelu(x) · y with the exact gelu.", "xy", "F.gelu(x) * y"),
    "sin_cos_mix": ("sin(x) · y + cos(y) · x.", "xy", "torch.sin(x) * y + torch.cos(y) * x"),
    "gaussian": ("exp(−x²) · y.", "xy", "torch.exp(-x * x) * y"),
    "select_by_sign": ("x where z is positive, else y · 0.5.", "xyz", "torch.where(z > 0, x, y * 0.5)"),
}

# name → (summary, level, inputs, parameters by column, expression)
_FUSIONS = {
    "bias_gelu": ("Bias by column, then exact gelu.", 2, "x", ("bias",), "F.gelu(x + self.bias)"),
    "bias_relu_residual": ("relu(x + bias) + residual y.", 2, "xy", ("bias",), "torch.relu(x + self.bias) + y"),
    "scale_shift_silu": (
        "Scale and shift by column, then silu.",
        2,
        "x",
        ("scale", "shift"),
        "F.silu(x * self.scale + self.shift)",
    ),
    "layer_scale_residual": ("y + gamma · x, a layer scale with its residual.", 2, "xy", ("gamma",), "y + self.gamma * x"),
    "bias_swiglu": ("silu(x + bias) · (y + other).", 2, "xy", ("bias", "other"), "F.silu(x + self.bias) * (y + self.other)"),
    "bias_sigmoid_gate": (
        "(x + bias) · sigmoid(y · scale).",
        2,
        "xy",
        ("bias", "scale"),
        "(x + self.bias) * torch.sigmoid(y * self.scale)",
    ),
}


def tasks() -> Iterator[Task]:
    """Activations, chains and fusions."""
    for name, (summary, expression, large) in _ACTIVATIONS.items():
        yield task(
            name,
            family="activation",
            level=1,
            summary=summary,
            sizes=ROWS_COLS,
            inputs={"x": _X},
            body=expression,
            variations=LARGE if large else FORMS,
        )
    for name, (summary, expression, constants) in _WITH_CONSTANTS.items():
        sizes = {
            form: {**ROWS_COLS[form], **{key.upper(): row[index] for key, row in constants.items()}}
            for index, form in enumerate(ROWS_COLS)
        }
        yield task(
            name,
            family="activation",
            level=1,
            summary=summary,
            sizes=sizes,
            inputs={"x": _X},
            body=expression,
            init_inputs={key: key.upper() for key in constants},
        )
    for name, (summary, arguments, expression) in _CHAINS.items():
        yield task(
            name,
            family="elementwise",
            level=1,
            summary=summary,
            sizes=ROWS_COLS,
            inputs=dict.fromkeys(arguments, _X),
            body=expression,
        )
    for name, (summary, level, arguments, parameters, expression) in _FUSIONS.items():
        yield task(
            name,
            family="fusion",
            level=level,
            summary=summary,
            sizes=ROWS_COLS,
            inputs=dict.fromkeys(arguments, _X),
            body=expression,
            init="\n".join(f"self.{key} = nn.Parameter(torch.randn(cols))" for key in parameters),
            init_inputs={"cols": "COLS"},
        )
    yield task(
        "relu_into",
        family="elementwise",
        level=1,
        summary="relu(x), which may overwrite x.",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="torch.relu(x)",
        inplace=(0,),
    )
    yield task(
        "accumulate_into",
        family="fusion",
        level=2,
        summary="y + silu(x), which may overwrite y.",
        sizes=ROWS_COLS,
        inputs={"x": _X, "y": _X},
        body="y + F.silu(x)",
        inplace=(1,),
    )
    yield _masked_dropout()
    yield _quantise()
    yield _dequantise()


def _masked_dropout() -> Task:
    return task(
        "residual_masked_dropout",
        family="fusion",
        level=2,
        summary="y + x · keep / (1 − p), with the keep mask given.",
        sizes={form: {**values, "P": p} for (form, values), p in zip(ROWS_COLS.items(), (0.5, 0.25, 0.5, 0.1), strict=True)},
        inputs={"x": _X, "y": _X, "keep": "torch.rand(ROWS, COLS) > 0.4"},
        body="y + x * keep / (1 - self.p)",
        init_inputs={"p": "P"},
    )


def _quantise() -> Task:
    return task(
        "quantise_int8",
        family="quantise",
        level=2,
        summary="floor(x · 16 + 0.5) clamped to [−127, 127], as int8: a fixed power-of-two scale, so the rounding is exact.",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="torch.clamp(torch.floor(x * 16 + 0.5), -127, 127).to(torch.int8)",
    )


def _dequantise() -> Task:
    return task(
        "dequantise_int8",
        family="quantise",
        level=2,
        summary="int8 weights times one scale a row: codes[r, c] · scale[r].",
        sizes=grids(ROWS=(8, 5, 4096, 4093), COLS=(64, 37, 4096, 3001)),
        inputs={"codes": "torch.randint(-127, 128, (ROWS, COLS), dtype=torch.int8)", "scale": "torch.randn(ROWS)"},
        body="codes.to(scale.dtype) * scale[:, None]",
    )
