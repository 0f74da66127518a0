"""Tasks around a matrix product, and small attention."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.verify.kernel.task import Task
from windtunnel.verify.tasks.build import grids, task

_MNK = grids(M=(32, 19, 4096, 4001), N=(16, 21, 4096, 3001), K=(32, 27, 4096, 1999))
_A, _B = "torch.randn(M, K)", "torch.randn(K, N)"
_LINEAR = {"inner": "K", "outer": "N"}
_WEIGHT = "self.weight = nn.Parameter(torch.randn(outer, inner) / inner**0.5)"
_BIAS = "self.bias = nn.Parameter(torch.randn(outer))"
_HEADS = grids(BATCH=(1, 1, 8, 7), HEADS=(2, 3, 16, 12), LENGTH=(16, 21, 1024, 999), HEAD=(16, 16, 64, 64))

# name → (summary, level, expression of a layer with weight [N, K] and bias [N])
_LAYERS = {
    "gemm_bias": ("x Wᵀ + b.", 1, "F.linear(x, self.weight, self.bias)"),
    "gemm_bias_relu": ("relu(x Wᵀ + b).", 2, "torch.relu(F.linear(x, self.weight, self.bias))"),
    "gemm_bias_gelu": ("gelu(x Wᵀ + b), exact gelu.", 2, "F.gelu(F.linear(x, self.weight, self.bias))"),
    "gemm_bias_silu": ("silu(x Wᵀ + b).", 2, "F.silu(F.linear(x, self.weight, self.bias))"),
    "gemm_bias_sigmoid_scale": ("2.5 · sigmoid(x Wᵀ + b).", 2, "2.5 * torch.sigmoid(F.linear(x, self.weight, self.bias))"),
    "gemm_bias_squared_relu": ("relu(x Wᵀ + b)².", 2, "torch.square(torch.relu(F.linear(x, self.weight, self.bias)))"),
}


def tasks() -> Iterator[Task]:
    """Matrix products with what follows them, and attention."""
    yield from _products()
    for name, (summary, level, expression) in _LAYERS.items():
        yield task(
            name,
            family="gemm",
            level=level,
            summary=summary,
            sizes=_MNK,
            inputs={"x": _A},
            body=expression,
            init=f"{_WEIGHT}\n{_BIAS}",
            init_inputs=_LINEAR,
        )
    yield task(
        "gemm_bias_residual",
        family="gemm",
        level=2,
        summary="x Wᵀ + b + y.",
        sizes=_MNK,
        inputs={"x": _A, "y": "torch.randn(M, N)"},
        body="F.linear(x, self.weight, self.bias) + y",
        init=f"{_WEIGHT}\n{_BIAS}",
        init_inputs=_LINEAR,
    )
    yield task(
        "gemm_layernorm_gelu",
        family="gemm",
        level=3,
        summary="gelu(LayerNorm(x Wᵀ + b)) with the norm's weight and bias.",
        sizes=_MNK,
        inputs={"x": _A},
        init_inputs=_LINEAR,
        init=f"{_WEIGHT}\n{_BIAS}\nself.gain = nn.Parameter(torch.randn(outer))\nself.shift = nn.Parameter(torch.randn(outer))",
        body="h = F.linear(x, self.weight, self.bias)\nreturn F.gelu(F.layer_norm(h, h.shape[-1:], self.gain, self.shift, 1e-5))",
    )
    yield task(
        "gated_mlp_half",
        family="gemm",
        level=3,
        summary="silu(x Gᵀ) · (x Uᵀ): the first half of a gated MLP.",
        sizes=_MNK,
        inputs={"x": _A},
        init_inputs=_LINEAR,
        init="self.gate = nn.Parameter(torch.randn(outer, inner) / inner**0.5)\n"
        "self.up = nn.Parameter(torch.randn(outer, inner) / inner**0.5)",
        body="F.silu(F.linear(x, self.gate)) * F.linear(x, self.up)",
    )
    yield from _attention()


def _products() -> Iterator[Task]:
    yield task(
        "matmul", family="gemm", level=1, summary="A [M, K] times B [K, N].", sizes=_MNK, inputs={"a": _A, "b": _B}, body="a @ b"
    )
    yield task(
        "matmul_transposed",
        family="gemm",
        level=1,
        summary="Aᵀ B with A [K, M] and B [K, N].",
        sizes=_MNK,
        inputs={"a": "torch.randn(K, M)", "b": _B},
        body="a.t() @ b",
    )
    yield task(
        "batched_matmul",
        family="gemm",
        level=1,
        summary="A [BATCH, M, K] times B [BATCH, K, N].",
        sizes=grids(BATCH=(2, 3, 16, 15), M=(16, 19, 1024, 1000), N=(16, 21, 1024, 777), K=(16, 27, 1024, 999)),
        inputs={"a": "torch.randn(BATCH, M, K)", "b": "torch.randn(BATCH, K, N)"},
        body="torch.bmm(a, b)",
    )
    yield task(
        "matvec",
        family="gemm",
        level=1,
        summary="A [M, K] times v [K].",
        sizes=grids(M=(16, 11, 8192, 8001), K=(64, 37, 8192, 7001)),
        inputs={"a": _A, "v": "torch.randn(K)"},
        body="a @ v",
    )
    yield task(
        "outer_add",
        family="gemm",
        level=1,
        summary="C + u vᵀ with u [M] and v [N].",
        sizes=grids(M=(16, 11, 4096, 4001), N=(32, 21, 4096, 3001)),
        inputs={"c": "torch.randn(M, N)", "u": "torch.randn(M)", "v": "torch.randn(N)"},
        body="c + u[:, None] * v[None, :]",
    )


def _attention() -> Iterator[Task]:
    shape = "torch.randn(BATCH, HEADS, LENGTH, HEAD)"
    inputs = {"q": shape, "k": shape, "v": shape}
    yield task(
        "attention",
        family="attention",
        level=3,
        summary="softmax(q kᵀ / sqrt(HEAD)) v by batch and head.",
        sizes=_HEADS,
        inputs=inputs,
        body="torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v",
    )
    yield task(
        "causal_attention",
        family="attention",
        level=3,
        summary="Attention in which position i sees positions up to i.",
        sizes=_HEADS,
        inputs=inputs,
        body="n = q.shape[-2]\nkeep = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()\n"
        'scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~keep, float("-inf"))\n'
        "return torch.softmax(scores, -1) @ v",
    )
