"""Tasks on every element by itself: activations, chains of them, and fusions with a bias, a scale or a residual."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import LARGE, XY, XYZ, X, by_name, drawn, flat, task

sized = partial(task, sizes=flat())


def tasks() -> Iterator[Task]:
    """Yield activations, chains, fusions, and what else works element by element."""
    yield from _activations()
    yield from _with_constants()
    yield from _chains()
    yield from _fusions()
    yield from _overwriting()
    yield from _coded()


def _activations() -> list[Task]:
    plain = partial(sized, family="activation", level=1)
    large = partial(plain, variations=LARGE)
    softplus = "torch.logaddexp(x, torch.zeros_like(x))"
    return [
        large("relu", "Rectified linear unit.", "torch.relu(x)"),
        large("gelu", "Gaussian error linear unit, exact (erf) form.", "F.gelu(x)"),
        large("gelu_tanh", "Gaussian error linear unit, tanh form.", 'F.gelu(x, approximate="tanh")'),
        large("silu", "x times its sigmoid.", "F.silu(x)"),
        plain("sigmoid", "Logistic function.", "torch.sigmoid(x)"),
        plain("tanh", "Hyperbolic tangent.", "torch.tanh(x)"),
        large("softplus", "log(1 + exp(x)), finite for large x.", softplus),
        large("hardswish", "x · clamp(x + 3, 0, 6) / 6.", "x * torch.clamp(x + 3, 0, 6) / 6"),
        plain("mish", "x · tanh(softplus(x)).", f"x * torch.tanh({softplus})"),
        large("softsign", "x / (1 + |x|).", "x / (1 + x.abs())"),
        plain("squared_relu", "The square of the rectified input.", "torch.square(torch.relu(x))"),
    ]


def _with_constants() -> Iterator[Task]:
    # (name, summary, expression, constants: (tiny, ragged, full, ragged))
    table = (
        ("leaky_relu", "Leaky rectified linear unit.", "torch.where(x > 0, x, x * self.slope)", {"slope": (0.1, 0.25, 0.1, 0.3)}),
        (
            "elu",
            "Exponential linear unit.",
            "torch.where(x > 0, x, self.alpha * (torch.exp(torch.clamp(x, max=0)) - 1))",
            {"alpha": (1.0, 0.5, 1.0, 0.7)},
        ),
        (
            "scale_shift_clamp",
            "Scale, shift, then clamp to [0, limit].",
            "torch.clamp(x * self.scale + 0.5, 0, self.limit)",
            {"scale": (2.0, 1.5, 2.0, 0.75), "limit": (2.0, 1.25, 2.0, 3.0)},
        ),
        (
            "hinge_square",
            "Square of the hinge margin − x.",
            "torch.square(torch.clamp(self.margin - x, min=0))",
            {"margin": (1.0, 0.5, 1.0, 2.0)},
        ),
    )
    # Constants differ between sizes too: one that is written into a kernel is found out.
    for name, summary, body, constants in table:
        sizes = flat(**{key.upper(): row for key, row in constants.items()})
        yield task(name, summary, body, family="activation", level=1, sizes=sizes, init_inputs=by_name(*constants))


def _chains() -> list[Task]:
    two = partial(sized, family="elementwise", level=1, inputs=XY)
    three = partial(two, inputs=XYZ)
    return [
        three("add_multiply", "(x + y) · z.", "(x + y) * z"),
        two("difference_square", "(x − y)².", "(x - y) * (x - y)"),
        three("lerp", "Linear interpolation between x and y by sigmoid(z).", "x + (y - x) * torch.sigmoid(z)"),
        two("axpy_relu", "relu(2.5 x + y).", "torch.relu(2.5 * x + y)"),
        two("root_sum_square", "sqrt(x² + y² + 1).", "torch.sqrt(x * x + y * y + 1)"),
        two("swiglu", "silu(x) · y, the gate of a transformer's MLP.", "F.silu(x) * y"),
        two("geglu", "gelu(x) · y with the exact gelu.", "F.gelu(x) * y"),
        two("sin_cos_mix", "sin(x) · y + cos(y) · x.", "torch.sin(x) * y + torch.cos(y) * x"),
        two("gaussian", "exp(−x²) · y.", "torch.exp(-x * x) * y"),
        two(
            "select_by_sign",
            "x where z is positive, else y · 0.5.",
            "torch.where(z > 0, x, y * 0.5)",
            inputs={**XY, "z": "torch.randn(ROWS, COLS).round()"},  # many zeros
        ),
    ]


def _fusions() -> Iterator[Task]:
    # (name, summary, inputs, parameters by column, expression)
    table = (
        ("bias_gelu", "Bias by column, then exact gelu.", X, "bias", "F.gelu(x + self.bias)"),
        ("bias_relu_residual", "relu(x + bias) + residual y.", XY, "bias", "torch.relu(x + self.bias) + y"),
        ("scale_shift_silu", "Scale and shift by column, then silu.", X, "scale shift", "F.silu(x * self.scale + self.shift)"),
        ("layer_scale_residual", "y + gamma · x, a layer scale with its residual.", XY, "gamma", "y + self.gamma * x"),
        ("bias_swiglu", "silu(x + bias) · (y + other).", XY, "bias other", "F.silu(x + self.bias) * (y + self.other)"),
        (
            "bias_sigmoid_gate",
            "(x + bias) · sigmoid(y · scale).",
            XY,
            "bias scale",
            "(x + self.bias) * torch.sigmoid(y * self.scale)",
        ),
    )
    fusion = partial(sized, family="fusion", level=2, init_inputs=by_name("cols"))
    for name, summary, inputs, parameters, body in table:
        yield fusion(name, summary, body, inputs=inputs, parameters=drawn("cols", *parameters.split()))


def _overwriting() -> Iterator[Task]:
    yield sized("relu_into", "relu(x), which may overwrite x.", "torch.relu(x)", family="elementwise", level=1, inplace=(0,))
    fusion = partial(sized, family="fusion", level=2)
    yield fusion("accumulate_into", "y + silu(x), which may overwrite y.", "y + F.silu(x)", inputs=XY, inplace=(1,))
    yield fusion(
        "residual_masked_dropout",
        "y + x · keep / (1 − p), with the keep mask given.",
        "y + x * keep / (1 - self.p)",
        sizes=flat(P=(0.5, 0.25, 0.5, 0.1)),
        inputs={**XY, "keep": "torch.rand(ROWS, COLS) > 0.4"},
        init_inputs=by_name("p"),
    )


def _coded() -> Iterator[Task]:
    quantise = partial(sized, family="quantise", level=2)
    yield quantise(
        "quantise_int8",
        "floor(x · 16 + 0.5) clamped to [−127, 127], as int8: a fixed power-of-two scale, so the rounding is exact.",
        "torch.clamp(torch.floor(x * 16 + 0.5), -127, 127).to(torch.int8)",
    )
    yield quantise(
        "dequantise_int8",
        "int8 weights times one scale a row: codes[r, c] · scale[r].",
        "codes.to(scale.dtype) * scale[:, None]",
        inputs={"codes": "torch.randint(-127, 128, (ROWS, COLS), dtype=torch.int8)", **drawn("ROWS", "scale")},
    )
