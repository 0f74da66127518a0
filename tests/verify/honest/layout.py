"""Honest solutions of tasks whose difficulty is where data lies. Each kernel computes flat offsets of its own outputs."""

from __future__ import annotations

from honest.flat import NORM_INIT, NORM_LOADS, NORM_VALUES, dedent, flat
from honest.render import Solution


def solutions(block: int = 128) -> dict[str, Solution]:
    """One solution a task; `block` lanes a program."""
    made = (
        *_convolutions(block),
        *_pools(block),
        *_ropes(block),
        *_gathers(block),
        *_copies(block),
    )
    return {solution.task: solution for solution in made}


def _convolutions(block: int) -> tuple[Solution, ...]:
    signal = """
    length = LENGTH
    t = at % length
    channel = (at // length) % OUT
    batch = at // (length * OUT)
    value = tl.load(bias_ptr + channel, mask=mask, other=0.0).to(tl.float32)
    for c in range(CHANNELS):
        for tap in tl.static_range(3):
            where = t + tap - 1
            x = tl.load(x_ptr + (batch * CHANNELS + c) * length + where, mask=mask & (where >= 0) & (where < length), other=0.0)
            w = tl.load(w_ptr + (channel * CHANNELS + c) * 3 + tap, mask=mask, other=0.0)
            value += x.to(tl.float32) * w.to(tl.float32)
    value = tl.maximum(value, 0.0)
    """
    image = """
    w_at = at % WIDTH
    h_at = (at // WIDTH) % HEIGHT
    channel = (at // (WIDTH * HEIGHT)) % OUT
    batch = at // (WIDTH * HEIGHT * OUT)
    value = tl.zeros((BLOCK,), dtype=tl.float32)
    for c in range(CHANNELS):
        for tap in tl.static_range({taps}):
            row = h_at + tap // 3 - {pad}
            col = w_at + tap % 3 - {pad}
            inside = mask & (row >= 0) & (row < HEIGHT) & (col >= 0) & (col < WIDTH)
            x = tl.load(x_ptr + ((batch * CHANNELS + c) * HEIGHT + row) * WIDTH + col, mask=inside, other=0.0)
            w = tl.load(w_ptr + (channel * CHANNELS + c) * {taps} + tap, mask=mask, other=0.0)
            value += x.to(tl.float32) * w.to(tl.float32)
    """
    dims = (
        "batch, CHANNELS, HEIGHT, WIDTH = x.shape",
        "OUT = self.weight.shape[0]",
        "out = torch.empty((batch, OUT, HEIGHT, WIDTH), dtype=x.dtype, device=x.device)",
    )
    numbers = ("CHANNELS", "OUT", "HEIGHT", "WIDTH")
    wide = "self.weight = nn.Parameter(torch.empty(out, channels, 3, 3))\n" + NORM_INIT
    point = "self.weight = nn.Parameter(torch.empty(out, channels, 1, 1))\n" + NORM_INIT
    tensors = {"x_ptr": "x", "w_ptr": "self.weight", **NORM_VALUES}
    return (
        flat(
            "conv1d_bias_relu",
            ("x",),
            {"x_ptr": "x", "w_ptr": "self.weight", "bias_ptr": "self.bias"},
            ("CHANNELS", "OUT", "LENGTH"),
            dedent(signal),
            ("batch, CHANNELS, LENGTH = x.shape", "OUT = self.bias.shape[0]", "out = x.new_empty(batch, OUT, LENGTH)"),
            block,
            "self.weight = nn.Parameter(torch.empty(out, channels, 3))\nself.bias = nn.Parameter(torch.empty(out))",
            ("channels", "out"),
        ),
        flat(
            "conv2d_bn_relu",
            ("x",),
            tensors,
            numbers,
            dedent(image.format(taps=9, pad=1)) + NORM_LOADS + "value = tl.maximum(value, 0.0)",
            dims,
            block,
            wide,
            ("channels", "out"),
        ),
        flat(
            "pointwise_conv_bn_silu",
            ("x",),
            tensors,
            numbers,
            dedent(image.format(taps=1, pad=0)) + NORM_LOADS + "value = value * tl.sigmoid(value)",
            dims,
            block,
            point,
            ("channels", "out"),
        ),
        *_depthwise(block),
    )


