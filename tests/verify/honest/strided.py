"""Honest solutions that walk over a middle dimension, scan, or work by channel or group."""

from __future__ import annotations

from honest.flat import FLAT, NORM_LOADS, NORM_VALUES, dedent, flat
from honest.render import Kernel, Launch, Solution


def solutions(block: int = 128) -> dict[str, Solution]:
    """One solution a task; `block` lanes a program where lanes are outputs."""
    made = (*_scans(), *_middles(block), *_channels(block), _global_pool())
    return {solution.task: solution for solution in made}


def _scans() -> tuple[Solution, ...]:
    highest = """
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=mask, other=-float("inf")).to(tl.float32)
    value = tl.associative_scan(x, 0, higher)
    tl.store(out_ptr + tl.program_id(0) * n + cols, value.to(out_ptr.dtype.element_ty), mask=mask)
    """
    decay = """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    state = tl.zeros((BLOCK,), dtype=tl.float32)
    for t in range(n):
        gate = tl.load(gate_ptr + row * n + t, mask=mask, other=0.0).to(tl.float32)
        state = tl.sigmoid(gate) * state + tl.load(x_ptr + row * n + t, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * n + t, state.to(out_ptr.dtype.element_ty), mask=mask)
    """
    helper = "@triton.jit\ndef higher(a, b):\n    return tl.maximum(a, b)"
    first = Kernel("cummax_kernel", ("x_ptr", "out_ptr", "n"), ("BLOCK",), highest, helper)
    second = Kernel("decay_kernel", ("x_ptr", "gate_ptr", "out_ptr", "rows", "n"), ("BLOCK",), decay)
    values = {"x_ptr": "x", "gate_ptr": "gate", "out_ptr": "out", "rows": "rows", "n": "n"}
    host = ("rows, n = x.shape", "out = torch.empty_like(x)")
    return (
        Solution(
            "cummax_last", ("x",), (*host, Launch(first, ("rows",), values, {"BLOCK": "triton.next_power_of_2(n)"}), "return out")
        ),
        Solution(
            "decay_scan",
            ("x", "gate"),
            (*host, Launch(second, ("triton.cdiv(rows, @BLOCK@)",), values, {"BLOCK": "8"}), "return out"),
        ),
    )


def _middles(block: int) -> tuple[Solution, ...]:
    walk = """
    base = (at // inner) * length * inner + at % inner
    value = {start}
    for t in range(length):
        x = tl.load(x_ptr + base + t * inner, mask=mask, other=0.0).to(tl.float32)
        value = {step}
    """
    soft = """
    base = (at // inner) * length * inner + at % inner
    top = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    for t in range(length):
        top = tl.maximum(top, tl.load(x_ptr + base + t * inner, mask=mask, other=0.0).to(tl.float32))
    bottom = tl.zeros((BLOCK,), dtype=tl.float32)
    for t in range(length):
        bottom += tl.exp(tl.load(x_ptr + base + t * inner, mask=mask, other=0.0).to(tl.float32) - top)
    for t in range(length):
        x = tl.load(x_ptr + base + t * inner, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + base + t * inner, (tl.exp(x - top) / bottom).to(out_ptr.dtype.element_ty), mask=mask)
    """
    host = ("outer, length, inner = x.shape", "out = torch.empty((outer, inner), dtype=x.dtype, device=x.device)")
    add = walk.format(start="tl.zeros((BLOCK,), dtype=tl.float32)", step="value + x")
    high = walk.format(start='tl.full((BLOCK,), -float("inf"), dtype=tl.float32)', step="tl.maximum(value, x)")
    kernel = Kernel("softmax_middle_kernel", ("x_ptr", "out_ptr", "total", "length", "inner"), ("BLOCK",), FLAT + dedent(soft))
    values = {"x_ptr": "x", "out_ptr": "out", "total": "outer * inner", "length": "length", "inner": "inner"}
    launch = Launch(kernel, ("triton.cdiv(outer * inner, @BLOCK@)",), values, {"BLOCK": str(block)})
    return (
        flat("sum_middle", ("x",), {"x_ptr": "x"}, ("length", "inner"), dedent(add), host, block),
        flat("max_middle", ("x",), {"x_ptr": "x"}, ("length", "inner"), dedent(high), host, block),
        Solution("softmax_middle", ("x",), (host[0], "out = torch.empty_like(x)", launch, "return out")),
    )


