"""Honest solutions of tasks along the last dimension: a row in one block, with several ways to walk over rows."""

from __future__ import annotations

from honest.render import Kernel, Launch, Solution

_GELU = "0.5 * ({0}) * (1.0 + tl.erf(({0}) * 0.7071067811865476))"
_SOFTMAX = 'x = tl.where(mask, x, -float("inf"))\ne = tl.exp(x - tl.max(x, 0))\nvalue = e / tl.sum(e, 0)'
_NORM = "mean = tl.sum({0}, 0) / n\nd = tl.where(mask, {0} - mean, 0.0)\n" + (
    "value = d * tl.rsqrt(tl.sum(d * d, 0) / n + eps) * weight + bias"
)
_RMS = "{0} * tl.rsqrt(tl.sum({0} * {0}, 0) / n + eps)"
_LOGS = 'x = tl.where(mask, x, -float("inf"))\ntop = tl.max(x, 0)\nlog_x = x - top - tl.log(tl.sum(tl.exp(x - top), 0))\n'
_LOGS_Y = 'y = tl.where(mask, y, -float("inf"))\ntop_y = tl.max(y, 0)\nlog_y = y - top_y - tl.log(tl.sum(tl.exp(y - top_y), 0))\n'

# task → (row inputs, other inputs, parameters by column, output: "row", "scalar" or "index", statements that set `value`)
_TABLE: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str, str]] = {
    "sum_last": ("x", (), (), "scalar", "value = tl.sum(x, 0)"),
    "mean_last": ("x", (), (), "scalar", "value = tl.sum(x, 0) / n"),
    "max_last": ("x", (), (), "scalar", 'value = tl.max(tl.where(mask, x, -float("inf")), 0)'),
    "min_last": ("x", (), (), "scalar", 'value = tl.min(tl.where(mask, x, float("inf")), 0)'),
    "argmax_last": ("x", (), (), "index", 'value = tl.argmax(tl.where(mask, x, -float("inf")), 0)'),
    "logsumexp_last": (
        "x",
        (),
        (),
        "scalar",
        'x = tl.where(mask, x, -float("inf"))\ntop = tl.max(x, 0)\nvalue = top + tl.log(tl.sum(tl.exp(x - top), 0))',
    ),
    "l2_norm_last": ("x", (), (), "scalar", "value = tl.sqrt(tl.sum(x * x, 0))"),
    "variance_last": ("x", (), (), "scalar", "d = tl.where(mask, x - tl.sum(x, 0) / n, 0.0)\nvalue = tl.sum(d * d, 0) / n"),
    "abs_mean_last": ("x", (), (), "scalar", "value = tl.sum(tl.abs(x), 0) / n"),
    "log_count_positive": ("x", (), (), "scalar", "value = tl.log(1.0 + tl.sum(tl.maximum(x, 0.0), 0))"),
    "softmax": ("x", (), (), "row", _SOFTMAX),
    "log_softmax": ("x", (), (), "row", _LOGS + "value = log_x"),
    "softmax_residual": ("xy", (), (), "row", _SOFTMAX + " + y"),
    "masked_softmax": (
        "x",
        ("mask",),
        (),
        "row",
        'keep = tl.load(mask_ptr + row * n + cols, mask=mask, other=0) != 0\nx = tl.where(keep, x, -float("inf"))\n'
        "e = tl.exp(x - tl.max(x, 0))\nvalue = e / tl.sum(e, 0)",
    ),
    "causal_softmax": ("x", (), (), "row", 'x = tl.where(cols <= row, x, -float("inf"))\n' + _SOFTMAX),
    "softmax_entropy": ("x", (), (), "scalar", _LOGS + "value = -tl.sum(tl.where(mask, tl.exp(log_x) * log_x, 0.0), 0)"),
    "layernorm": ("x", (), ("weight", "bias"), "row", _NORM.format("x")),
    "rmsnorm": ("x", (), ("weight",), "row", f"value = {_RMS.format('x')} * weight"),
    "l2_normalise": ("x", (), (), "row", "value = x * tl.rsqrt(tl.sum(x * x, 0) + eps)"),
    "layernorm_gelu": ("x", (), ("weight", "bias"), "row", f"{_NORM.format('x')}\nvalue = {_GELU.format('value')}"),
    "rmsnorm_residual": ("xy", (), ("weight",), "row", f"h = x + y\nvalue = {_RMS.format('h')} * weight"),
    "rmsnorm_silu_gate": ("xy", (), ("weight",), "row", f"h = {_RMS.format('x')} * weight\nvalue = h * tl.sigmoid(h) * y"),
    "bias_layernorm_residual": ("xy", (), ("shift", "weight", "bias"), "row", f"h = x + shift + y\n{_NORM.format('h')}"),
    "cross_entropy_rows": (
        "x",
        ("label",),
        (),
        "scalar",
        _LOGS + "label = tl.load(label_ptr + row)\nvalue = -tl.sum(tl.where(cols == label, log_x, 0.0), 0)",
    ),
    "kl_rows": (
        "xy",
        (),
        (),
        "scalar",
        _LOGS + _LOGS_Y + "value = tl.sum(tl.where(mask, tl.exp(log_x) * (log_x - log_y), 0.0), 0)",
    ),
    "mse_rows": ("xy", (), (), "scalar", "value = tl.sum((x - y) * (x - y), 0) / n"),
    "huber_rows": ("xy", (), (), "scalar", "d = tl.abs(x - y)\nvalue = tl.sum(tl.where(d < 1.0, 0.5 * d * d, d - 0.5), 0) / n"),
    "cosine_rows": ("xy", (), (), "scalar", "value = tl.sum(x * y, 0) * tl.rsqrt(tl.sum(x * x, 0) * tl.sum(y * y, 0) + 1e-12)"),
    "cumsum_last": ("x", (), (), "row", "value = tl.cumsum(x, 0)"),
    "cumsum_exclusive": ("x", (), (), "row", "value = tl.cumsum(x, 0) - x"),
}
_NORMS = (
    "layernorm",
    "rmsnorm",
    "l2_normalise",
    "layernorm_gelu",
    "rmsnorm_residual",
    "rmsnorm_silu_gate",
    "bias_layernorm_residual",
)


