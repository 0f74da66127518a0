"""Tasks along one dimension: reductions, softmax, norms and losses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import FORMS, LARGE, XY, X, by_name, drawn, grids, rows_cols, task


def tasks() -> Iterator[Task]:
    """Yield reductions, softmax, norms and losses."""
    yield from _reductions()
    yield from _softmax()
    yield from _norms()
    yield from _losses()
    yield from _channel_norms()


def _reductions() -> Iterator[Task]:
    plain = partial(task, family="reduction", level=1)
    large = partial(plain, variations=LARGE)
    yield large("sum_last", "Sum over the last dimension.", "x.sum(-1)")
    yield large("mean_last", "Mean over the last dimension.", "x.mean(-1)")
    yield large("max_last", "Maximum over the last dimension.", "x.amax(-1)")
    yield large("min_last", "Minimum over the last dimension.", "x.amin(-1)")
    yield large("argmax_last", "Index of the largest element of each row, as int64.", "x.argmax(-1)")
    yield large("logsumexp_last", "log of the sum of exponentials over the last dimension.", "torch.logsumexp(x, -1)")
    yield plain("l2_norm_last", "Euclidean norm of each row.", "torch.sqrt((x * x).sum(-1))")
    yield plain("variance_last", "Variance (divided by the count) of each row.", "x.var(-1, unbiased=False)")
    yield large("abs_mean_last", "Mean absolute value of each row.", "x.abs().mean(-1)")
    yield large(
        "log_count_positive",
        "Natural log of 1 plus the sum of the positive part of each row.",
        "torch.log(1 + torch.relu(x).sum(-1))",
    )
    middle = partial(
        large,
        level=2,
        sizes=grids(OUTER=(3, 2, 64, 61), LENGTH=(16, 19, 1024, 777), INNER=(8, 67, 256, 100)),
        inputs=drawn("OUTER, LENGTH, INNER", "x"),
    )
    yield middle("sum_middle", "Sum over the middle of three dimensions.", "x.sum(1)")
    yield middle("max_middle", "Maximum over the middle of three dimensions.", "x.amax(1)")
    yield middle("softmax_middle", "Softmax over the middle of three dimensions.", "torch.softmax(x, 1)")


def _softmax() -> Iterator[Task]:
    softmax = partial(task, family="softmax", level=2, variations=LARGE)
    yield softmax("softmax", "Softmax over the last dimension.", "torch.softmax(x, -1)", level=1)
    yield softmax("log_softmax", "Log-softmax over the last dimension.", "torch.log_softmax(x, -1)", level=1)
    yield softmax("softmax_residual", "y + softmax(x).", "y + torch.softmax(x, -1)", inputs=XY)
    yield softmax(
        "masked_softmax",
        "Softmax over the positions whose mask is true; the first position of every row always is.",
        'torch.softmax(x.masked_fill(~mask, float("-inf")), -1)',
        inputs={**X, "mask": "(torch.rand(ROWS, COLS) > 0.3) | (torch.arange(COLS) == 0)"},
    )
    yield softmax(
        "causal_softmax",
        "Softmax of row r over its first r + 1 columns; zero elsewhere.",
        "keep = torch.arange(x.shape[1], device=x.device)[None] <= torch.arange(x.shape[0], device=x.device)[:, None]\n"
        'return torch.softmax(x.masked_fill(~keep, float("-inf")), -1)',
        # Above the diagonal all is zero: a square keeps half of the elements telling.
        sizes=grids(ROWS=(12, 17, 4096, 4093), COLS=(16, 13, 4096, 3001)),
    )
    yield softmax(
        "softmax_entropy",
        "Entropy of each row's softmax.",
        "-(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)",
        level=3,
        # For large inputs one probability is nearly 1, and its logarithm all rounding: nothing in fp32 gets that right.
        variations=(*FORMS, "shifted"),
    )


def _norms() -> Iterator[Task]:
    layernorm = "F.layer_norm({}, x.shape[-1:], self.weight, self.bias, self.eps)"
    rmsnorm = "x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight"
    # (name, level, summary, inputs, parameters by column, body)
    table = (
        ("layernorm", 1, "LayerNorm over the last dimension with weight and bias.", X, "weight bias", layernorm.format("x")),
        ("rmsnorm", 1, "RMSNorm over the last dimension with weight.", X, "weight", rmsnorm),
        (
            "l2_normalise",
            1,
            "Each row divided by its Euclidean length.",
            X,
            "",
            "x * torch.rsqrt((x * x).sum(-1, keepdim=True) + self.eps)",
        ),
        (
            "layernorm_gelu",
            2,
            "LayerNorm with weight and bias, then exact gelu.",
            X,
            "weight bias",
            f"F.gelu({layernorm.format('x')})",
        ),
        ("rmsnorm_residual", 2, "RMSNorm of x + y, with weight.", XY, "weight", f"x = x + y\nreturn {rmsnorm}"),
        ("rmsnorm_silu_gate", 3, "silu(RMSNorm(x)) · y, with weight.", XY, "weight", f"F.silu({rmsnorm}) * y"),
        (
            "bias_layernorm_residual",
            3,
            "LayerNorm(x + shift + y) with weight and bias.",
            XY,
            "shift weight bias",
            layernorm.format("x + self.shift + y"),
        ),
    )
    # Another eps at other sizes: one that is written into a kernel is found out.
    norm = partial(task, family="norm", sizes=rows_cols(EPS=(1e-5, 1e-2, 1e-5, 1e-3)), init_inputs=by_name("cols", "eps"))
    for name, level, summary, inputs, parameters, body in table:
        yield norm(name, summary, body, level=level, inputs=inputs, parameters=drawn("cols", *parameters.split()))


def _losses() -> Iterator[Task]:
    loss = partial(task, family="loss", level=3, inputs=XY)
    yield loss(
        "cross_entropy_rows",
        "Cross-entropy of each row's logits against its label, one number a row.",
        'F.cross_entropy(x, label, reduction="none")',
        inputs={**X, "label": "torch.randint(0, COLS, (ROWS,))"},
        variations=LARGE,
    )
    yield loss(
        "kl_rows",
        "KL divergence from softmax(y) to softmax(x), one number a row.",
        "(torch.softmax(x, -1) * (torch.log_softmax(x, -1) - torch.log_softmax(y, -1))).sum(-1)",
        # For small inputs the divergence is a difference of nearly equal numbers: nothing in fp32 gets that right.
        variations=(*(form for form in FORMS if form != "small"), "shifted"),
    )
    yield loss("mse_rows", "Mean squared difference of each row.", "((x - y) * (x - y)).mean(-1)", level=2)
    yield loss("huber_rows", "Mean Huber loss (delta 1) of each row.", 'F.huber_loss(x, y, reduction="none").mean(-1)', level=2)
    yield loss(
        "cosine_rows",
        "Cosine similarity of each row of x with the same row of y.",
        "(x * y).sum(-1) * torch.rsqrt((x * x).sum(-1) * (y * y).sum(-1) + 1e-12)",
        variations=(*FORMS, "faint"),
    )


def _channel_norms() -> Iterator[Task]:
    norm = partial(
        task, family="norm", level=2, inputs=drawn("BATCH, CHANNELS, LENGTH", "x"), parameters=drawn("channels", "weight", "bias")
    )
    yield norm(
        "groupnorm",
        "GroupNorm of x [BATCH, CHANNELS, LENGTH] with weight and bias by channel.",
        "F.group_norm(x, self.groups, self.weight, self.bias, 1e-5)",
        sizes=grids(BATCH=(2, 3, 32, 31), CHANNELS=(8, 6, 256, 192), LENGTH=(12, 7, 1024, 777), GROUPS=(4, 3, 32, 24)),
        init_inputs=by_name("channels", "groups"),
    )
    yield norm(
        "batchnorm_relu",
        "BatchNorm at inference over channels of x [BATCH, CHANNELS, LENGTH], then relu.",
        "F.relu(F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, 1e-5))",
        sizes=grids(BATCH=(2, 3, 64, 61), CHANNELS=(8, 6, 256, 192), LENGTH=(12, 7, 1024, 777)),
        buffers={"running_mean": "torch.randn(channels)", "running_var": "torch.rand(channels) + 0.5"},
        init_inputs=by_name("channels"),
    )
