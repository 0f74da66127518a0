"""Tasks along one dimension: reductions, softmax, norms and losses."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import FORMS, LARGE, ROWS_COLS, grids, task

_X = "torch.randn(ROWS, COLS)"
_SQUARE = grids(ROWS=(12, 9, 4096, 4093), COLS=(16, 13, 4096, 3001))
_MIDDLE = grids(OUTER=(3, 2, 64, 61), LENGTH=(16, 19, 1024, 777), INNER=(8, 5, 256, 100))

# name → (summary, expression, bears inputs in the hundreds)
_LAST = {
    "sum_last": ("Sum over the last dimension.", "x.sum(-1)", True),
    "mean_last": ("Mean over the last dimension.", "x.mean(-1)", True),
    "max_last": ("Maximum over the last dimension.", "x.amax(-1)", True),
    "min_last": ("Minimum over the last dimension.", "x.amin(-1)", True),
    "argmax_last": ("Index of the largest element of each row, as int64.", "x.argmax(-1)", True),
    "logsumexp_last": ("log of the sum of exponentials over the last dimension.", "torch.logsumexp(x, -1)", True),
    "l2_norm_last": ("Euclidean norm of each row.", "torch.sqrt((x * x).sum(-1))", False),
    "variance_last": ("Variance (divided by the count) of each row.", "x.var(-1, unbiased=False)", False),
    "abs_mean_last": ("Mean absolute value of each row.", "x.abs().mean(-1)", True),
    "log_count_positive": (
        "Natural log of 1 plus the sum of the positive part of each row.",
        "torch.log(1 + torch.relu(x).sum(-1))",
        True,
    ),
}

# name → (summary, expression of x [OUTER, LENGTH, INNER])
_MIDDLES = {
    "sum_middle": ("Sum over the middle of three dimensions.", "x.sum(1)"),
    "max_middle": ("Maximum over the middle of three dimensions.", "x.amax(1)"),
    "softmax_middle": ("Softmax over the middle of three dimensions.", "torch.softmax(x, 1)"),
}

# name → (summary, level, inputs, expression)
_SOFTMAX = {
    "softmax": ("Softmax over the last dimension.", 1, {"x": _X}, "torch.softmax(x, -1)"),
    "log_softmax": ("Log-softmax over the last dimension.", 1, {"x": _X}, "torch.log_softmax(x, -1)"),
    "softmax_residual": ("y + softmax(x).", 2, {"x": _X, "y": _X}, "y + torch.softmax(x, -1)"),
    "masked_softmax": (
        "Softmax over the positions whose mask is true; the first position of every row always is.",
        2,
        {"x": _X, "mask": "(torch.rand(ROWS, COLS) > 0.3) | (torch.arange(COLS) == 0)"},
        'torch.softmax(x.masked_fill(~mask, float("-inf")), -1)',
    ),
    "causal_softmax": (
        "Softmax of row r over its first r + 1 columns; zero elsewhere.",
        2,
        {"x": _X},
        "keep = torch.arange(x.shape[1], device=x.device)[None] <= torch.arange(x.shape[0], device=x.device)[:, None]\n"
        'return torch.softmax(x.masked_fill(~keep, float("-inf")), -1)',
    ),
    "softmax_entropy": (
        "Entropy of each row's softmax.",
        3,
        {"x": _X},
        "-(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)",
    ),
}

# name → (summary, level, inputs, parameters by column, expression)
_NORMS = {
    "layernorm": (
        "LayerNorm over the last dimension with weight and bias.",
        1,
        "x",
        ("weight", "bias"),
        "F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)",
    ),
    "rmsnorm": (
        "RMSNorm over the last dimension with weight.",
        1,
        "x",
        ("weight",),
        "x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight",
    ),
    "l2_normalise": (
        "Each row divided by its Euclidean length.",
        1,
        "x",
        (),
        "x * torch.rsqrt((x * x).sum(-1, keepdim=True) + self.eps)",
    ),
    "layernorm_gelu": (
        "LayerNorm with weight and bias, then exact gelu.",
        2,
        "x",
        ("weight", "bias"),
        "F.gelu(F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps))",
    ),
    "rmsnorm_residual": (
        "RMSNorm of x + y, with weight.",
        2,
        "xy",
        ("weight",),
        "x = x + y\nreturn x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight",
    ),
    "rmsnorm_silu_gate": (
        "silu(RMSNorm(x)) · y, with weight.",
        3,
        "xy",
        ("weight",),
        "F.silu(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight) * y",
    ),
    "bias_layernorm_residual": (
        "LayerNorm(x + shift + y) with weight and bias.",
        3,
        "xy",
        ("shift", "weight", "bias"),
        "F.layer_norm(x + self.shift + y, x.shape[-1:], self.weight, self.bias, self.eps)",
    ),
}

# name → (summary, inputs, expression)
_LOSSES = {
    "cross_entropy_rows": (
        "Cross-entropy of each row's logits against its label, one number a row.",
        {"x": _X, "label": "torch.randint(0, COLS, (ROWS,))"},
        'F.cross_entropy(x, label, reduction="none")',
    ),
    "kl_rows": (
        "KL divergence from softmax(y) to softmax(x), one number a row.",
        {"x": _X, "y": _X},
        "(torch.softmax(x, -1) * (torch.log_softmax(x, -1) - torch.log_softmax(y, -1))).sum(-1)",
    ),
    "mse_rows": ("Mean squared difference of each row.", {"x": _X, "y": _X}, "((x - y) * (x - y)).mean(-1)"),
    "huber_rows": ("Mean Huber loss (delta 1) of each row.", {"x": _X, "y": _X}, 'F.huber_loss(x, y, reduction="none").mean(-1)'),
    "cosine_rows": (
        "Cosine similarity of each row of x with the same row of y.",
        {"x": _X, "y": _X},
        "(x * y).sum(-1) * torch.rsqrt((x * x).sum(-1) * (y * y).sum(-1) + 1e-12)",
    ),
}


def tasks() -> Iterator[Task]:
    """Reductions, softmax, norms and losses."""
    for name, (summary, expression, large) in _LAST.items():
        yield task(
            name,
            family="reduction",
            level=1,
            summary=summary,
            sizes=ROWS_COLS,
            inputs={"x": _X},
            body=expression,
            variations=LARGE if large else FORMS,
        )
    for name, (summary, expression) in _MIDDLES.items():
        yield task(
            name,
            family="reduction",
            level=2,
            summary=summary,
            sizes=_MIDDLE,
            inputs={"x": "torch.randn(OUTER, LENGTH, INNER)"},
            body=expression,
            variations=LARGE,
        )
    for name, (summary, level, inputs, expression) in _SOFTMAX.items():
        # Above the diagonal all is zero: a square keeps half of the elements telling.
        sizes = _SQUARE if name == "causal_softmax" else ROWS_COLS
        yield task(
            name, family="softmax", level=level, summary=summary, sizes=sizes, inputs=inputs, body=expression, variations=LARGE
        )
    eps = {"eps": (1e-5, 1e-2, 1e-5, 1e-3)}
    sizes = {form: {**ROWS_COLS[form], "EPS": eps["eps"][index]} for index, form in enumerate(ROWS_COLS)}
    for name, (summary, level, arguments, parameters, expression) in _NORMS.items():
        yield task(
            name,
            family="norm",
            level=level,
            summary=summary,
            sizes=sizes,
            inputs=dict.fromkeys(arguments, _X),
            body=expression,
            init="\n".join(f"self.{key} = nn.Parameter(torch.randn(cols))" for key in parameters),
            init_inputs={"cols": "COLS", "eps": "EPS"},
        )
    for name, (summary, inputs, expression) in _LOSSES.items():
        # For small inputs the divergence is a difference of nearly equal numbers: nothing in fp32 gets that right.
        variations = tuple(form for form in FORMS if form != "small") if name == "kl_rows" else FORMS
        yield task(
            name,
            family="loss",
            level=2 if name.startswith(("mse", "huber")) else 3,
            summary=summary,
            sizes=ROWS_COLS,
            inputs=inputs,
            body=expression,
            variations=variations,
        )
    yield _groupnorm()
    yield _batchnorm()


def _groupnorm() -> Task:
    return task(
        "groupnorm",
        family="norm",
        level=2,
        summary="GroupNorm of x [BATCH, CHANNELS, LENGTH] with weight and bias by channel.",
        sizes=grids(BATCH=(2, 3, 32, 31), CHANNELS=(8, 6, 256, 192), LENGTH=(12, 7, 1024, 777), GROUPS=(4, 3, 32, 24)),
        inputs={"x": "torch.randn(BATCH, CHANNELS, LENGTH)"},
        init="self.weight = nn.Parameter(torch.randn(channels))\nself.bias = nn.Parameter(torch.randn(channels))",
        init_inputs={"channels": "CHANNELS", "groups": "GROUPS"},
        body="F.group_norm(x, self.groups, self.weight, self.bias, 1e-5)",
    )


def _batchnorm() -> Task:
    return task(
        "batchnorm_relu",
        family="norm",
        level=2,
        summary="BatchNorm at inference over channels of x [BATCH, CHANNELS, LENGTH], then relu.",
        sizes=grids(BATCH=(2, 3, 64, 61), CHANNELS=(8, 6, 256, 192), LENGTH=(12, 7, 1024, 777)),
        inputs={"x": "torch.randn(BATCH, CHANNELS, LENGTH)"},
        init="self.weight = nn.Parameter(torch.randn(channels))\nself.bias = nn.Parameter(torch.randn(channels))\n"
        'self.register_buffer("running_mean", torch.randn(channels))\n'
        'self.register_buffer("running_var", torch.rand(channels) + 0.5)',
        init_inputs={"channels": "CHANNELS"},
        body="F.relu(F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, 1e-5))",
        fixed=("running_var",),
    )