def _depthwise(block: int) -> tuple[Solution, ...]:
    signal = """
    t = at % LENGTH
    channel = (at // LENGTH) % CHANNELS
    value = tl.load(bias_ptr + channel, mask=mask, other=0.0).to(tl.float32)
    for tap in tl.static_range(4):
        x = tl.load(x_ptr + at + tap - 3, mask=mask & (t + tap - 3 >= 0), other=0.0).to(tl.float32)
        value += x * tl.load(w_ptr + channel * 4 + tap, mask=mask, other=0.0).to(tl.float32)
    value = value * tl.sigmoid(value)
    """
    image = """
    col = at % WIDTH
    row = (at // WIDTH) % HEIGHT
    channel = (at // (WIDTH * HEIGHT)) % CHANNELS
    value = tl.load(bias_ptr + channel, mask=mask, other=0.0).to(tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            inside = (row + i >= 1) & (row + i <= HEIGHT) & (col + j >= 1) & (col + j <= WIDTH)
            x = tl.load(x_ptr + at + (i - 1) * WIDTH + (j - 1), mask=mask & inside, other=0.0).to(tl.float32)
            value += x * tl.load(w_ptr + channel * 9 + i * 3 + j, mask=mask, other=0.0).to(tl.float32)
    """
    tensors = {"x_ptr": "x", "w_ptr": "self.weight", "bias_ptr": "self.bias"}
    bias = "\nself.bias = nn.Parameter(torch.zeros(channels))"
    return (
        flat(
            "depthwise_conv1d",
            ("x",),
            tensors,
            ("CHANNELS", "LENGTH"),
            dedent(signal),
            ("_, CHANNELS, LENGTH = x.shape", "out = torch.empty_like(x)"),
            block,
            "self.weight = nn.Parameter(torch.empty(channels, 1, 4))" + bias,
            ("channels",),
        ),
        flat(
            "depthwise_conv2d",
            ("x",),
            tensors,
            ("CHANNELS", "HEIGHT", "WIDTH"),
            dedent(image),
            ("_, CHANNELS, HEIGHT, WIDTH = x.size()", "out = torch.empty_like(x)"),
            block,
            "self.weight = nn.Parameter(torch.empty(channels, 1, 3, 3))" + bias,
            ("channels",),
        ),
    )


def _pools(block: int) -> tuple[Solution, ...]:
    square = """
    half = WIDTH // 2
    col = at % half
    rest = at // half
    corner = rest * 2 * WIDTH + col * 2
    a = tl.load(x_ptr + corner, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + corner + 1, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(x_ptr + corner + WIDTH, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(x_ptr + corner + WIDTH + 1, mask=mask, other=0.0).to(tl.float32)
    """
    line = """
    kept = n - 2
    start = (at // kept) * n + at % kept
    value = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(3):
        value = tl.maximum(value, tl.load(x_ptr + start + tap, mask=mask, other=0.0).to(tl.float32))
    """
    make = (
        "batch, channels, height, WIDTH = x.shape",
        "out = torch.empty((batch, channels, height // 2, WIDTH // 2), dtype=x.dtype, device=x.device)",
    )
    return (
        flat(
            "max_pool2d",
            ("x",),
            {"x_ptr": "x"},
            ("WIDTH",),
            dedent(square) + "value = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))",
            make,
            block,
        ),
        flat("avg_pool2d", ("x",), {"x_ptr": "x"}, ("WIDTH",), dedent(square) + "value = (a + b + c + d) * 0.25", make, block),
        flat(
            "max_pool1d_relu",
            ("x",),
            {"x_ptr": "x"},
            ("n",),
            dedent(line),
            ("rows, n = x.shape", "out = torch.empty(rows, n - 2, dtype=x.dtype, device=x.device)"),
            block,
        ),
    )