def solutions(walk: str = "one") -> dict[str, Solution]:
    """One solution a task.

    Args:
        walk: "one" row a program, "several" consecutive rows a program, or "stride": a fixed number of programs that
            walk over all rows.
    """
    return {task: _row(task, *row, walk) for task, row in _TABLE.items()}


def _row(
    task: str, inputs: str, others: tuple[str, ...], columns: tuple[str, ...], output: str, statements: str, walk: str
) -> Solution:
    eps = task in _NORMS
    lines = ["mask = cols < n"]
    lines += [f"{name} = tl.load({name}_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)" for name in inputs]
    lines += [f"{name} = tl.load({name}_ptr + cols, mask=mask, other=0.0).to(tl.float32)" for name in columns]
    lines += statements.split("\n")
    if output == "row":
        lines.append("tl.store(out_ptr + row * n + cols, value.to(out_ptr.dtype.element_ty), mask=mask)")
    else:
        lines.append("tl.store(out_ptr + row, value.to(out_ptr.dtype.element_ty))")
    head, indent, constants, grid = _walk(walk)
    body = ["cols = tl.arange(0, BLOCK)", *head, *(indent + line for line in lines)]
    arguments = [*(f"{name}_ptr" for name in (*inputs, *others, *columns)), "out_ptr", "rows", "n", *(["eps"] if eps else [])]
    kernel = Kernel(f"{task}_kernel", tuple(arguments), ("BLOCK", *constants), "\n".join(body))
    values = {f"{name}_ptr": name for name in (*inputs, *others)} | {f"{name}_ptr": f"self.{name}" for name in columns}
    values |= {"out_ptr": "out", "rows": "rows", "n": "n", "eps": "self.eps"}
    make = {
        "row": "out = torch.empty_like(x)",
        "scalar": "out = torch.empty(rows, dtype=x.dtype, device=x.device)",
        "index": "out = torch.empty((rows,), dtype=torch.int64, device=x.device)",
    }[output]
    launch = Launch(kernel, (grid,), values, {"BLOCK": "triton.next_power_of_2(n)", **constants})
    init = ["self.eps = eps"] if eps else []
    init += [f"self.{name} = nn.Parameter(torch.ones(cols))" for name in columns]
    return Solution(
        task,
        (*inputs, *others),
        ("rows, n = x.shape", make, launch, "return out"),
        "\n".join(init),
        ("cols", "eps") if eps else (),
    )


def _walk(walk: str) -> tuple[list[str], str, dict[str, str], str]:
    """(statements before a row's, their indentation, further constants, grid)."""
    if walk == "one":
        return ["row = tl.program_id(0)"], "", {}, "rows"
    if walk == "several":
        head = ["for step in range(STEPS):", "    row = tl.program_id(0) * STEPS + step", "    if row < rows:"]
        return head, " " * 8, {"STEPS": "2"}, "triton.cdiv(rows, @STEPS@)"
    assert walk == "stride"
    return ["for row in range(tl.program_id(0), rows, tl.num_programs(0)):"], " " * 4, {}, "min(rows, 3)"
