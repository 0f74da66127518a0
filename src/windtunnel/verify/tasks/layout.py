"""Tasks whose difficulty is where data lies: convolutions, pooling, rotary positions, gathers, scans, transposes."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import FORMS, LARGE, ROWS_COLS, grids, task

_X = "torch.randn(ROWS, COLS)"
_IMAGE = grids(BATCH=(1, 1, 32, 31), CHANNELS=(2, 3, 64, 48), OUT=(4, 2, 64, 80), HEIGHT=(4, 7, 56, 57), WIDTH=(8, 5, 56, 59))
_SIGNAL = grids(BATCH=(2, 1, 32, 31), CHANNELS=(4, 3, 128, 96), OUT=(8, 5, 128, 112), LENGTH=(24, 19, 2048, 1999))
_POOLED = grids(BATCH=(2, 1, 32, 31), CHANNELS=(3, 2, 64, 48), HEIGHT=(8, 6, 128, 126), WIDTH=(8, 10, 128, 130))
_NORM = (
    "self.gain = nn.Parameter(torch.randn(out))\nself.shift = nn.Parameter(torch.randn(out))\n"
    'self.register_buffer("running_mean", torch.randn(out))\nself.register_buffer("running_var", torch.rand(out) + 0.5)'
)
_BATCH_NORM = "F.batch_norm(h, self.running_mean, self.running_var, self.gain, self.shift, False, 0.0, 1e-5)"


def tasks() -> Iterator[Task]:
    """Convolutions, pooling, rotary positions, gathers, scans and transposes."""
    yield from _convolutions()
    yield from _pooling()
    yield from _rope()
    yield from _gathers()
    yield from _scans()
    yield from _transposes()


def _convolutions() -> Iterator[Task]:
    image, signal = "torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)", "torch.randn(BATCH, CHANNELS, LENGTH)"
    both = {"channels": "CHANNELS", "out": "OUT"}
    yield task(
        "conv1d_bias_relu",
        family="convolution",
        level=2,
        summary="relu of a 1-d convolution of width 3, padding 1, with bias.",
        sizes=_SIGNAL,
        inputs={"x": signal},
        init_inputs=both,
        body="torch.relu(F.conv1d(x, self.weight, self.bias, padding=1))",
        init="self.weight = nn.Parameter(torch.randn(out, channels, 3) / (3 * channels) ** 0.5)\n"
        "self.bias = nn.Parameter(torch.randn(out))",
    )
    yield task(
        "conv2d_bn_relu",
        family="convolution",
        level=3,
        summary="relu(BatchNorm(3 × 3 convolution of x, padding 1)) at inference.",
        sizes=_IMAGE,
        inputs={"x": image},
        init_inputs=both,
        body=f"h = F.conv2d(x, self.weight, padding=1)\nreturn torch.relu({_BATCH_NORM})",
        init="self.weight = nn.Parameter(torch.randn(out, channels, 3, 3) / (9 * channels) ** 0.5)\n" + _NORM,
        fixed=("running_var",),
    )
    yield task(
        "pointwise_conv_bn_silu",
        family="convolution",
        level=3,
        summary="silu(BatchNorm(1 × 1 convolution of x)) at inference.",
        sizes=_IMAGE,
        inputs={"x": image},
        init_inputs=both,
        body=f"h = F.conv2d(x, self.weight)\nreturn F.silu({_BATCH_NORM})",
        init="self.weight = nn.Parameter(torch.randn(out, channels, 1, 1) / channels**0.5)\n" + _NORM,
        fixed=("running_var",),
    )
    yield task(
        "depthwise_conv1d",
        family="convolution",
        level=2,
        summary="Causal depthwise convolution of width 4 with bias, then silu.",
        sizes=grids(BATCH=(2, 1, 32, 31), CHANNELS=(4, 3, 512, 500), LENGTH=(24, 19, 2048, 1999)),
        inputs={"x": signal},
        init_inputs={"channels": "CHANNELS"},
        body="F.silu(F.conv1d(F.pad(x, (3, 0)), self.weight, self.bias, groups=x.shape[1]))",
        init="self.weight = nn.Parameter(torch.randn(channels, 1, 4) / 2)\nself.bias = nn.Parameter(torch.randn(channels))",
    )
    yield task(
        "depthwise_conv2d",
        family="convolution",
        level=2,
        summary="Depthwise 3 × 3 convolution, padding 1, with bias.",
        sizes=_POOLED,
        inputs={"x": image},
        init_inputs={"channels": "CHANNELS"},
        body="F.conv2d(x, self.weight, self.bias, padding=1, groups=x.shape[1])",
        init="self.weight = nn.Parameter(torch.randn(channels, 1, 3, 3) / 3)\nself.bias = nn.Parameter(torch.randn(channels))",
    )


def _pooling() -> Iterator[Task]:
    image = {"x": "torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)"}
    yield task(
        "max_pool2d",
        family="pooling",
        level=2,
        summary="2 × 2 maximum pooling, stride 2.",
        sizes=_POOLED,
        inputs=image,
        body="F.max_pool2d(x, 2)",
        variations=LARGE,
    )
    yield task(
        "avg_pool2d",
        family="pooling",
        level=2,
        summary="2 × 2 average pooling, stride 2.",
        sizes=_POOLED,
        inputs=image,
        body="F.avg_pool2d(x, 2)",
        variations=LARGE,
    )
    yield task(
        "global_average_pool",
        family="pooling",
        level=1,
        summary="Mean over height and width.",
        sizes=_POOLED,
        inputs=image,
        body="x.mean((2, 3))",
    )
    yield task(
        "max_pool1d_relu",
        family="pooling",
        level=2,
        summary="relu, then maximum over windows of 3 with stride 1 (no padding).",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="F.max_pool1d(torch.relu(x)[None], 3, stride=1)[0]",
        variations=FORMS,
    )


def _rope() -> Iterator[Task]:
    sizes = grids(BATCH=(2, 1, 8, 7), HEADS=(2, 3, 16, 12), LENGTH=(8, 7, 2048, 1999), HEAD=(16, 12, 128, 96))
    inputs = {"x": "torch.randn(BATCH, HEADS, LENGTH, HEAD)", "angle": "torch.randn(LENGTH, HEAD // 2)"}
    yield task(
        "rope_halves",
        family="rope",
        level=2,
        summary="Rotary positions: element i turns with element i + HEAD/2 by angle[position, i].",
        sizes=sizes,
        inputs=inputs,
        body="cos, sin = torch.cos(angle), torch.sin(angle)\na, b = x.chunk(2, -1)\n"
        "return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)",
    )
    yield task(
        "rope_interleaved",
        family="rope",
        level=2,
        summary="Rotary positions: element 2i turns with element 2i + 1 by angle[position, i].",
        sizes=sizes,
        inputs=inputs,
        body="cos, sin = torch.cos(angle), torch.sin(angle)\na, b = x[..., 0::2], x[..., 1::2]\n"
        "return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)",
    )


def _gathers() -> Iterator[Task]:
    sizes = grids(VOCAB=(20, 13, 32000, 31999), WIDTH=(32, 21, 1024, 999), COUNT=(8, 7, 16384, 16001))
    table, arguments = "self.table = nn.Parameter(torch.randn(vocab, width))", {"vocab": "VOCAB", "width": "WIDTH"}
    index = "torch.randint(0, VOCAB, (COUNT,))"
    yield task(
        "embedding",
        family="gather",
        level=1,
        summary="Rows of a table by index.",
        sizes=sizes,
        inputs={"index": index},
        body="self.table[index]",
        init=table,
        init_inputs=arguments,
    )
    yield task(
        "embedding_positions",
        family="gather",
        level=2,
        summary="Rows of a table by index, plus a vector for each place.",
        sizes=sizes,
        inputs={"index": index, "place": "torch.randn(COUNT, WIDTH)"},
        body="self.table[index] + place",
        init=table,
        init_inputs=arguments,
    )
    yield task(
        "embedding_bag_sum",
        family="gather",
        level=2,
        summary="Sum of four table rows for each bag.",
        sizes=sizes,
        inputs={"index": "torch.randint(0, VOCAB, (COUNT, 4))"},
        body="self.table[index].sum(1)",
        init=table,
        init_inputs=arguments,
    )
    yield task(
        "gather_columns",
        family="gather",
        level=2,
        summary="out[r, j] = x[r, index[r, j]].",
        sizes=ROWS_COLS,
        inputs={"x": _X, "index": "torch.randint(0, COLS, (ROWS, COLS))"},
        body="torch.gather(x, 1, index)",
    )


def _scans() -> Iterator[Task]:
    yield task(
        "cumsum_last",
        family="scan",
        level=2,
        summary="Running sum along each row.",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="torch.cumsum(x, -1)",
    )
    yield task(
        "cumsum_exclusive",
        family="scan",
        level=2,
        summary="Running sum along each row, without the element itself.",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="torch.cumsum(x, -1) - x",
    )
    yield task(
        "cummax_last",
        family="scan",
        level=3,
        summary="Running maximum along each row.",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="torch.cummax(x, -1).values",
        variations=LARGE,
    )
    yield task(
        "decay_scan",
        family="scan",
        level=3,
        summary="s ← sigmoid(gate) · s + x along each row, every s returned.",
        sizes=grids(ROWS=(6, 5, 4096, 4093), COLS=(16, 13, 512, 499)),
        inputs={"x": _X, "gate": _X},
        body="a = torch.sigmoid(gate)\ns = torch.zeros_like(x[:, 0])\nout = []\n"
        "for t in range(x.shape[1]):\n    s = a[:, t] * s + x[:, t]\n"
        "    out.append(s)\nreturn torch.stack(out, 1)",
    )


def _transposes() -> Iterator[Task]:
    yield task(
        "transpose",
        family="transpose",
        level=1,
        summary="The transpose of x as a contiguous tensor.",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="x.t().contiguous()",
        host_copies=False,
    )
    yield task(
        "transpose_scale_add",
        family="transpose",
        level=2,
        summary="xᵀ · 0.5 + y, contiguous.",
        sizes=ROWS_COLS,
        inputs={"x": _X, "y": "torch.randn(COLS, ROWS)"},
        body="(x.t() * 0.5 + y).contiguous()",
        host_copies=False,
    )
    yield task(
        "swap_heads",
        family="transpose",
        level=1,
        summary="[BATCH, LENGTH, HEADS, HEAD] to contiguous [BATCH, HEADS, LENGTH, HEAD].",
        sizes=grids(BATCH=(2, 1, 8, 7), LENGTH=(6, 7, 2048, 1999), HEADS=(4, 3, 16, 12), HEAD=(16, 12, 128, 96)),
        inputs={"x": "torch.randn(BATCH, LENGTH, HEADS, HEAD)"},
        body="x.transpose(1, 2).contiguous()",
        host_copies=False,
    )
    yield task(
        "reverse_rows",
        family="transpose",
        level=1,
        summary="Every row backwards.",
        sizes=ROWS_COLS,
        inputs={"x": _X},
        body="x.flip(-1)",
        host_copies=False,
    )
