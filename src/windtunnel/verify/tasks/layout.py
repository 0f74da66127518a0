"""Tasks whose difficulty is where data lies: convolutions, pooling, rotary positions, gathers, scans, transposes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import LARGE, X, by_name, drawn, grids, task

# Odd heights and widths in the ragged sizes: where a block of pixels ends is where kernels go wrong.
_IMAGES = grids(BATCH=(2, 1, 32, 31), CHANNELS=(2, 3, 64, 48), OUT=(4, 2, 64, 80), HEIGHT=(4, 9, 56, 57), WIDTH=(8, 11, 56, 59))
_IMAGE = drawn("BATCH, CHANNELS, HEIGHT, WIDTH", "x")
# Even where pooling by two takes them: PyTorch drops what is left over, which says nothing of a kernel.
_POOLED = grids(BATCH=(2, 1, 32, 31), CHANNELS=(3, 2, 64, 48), HEIGHT=(8, 14, 128, 126), WIDTH=(8, 22, 128, 130))


def tasks() -> Iterator[Task]:
    """Yield convolutions, pooling, rotary positions, gathers, scans and transposes."""
    yield from _convolutions()
    yield from _pooling()
    yield from _rope()
    yield from _gathers()
    yield from _scans()
    yield from _transposes()


def _convolutions() -> Iterator[Task]:
    # Weights are scaled by what is summed, so that outputs stay near 1.
    signal = drawn("BATCH, CHANNELS, LENGTH", "x")
    yield task(
        "conv1d_bias_relu",
        "relu of a 1-d convolution of width 3, padding 1, with bias.",
        "torch.relu(F.conv1d(x, self.weight, self.bias, padding=1))",
        family="convolution",
        level=2,
        sizes=grids(BATCH=(2, 1, 32, 31), CHANNELS=(4, 3, 128, 96), OUT=(8, 5, 128, 112), LENGTH=(24, 19, 2048, 1999)),
        inputs=signal,
        parameters={"weight": "torch.randn(out, channels, 3) / (3 * channels) ** 0.5", **drawn("out", "bias")},
        init_inputs=by_name("channels", "out"),
    )
    yield from _normalised_convolutions()
    depthwise = partial(task, family="convolution", level=2, init_inputs=by_name("channels"))
    bias = drawn("channels", "bias")
    yield depthwise(
        "depthwise_conv1d",
        "Causal depthwise convolution of width 4 with bias, then silu.",
        "F.silu(F.conv1d(F.pad(x, (3, 0)), self.weight, self.bias, groups=x.shape[1]))",
        sizes=grids(BATCH=(2, 1, 32, 31), CHANNELS=(4, 3, 512, 500), LENGTH=(24, 19, 2048, 1999)),
        inputs=signal,
        parameters={"weight": "torch.randn(channels, 1, 4) / 2", **bias},
    )
    yield depthwise(
        "depthwise_conv2d",
        "Depthwise 3 × 3 convolution, padding 1, with bias.",
        "F.conv2d(x, self.weight, self.bias, padding=1, groups=x.shape[1])",
        sizes=_POOLED,
        inputs=_IMAGE,
        parameters={"weight": "torch.randn(channels, 1, 3, 3) / 3", **bias},
    )


def _normalised_convolutions() -> Iterator[Task]:
    norm = "F.batch_norm(h, self.running_mean, self.running_var, self.gain, self.shift, False, 0.0, 1e-5)"
    scales = drawn("out", "gain", "shift")
    convolution = partial(
        task,
        family="convolution",
        level=3,
        sizes=_IMAGES,
        inputs=_IMAGE,
        buffers={"running_mean": "torch.randn(out)", "running_var": "torch.rand(out) + 0.5"},
        init_inputs=by_name("channels", "out"),
    )
    yield convolution(
        "conv2d_bn_relu",
        "relu(BatchNorm(3 × 3 convolution of x, padding 1)) at inference.",
        f"h = F.conv2d(x, self.weight, padding=1)\nreturn torch.relu({norm})",
        parameters={"weight": "torch.randn(out, channels, 3, 3) / (9 * channels) ** 0.5", **scales},
    )
    yield convolution(
        "pointwise_conv_bn_silu",
        "silu(BatchNorm(1 × 1 convolution of x)) at inference.",
        f"h = F.conv2d(x, self.weight)\nreturn F.silu({norm})",
        parameters={"weight": "torch.randn(out, channels, 1, 1) / channels**0.5", **scales},
    )


def _pooling() -> Iterator[Task]:
    matrix = partial(task, family="pooling", level=2)
    image = partial(matrix, sizes=_POOLED, inputs=_IMAGE)
    yield image("max_pool2d", "2 × 2 maximum pooling, stride 2.", "F.max_pool2d(x, 2)", variations=LARGE)
    yield image("avg_pool2d", "2 × 2 average pooling, stride 2.", "F.avg_pool2d(x, 2)", variations=LARGE)
    yield image("global_average_pool", "Mean over height and width.", "x.mean((2, 3))", level=1)
    yield matrix(
        "max_pool1d_relu",
        "relu, then maximum over windows of 3 with stride 1 (no padding).",
        "F.max_pool1d(torch.relu(x)[None], 3, stride=1)[0]",
    )


def _rope() -> Iterator[Task]:
    rope = partial(
        task,
        family="rope",
        level=2,
        sizes=grids(BATCH=(2, 1, 8, 7), HEADS=(2, 3, 16, 12), LENGTH=(8, 7, 2048, 1999), HEAD=(16, 12, 128, 96)),
        inputs=drawn("BATCH, HEADS, LENGTH, HEAD", "x") | drawn("LENGTH, HEAD // 2", "angle"),
    )
    # Two conventions of which element turns with which: halves as in Llama, neighbours as in GPT-J.
    turn = "cos, sin = torch.cos(angle), torch.sin(angle)\na, b = {}\nreturn {}((a * cos - b * sin, b * cos + a * sin), -1){}"
    yield rope(
        "rope_halves",
        "Rotary positions: element i turns with element i + HEAD/2 by angle[position, i].",
        turn.format("x.chunk(2, -1)", "torch.cat", ""),
    )
    yield rope(
        "rope_interleaved",
        "Rotary positions: element 2i turns with element 2i + 1 by angle[position, i].",
        turn.format("x[..., 0::2], x[..., 1::2]", "torch.stack", ".flatten(-2)"),
    )


def _gathers() -> Iterator[Task]:
    index = {"index": "torch.randint(0, VOCAB, (COUNT,))"}
    gather = partial(task, family="gather", level=2)
    table = partial(
        gather,
        sizes=grids(VOCAB=(20, 13, 32000, 31999), WIDTH=(32, 21, 1024, 999), COUNT=(8, 7, 16384, 16001)),
        inputs=index,
        parameters=drawn("vocab, width", "table"),
        init_inputs=by_name("vocab", "width"),
    )
    yield table("embedding", "Rows of a table by index.", "self.table[index]", level=1)
    yield table(
        "embedding_positions",
        "Rows of a table by index, plus a vector for each place.",
        "self.table[index] + place",
        inputs=index | drawn("COUNT, WIDTH", "place"),
    )
    yield table(
        "embedding_bag_sum",
        "Sum of four table rows for each bag.",
        "self.table[index].sum(1)",
        inputs={"index": "torch.randint(0, VOCAB, (COUNT, 4))"},
    )
    yield gather(
        "gather_columns",
        "out[r, j] = x[r, index[r, j]].",
        "torch.gather(x, 1, index)",
        inputs={**X, "index": "torch.randint(0, COLS, (ROWS, COLS))"},
    )


def _scans() -> Iterator[Task]:
    scan = partial(task, family="scan", level=2)
    yield scan("cumsum_last", "Running sum along each row.", "torch.cumsum(x, -1)")
    yield scan("cumsum_exclusive", "Running sum along each row, without the element itself.", "torch.cumsum(x, -1) - x")
    # Values alone: of equal elements the index is PyTorch's choice.
    yield scan("cummax_last", "Running maximum along each row.", "torch.cummax(x, -1).values", level=3, variations=LARGE)
    yield scan(
        "decay_scan",
        "s ← sigmoid(gate) · s + x along each row, every s returned.",
        "a = torch.sigmoid(gate)\ns = torch.zeros_like(x[:, 0])\nout = []\n"
        "for t in range(x.shape[1]):\n    s = a[:, t] * s + x[:, t]\n"
        "    out.append(s)\nreturn torch.stack(out, 1)",
        level=3,
        # Short rows: the reference goes through them column by column.
        sizes=grids(ROWS=(6, 133, 4096, 4093), COLS=(16, 13, 512, 499)),
        inputs=drawn("ROWS, COLS", "x", "gate"),
    )


def _transposes() -> Iterator[Task]:
    # Else .contiguous() on the host would be the whole answer.
    transpose = partial(task, family="transpose", level=1, host_copies=False)
    yield transpose("transpose", "The transpose of x as a contiguous tensor.", "x.t().contiguous()")
    yield transpose(
        "transpose_scale_add",
        "xᵀ · 0.5 + y, contiguous.",
        "(x.t() * 0.5 + y).contiguous()",
        level=2,
        inputs=X | drawn("COLS, ROWS", "y"),
    )
    yield transpose(
        "swap_heads",
        "[BATCH, LENGTH, HEADS, HEAD] to contiguous [BATCH, HEADS, LENGTH, HEAD].",
        "x.transpose(1, 2).contiguous()",
        sizes=grids(BATCH=(2, 1, 8, 7), LENGTH=(6, 7, 2048, 1999), HEADS=(4, 3, 16, 12), HEAD=(16, 12, 128, 96)),
        inputs=drawn("BATCH, LENGTH, HEADS, HEAD", "x"),
    )
    yield transpose("reverse_rows", "Every row backwards.", "x.flip(-1)")
