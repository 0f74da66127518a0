"""Tasks around a matrix product, and small attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import FORMS, drawn, grids, task

# None of the ragged sizes is a multiple of a block: the last tile of each dimension is cut.
_MNK = grids(M=(32, 19, 4096, 4001), N=(16, 21, 4096, 3001), K=(32, 69, 4096, 1999))
_A, _B = drawn("M, K", "a"), drawn("K, N", "b")
# So that outputs stay near 1, whatever the inner dimension.
_WEIGHT = "torch.randn(outer, inner) / inner**0.5"
_LINEAR = "F.linear(x, self.weight, self.bias)"
# HEAD is always one that tl.dot takes whole: what is ragged is LENGTH.
_HEADS = grids(BATCH=(2, 1, 8, 7), HEADS=(2, 3, 16, 12), LENGTH=(16, 21, 1024, 999), HEAD=(16, 32, 64, 64))


def tasks() -> Iterator[Task]:
    """Yield matrix products with what follows them, and attention."""
    yield from _products()
    yield from _layers()
    yield from _attention()


def _products() -> Iterator[Task]:
    product = partial(task, family="gemm", level=1)
    yield product("matmul", "A [M, K] times B [K, N].", "a @ b", sizes=_MNK, inputs=_A | _B)
    yield product(
        "matmul_transposed", "Aᵀ B with A [K, M] and B [K, N].", "a.t() @ b", sizes=_MNK, inputs=drawn("K, M", "a") | _B
    )
    yield product(
        "batched_matmul",
        "A [BATCH, M, K] times B [BATCH, K, N].",
        "torch.bmm(a, b)",
        sizes=grids(BATCH=(2, 3, 16, 15), M=(16, 19, 1024, 1000), N=(16, 21, 1024, 777), K=(16, 67, 1024, 999)),
        inputs=drawn("BATCH, M, K", "a") | drawn("BATCH, K, N", "b"),
    )
    yield product(
        "matvec",
        "A [M, K] times v [K].",
        "a @ v",
        sizes=grids(M=(16, 11, 8192, 8001), K=(64, 37, 8192, 7001)),
        inputs=_A | drawn("K", "v"),
    )
    yield product(
        "outer_add",
        "C + u vᵀ with u [M] and v [N].",
        "c + u[:, None] * v[None, :]",
        sizes=grids(M=(16, 11, 4096, 4001), N=(32, 69, 4096, 3001)),
        inputs=drawn("M, N", "c") | drawn("M", "u") | drawn("N", "v"),
    )


def _layers() -> Iterator[Task]:
    bias = drawn("outer", "bias")
    layer = partial(
        task,
        family="gemm",
        level=2,
        sizes=_MNK,
        inputs=drawn("M, K", "x"),
        parameters={"weight": _WEIGHT, **bias},
        init_inputs={"inner": "K", "outer": "N"},
    )
    yield layer("gemm_bias", "x Wᵀ + b.", _LINEAR, level=1)
    yield layer("gemm_bias_relu", "relu(x Wᵀ + b).", f"torch.relu({_LINEAR})")
    yield layer("gemm_bias_gelu", "gelu(x Wᵀ + b), exact gelu.", f"F.gelu({_LINEAR})")
    yield layer("gemm_bias_silu", "silu(x Wᵀ + b).", f"F.silu({_LINEAR})")
    yield layer("gemm_bias_sigmoid_scale", "2.5 · sigmoid(x Wᵀ + b).", f"2.5 * torch.sigmoid({_LINEAR})")
    yield layer("gemm_bias_squared_relu", "relu(x Wᵀ + b)².", f"torch.square(torch.relu({_LINEAR}))")
    yield layer("gemm_bias_residual", "x Wᵀ + b + y.", f"{_LINEAR} + y", inputs=drawn("M, K", "x") | drawn("M, N", "y"))
    yield layer(
        "gemm_layernorm_gelu",
        "gelu(LayerNorm(x Wᵀ + b)) with the norm's weight and bias.",
        f"h = {_LINEAR}\nreturn F.gelu(F.layer_norm(h, h.shape[-1:], self.gain, self.shift, 1e-5))",
        level=3,
        parameters={"weight": _WEIGHT, **bias, **drawn("outer", "gain", "shift")},
    )
    yield layer(
        "gated_mlp_half",
        "silu(x Gᵀ) · (x Uᵀ): the first half of a gated MLP.",
        "F.silu(F.linear(x, self.gate)) * F.linear(x, self.up)",
        level=3,
        parameters={"gate": _WEIGHT, "up": _WEIGHT},
    )


def _attention() -> Iterator[Task]:
    inputs = drawn("BATCH, HEADS, LENGTH, HEAD", "q", "k", "v")
    attention = partial(task, family="attention", level=3, sizes=_HEADS, inputs=inputs, variations=(*FORMS, "steep"))
    scores = "q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5"
    yield attention("attention", "softmax(q kᵀ / sqrt(HEAD)) v by batch and head.", f"torch.softmax({scores}, -1) @ v")
    yield attention(
        "causal_attention",
        "Attention in which position i sees positions up to i.",
        "n = q.shape[-2]\nkeep = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()\n"
        f'scores = ({scores}).masked_fill(~keep, float("-inf"))\nreturn torch.softmax(scores, -1) @ v',
    )