def _channels(block: int) -> tuple[Solution, ...]:
    batch = "\nchannel = (at // LENGTH) % CHANNELS\nvalue = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)\n"
    group = """
    base = tl.program_id(0) * size
    cols = tl.arange(0, BLOCK)
    mask = cols < size
    x = tl.load(x_ptr + base + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / size
    d = tl.where(mask, x - mean, 0.0)
    channel = (tl.program_id(0) % GROUPS) * (size // LENGTH) + cols // LENGTH
    weight = tl.load(weight_ptr + channel, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=mask, other=0.0).to(tl.float32)
    value = d * tl.rsqrt(tl.sum(d * d, 0) / size + 1e-5) * weight + bias
    tl.store(out_ptr + base + cols, value.to(out_ptr.dtype.element_ty), mask=mask)
    """
    kernel = Kernel(
        "groupnorm_kernel", ("x_ptr", "weight_ptr", "bias_ptr", "out_ptr", "size", "LENGTH", "GROUPS"), ("BLOCK",), group
    )
    values = {
        "x_ptr": "x",
        "weight_ptr": "self.weight",
        "bias_ptr": "self.bias",
        "out_ptr": "out",
        "size": "size",
        "LENGTH": "length",
        "GROUPS": "self.groups",
    }
    launch = Launch(kernel, ("batch * self.groups",), values, {"BLOCK": "triton.next_power_of_2(size)"})
    host = (
        "batch, channels, length = x.shape",
        "size = channels // self.groups * length",
        "out = torch.empty_like(x)",
        launch,
        "return out",
    )
    init = (
        "self.groups = groups\nself.weight = nn.Parameter(torch.ones(channels))\nself.bias = nn.Parameter(torch.zeros(channels))"
    )
    norm_init = (
        "self.weight = nn.Parameter(torch.ones(channels))\nself.bias = nn.Parameter(torch.zeros(channels))\n"
        'self.register_buffer("running_mean", torch.zeros(channels))\nself.register_buffer("running_var", torch.ones(channels))'
    )
    tensors = {"x_ptr": "x", **NORM_VALUES, "gain_ptr": "self.weight", "shift_ptr": "self.bias"}
    return (
        Solution("groupnorm", ("x",), host, init, ("channels", "groups")),
        flat(
            "batchnorm_relu",
            ("x",),
            tensors,
            ("CHANNELS", "LENGTH"),
            batch + NORM_LOADS + "value = tl.maximum(value, 0.0)",
            ("CHANNELS, LENGTH = x.shape[1], x.shape[2]", "out = torch.empty_like(x)"),
            block,
            norm_init,
            ("channels",),
        ),
    )


def _global_pool() -> Solution:
    body = """
    plane = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + plane * area + at, mask=at < area, other=0.0).to(tl.float32)
    tl.store(out_ptr + plane, (tl.sum(total, axis=0) / area).to(out_ptr.dtype.element_ty))
    """
    kernel = Kernel("global_pool_kernel", ("x_ptr", "out_ptr", "area"), ("BLOCK",), body)
    launch = Launch(kernel, ("batch * channels",), {"x_ptr": "x", "out_ptr": "out", "area": "height * width"}, {"BLOCK": "32"})
    host = (
        "batch, channels, height, width = x.shape",
        "out = torch.empty((batch, channels), dtype=x.dtype, device=x.device)",
        launch,
        "return out",
    )
    return Solution("global_average_pool", ("x",), host)