def _ropes(block: int) -> tuple[Solution, ...]:
    halves = """
    half = HEAD // 2
    i = at % HEAD
    place = (at // HEAD) % LENGTH
    angle = tl.load(angle_ptr + place * half + i % half, mask=mask, other=0.0).to(tl.float32)
    partner = tl.where(i < half, at + half, at - half)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + partner, mask=mask, other=0.0).to(tl.float32)
    value = x * tl.cos(angle) + tl.where(i < half, -y, y) * tl.sin(angle)
    """
    pairs = """
    half = HEAD // 2
    i = at % HEAD
    place = (at // HEAD) % LENGTH
    angle = tl.load(angle_ptr + place * half + i // 2, mask=mask, other=0.0).to(tl.float32)
    odd = i % 2
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + at + 1 - 2 * odd, mask=mask, other=0.0).to(tl.float32)
    value = x * tl.cos(angle) + tl.where(odd == 0, -y, y) * tl.sin(angle)
    """
    host = ("LENGTH, HEAD = x.shape[2], x.shape[3]", "out = torch.empty_like(x)")
    both = {"x_ptr": "x", "angle_ptr": "angle"}
    return (
        flat("rope_halves", ("x", "angle"), both, ("LENGTH", "HEAD"), dedent(halves), host, block),
        flat("rope_interleaved", ("x", "angle"), both, ("LENGTH", "HEAD"), dedent(pairs), host, block),
    )


def _gathers(block: int) -> tuple[Solution, ...]:
    row = """
    index = tl.load(index_ptr + at // width, mask=mask, other=0)
    value = tl.load(table_ptr + index * width + at % width, mask=mask, other=0.0)
    """
    bag = """
    value = tl.zeros((BLOCK,), dtype=tl.float32)
    for j in tl.static_range(4):
        index = tl.load(index_ptr + (at // width) * 4 + j, mask=mask, other=0)
        value += tl.load(table_ptr + index * width + at % width, mask=mask, other=0.0).to(tl.float32)
    """
    columns = """
    index = tl.load(index_ptr + at, mask=mask, other=0)
    value = tl.load(x_ptr + (at // n) * n + index, mask=mask, other=0.0)
    """
    add = "value = value.to(tl.float32) + tl.load(place_ptr + at, mask=mask, other=0.0).to(tl.float32)"
    init = "self.table = nn.Parameter(torch.empty(vocab, width))"
    host = (
        "width = self.table.shape[1]",
        "out = torch.empty((index.shape[0], width), dtype=self.table.dtype, device=index.device)",
    )
    table = {"index_ptr": "index", "table_ptr": "self.table"}
    sizes = ("vocab", "width")
    return (
        flat("embedding", ("index",), table, ("width",), dedent(row), host, block, init, sizes),
        flat(
            "embedding_positions",
            ("index", "place"),
            {**table, "place_ptr": "place"},
            ("width",),
            dedent(row) + add,
            host,
            block,
            init,
            sizes,
        ),
        flat("embedding_bag_sum", ("index",), table, ("width",), dedent(bag), host, block, init, sizes),
        flat(
            "gather_columns",
            ("x", "index"),
            {"x_ptr": "x", "index_ptr": "index"},
            ("n",),
            dedent(columns),
            ("n = x.shape[1]", "out = torch.empty_like(x)"),
            block,
        ),
    )


def _copies(block: int) -> tuple[Solution, ...]:
    turned = """
    value = tl.load(x_ptr + (at % rows) * cols + at // rows, mask=mask, other=0.0)
    """
    added = "value = value.to(tl.float32) * 0.5 + tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)"
    heads = """
    i = at % head
    t = (at // head) % length
    h = (at // (head * length)) % heads
    b = at // (head * length * heads)
    value = tl.load(x_ptr + ((b * length + t) * heads + h) * head + i, mask=mask, other=0.0)
    """
    reverse = """
    value = tl.load(x_ptr + (at // n) * n + (n - 1 - at % n), mask=mask, other=0.0)
    """
    host = ("rows, cols = x.shape", "out = torch.empty((cols, rows), dtype=x.dtype, device=x.device)")
    swap = ("batch, length, heads, head = x.shape", "out = x.new_empty((batch, heads, length, head))")
    return (
        flat("transpose", ("x",), {"x_ptr": "x"}, ("rows", "cols"), dedent(turned), host, block),
        flat(
            "transpose_scale_add",
            ("x", "y"),
            {"x_ptr": "x", "y_ptr": "y"},
            ("rows", "cols"),
            dedent(turned) + added,
            host,
            block,
        ),
        flat("swap_heads", ("x",), {"x_ptr": "x"}, ("length", "heads", "head"), dedent(heads), swap, block),
        flat(
            "reverse_rows",
            ("x",),
            {"x_ptr": "x"},
            ("n",),
            dedent(reverse),
            ("n = x.shape[-1]", "out = torch.empty_like(x)"),
            block,
        ),
    )
