"""Honest solutions around a matrix product: one tiled kernel with an epilogue, and attention."""

from __future__ import annotations

from honest.render import Kernel, Launch, Solution

_GELU = "0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))"
_EPILOGUES = {
    "gemm_bias": "",
    "gemm_bias_relu": "value = tl.maximum(value, 0.0)",
    "gemm_bias_gelu": f"value = {_GELU}",
    "gemm_bias_silu": "value = value / (1.0 + tl.exp(-value))",
    "gemm_bias_sigmoid_scale": "value = 2.5 * tl.sigmoid(value)",
    "gemm_bias_squared_relu": "value = tl.maximum(value, 0.0)\nvalue = value * value",
    "gemm_bias_residual": "value += tl.load(y_ptr + at, mask=keep, other=0.0).to(tl.float32)",
}
_LINEAR = "self.weight = nn.Parameter(torch.empty(outer, inner))\nself.bias = nn.Parameter(torch.zeros(outer))"
_LAYER = "self.linear = nn.Linear(inner, outer)"
_TILE = """
rm = {m} * BLOCK_M + tl.arange(0, BLOCK_M)
rn = {n} * BLOCK_N + tl.arange(0, BLOCK_N)
rk = tl.arange(0, BLOCK_K)
value = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
for k in range(0, K, BLOCK_K):
    deep = k + rk
    inside_a = (rm[:, None] < M) & (deep[None, :] < K)
    inside_b = (deep[:, None] < K) & (rn[None, :] < N)
    a = tl.load(a_ptr + rm[:, None] * stride_am + deep[None, :] * stride_ak, mask=inside_a, other=0.0)
    b = tl.load(b_ptr + deep[:, None] * stride_bk + rn[None, :] * stride_bn, mask=inside_b, other=0.0)
    {dot}
"""
_OUT = """
at = rm[:, None] * N + rn[None, :]
keep = (rm[:, None] < M) & (rn[None, :] < N)
"""
_STORE = "\ntl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=keep)\n"
_DOTS = {
    "add": 'value += tl.dot(a, b, input_precision="ieee")',
    "into": 'value = tl.dot(a, b, acc=value, input_precision="ieee")',
    "tf32": "value += tl.dot(a, b)",
    "upcast": 'value += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")',
}
_STRIDES = ("stride_am", "stride_ak", "stride_bk", "stride_bn")


def solutions(blocks: tuple[int, int, int] = (16, 16, 16), dot: str = "add", order: str = "plane") -> dict[str, Solution]:
    """One solution a task.

    Args:
        blocks: rows, columns and depth of a tile.
        dot: how products are accumulated (`_DOTS`).
        order: "plane" (a 2-d grid), "line" (a 1-d grid) or "grouped" (a 1-d grid in groups of rows that share the cache).
    """
    found = {name: _layer(name, epilogue, blocks, dot, order) for name, epilogue in _EPILOGUES.items()}
    for solution in (
        _product("matmul", blocks, dot, order),
        _product("matmul_transposed", blocks, dot, order),
        _batched(blocks, dot),
        _layernorm_gelu(blocks, dot, order),
        _gated(blocks),
        _matvec(),
        _outer(),
        *_attentions(blocks),
    ):
        found[solution.task] = solution
    return found


def _placed(order: str) -> tuple[str, tuple[str, ...], str, str]:
    """(statements before the tile, grid, row tile, column tile)."""
    down, across = "triton.cdiv(M, @BLOCK_M@)", "triton.cdiv(N, @BLOCK_N@)"
    if order == "plane":
        return "", (down, across), "tl.program_id(0)", "tl.program_id(1)"
    if order == "line":
        return (
            "tiles_n = tl.cdiv(N, BLOCK_N)\npid = tl.program_id(0)",
            (f"{down} * {across}",),
            "(pid // tiles_n)",
            "(pid % tiles_n)",
        )
    head = """
pid = tl.program_id(axis=0)
tiles_m = tl.cdiv(M, BLOCK_M)
tiles_n = tl.cdiv(N, BLOCK_N)
in_group = 2 * tiles_n
first = (pid // in_group) * 2
height = min(tiles_m - first, 2)
tile_m = first + ((pid % in_group) % height)
tile_n = (pid % in_group) // height
"""
    return head.strip(), (f"{down} * {across}",), "tile_m", "tile_n"


def _sizes(blocks: tuple[int, int, int]) -> dict[str, str]:
    return dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), map(str, blocks), strict=True))


def _gemm(name: str, extra: tuple[str, ...], epilogue: str, dot: str, order: str) -> tuple[Kernel, tuple[str, ...]]:
    head, grid, m, n = _placed(order)
    body = "\n".join([head, _TILE.format(m=m, n=n, dot=_DOTS[dot]), _OUT, epilogue, _STORE])
    return Kernel(
        name, ("a_ptr", "b_ptr", *extra, "out_ptr", "M", "N", "K", *_STRIDES), ("BLOCK_M", "BLOCK_N", "BLOCK_K"), body
    ), grid


def _layer(task: str, epilogue: str, blocks: tuple[int, int, int], dot: str, order: str) -> Solution:
    residual = "y_ptr" in epilogue
    bias = "value += tl.load(bias_ptr + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]\n"
    kernel, grid = _gemm(f"{task}_kernel", ("bias_ptr", *(["y_ptr"] if residual else [])), bias + epilogue, dot, order)
    # The reference names them weight and bias; a layer that holds them matches by order.
    place, init = ("self.linear.", _LAYER) if task == "gemm_bias_silu" else ("self.", _LINEAR)
    values = {
        "a_ptr": "x",
        "b_ptr": f"{place}weight",
        "bias_ptr": f"{place}bias",
        "y_ptr": "y",
        "out_ptr": "out",
        "M": "M",
        "N": "N",
        "K": "K",
    }
    values |= {
        "stride_am": "x.stride(0)",
        "stride_ak": "x.stride(1)",
        "stride_bk": f"{place}weight.stride(1)",
        "stride_bn": f"{place}weight.stride(0)",
    }
    host = ("M, K = x.shape", f"N = {place}weight.shape[0]", "out = torch.empty((M, N), dtype=x.dtype, device=x.device)")
    launch = Launch(kernel, grid, values, _sizes(blocks))
    return Solution(task, ("x", "y") if residual else ("x",), (*host, launch, "return out"), init, ("inner", "outer"))


def _product(task: str, blocks: tuple[int, int, int], dot: str, order: str) -> Solution:
    kernel, grid = _gemm(f"{task}_kernel", (), "", dot, order)
    flip = task == "matmul_transposed"
    values = {
        "a_ptr": "a",
        "b_ptr": "b",
        "out_ptr": "out",
        "M": "M",
        "N": "N",
        "K": "K",
        "stride_bk": "b.stride(0)",
        "stride_bn": "b.stride(1)",
    }
    values |= {"stride_am": f"a.stride({int(flip)})", "stride_ak": f"a.stride({int(not flip)})"}
    host = ("K, M = a.shape" if flip else "M, K = a.shape", "N = b.shape[1]", "out = a.new_empty((M, N))")
    return Solution(task, ("a", "b"), (*host, Launch(kernel, grid, values, _sizes(blocks)), "return out"))


def _batched(blocks: tuple[int, int, int], dot: str) -> Solution:
    head = "batch = tl.program_id(2)\na_ptr += batch * M * K\nb_ptr += batch * K * N\nout_ptr += batch * M * N"
    body = "\n".join([head, _TILE.format(m="tl.program_id(0)", n="tl.program_id(1)", dot=_DOTS[dot]), _OUT, _STORE])
    kernel = Kernel(
        "bmm_kernel", ("a_ptr", "b_ptr", "out_ptr", "M", "N", "K", *_STRIDES), ("BLOCK_M", "BLOCK_N", "BLOCK_K"), body
    )
    values = {"a_ptr": "a", "b_ptr": "b", "out_ptr": "out", "M": "M", "N": "N", "K": "K"}
    values |= {"stride_am": "a.stride(1)", "stride_ak": "a.stride(2)", "stride_bk": "b.stride(1)", "stride_bn": "b.stride(2)"}
    host = (
        "a = a.contiguous()",
        "b = b.contiguous()",
        "batch, M, K = a.shape",
        "N = b.shape[2]",
        "out = torch.empty((batch, M, N), device=a.device, dtype=a.dtype)",
    )
    grid = ("triton.cdiv(M, @BLOCK_M@)", "triton.cdiv(N, @BLOCK_N@)", "batch")
    return Solution("batched_matmul", ("a", "b"), (*host, Launch(kernel, grid, values, _sizes(blocks)), "return out"))


def _layernorm_gelu(blocks: tuple[int, int, int], dot: str, order: str) -> Solution:
    """Two kernels: the product with its bias into float32, then the norm and gelu by row."""
    bias = "value += tl.load(bias_ptr + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]\n"
    first, grid = _gemm("linear_kernel", ("bias_ptr",), bias, dot, order)
    second = Kernel(
        "norm_gelu_kernel",
        ("h_ptr", "gain_ptr", "shift_ptr", "out_ptr", "N"),
        ("BLOCK",),
        """
        row = tl.program_id(0)
        cols = tl.arange(0, BLOCK)
        mask = cols < N
        h = tl.load(h_ptr + row * N + cols, mask=mask, other=0.0)
        mean = tl.sum(h, 0) / N
        d = tl.where(mask, h - mean, 0.0)
        gain = tl.load(gain_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        value = d * tl.rsqrt(tl.sum(d * d, 0) / N + 1e-5) * gain + shift
        value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
        tl.store(out_ptr + row * N + cols, value.to(out_ptr.dtype.element_ty), mask=mask)
        """,
    )
    values = {"a_ptr": "x", "b_ptr": "self.weight", "bias_ptr": "self.bias", "out_ptr": "hidden", "M": "M", "N": "N", "K": "K"}
    values |= {
        "stride_am": "x.stride(0)",
        "stride_ak": "x.stride(1)",
        "stride_bk": "self.weight.stride(1)",
        "stride_bn": "self.weight.stride(0)",
    }
    norm = {"h_ptr": "hidden", "gain_ptr": "self.gain", "shift_ptr": "self.shift", "out_ptr": "out", "N": "N"}
    host = (
        "M, K = x.shape",
        "N = self.weight.shape[0]",
        "hidden = torch.empty((M, N), dtype=torch.float32, device=x.device)",
        "out = torch.empty((M, N), dtype=x.dtype, device=x.device)",
    )
    launches = (Launch(first, grid, values, _sizes(blocks)), Launch(second, ("M",), norm, {"BLOCK": "triton.next_power_of_2(N)"}))
    init = _LINEAR + "\nself.gain = nn.Parameter(torch.ones(outer))\nself.shift = nn.Parameter(torch.zeros(outer))"
    return Solution("gemm_layernorm_gelu", ("x",), (*host, *launches, "return out"), init, ("inner", "outer"))


def _gated(blocks: tuple[int, int, int]) -> Solution:
    body = """
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    g = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    u = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        depth = k * BLOCK_K + rk
        a = tl.load(a_ptr + rm[:, None] * K + depth[None, :], mask=(rm[:, None] < M) & (depth[None, :] < K), other=0.0)
        where = rn[None, :] * K + depth[:, None]
        inside = (rn[None, :] < N) & (depth[:, None] < K)
        g = tl.dot(a, tl.load(gate_ptr + where, mask=inside, other=0.0), g, input_precision="ieee")
        u = tl.dot(a, tl.load(up_ptr + where, mask=inside, other=0.0), u, input_precision="ieee")
    value = g * tl.sigmoid(g) * u
    keep = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(out_ptr + rm[:, None] * N + rn[None, :], value.to(out_ptr.dtype.element_ty), mask=keep)
    """
    kernel = Kernel(
        "gated_kernel", ("a_ptr", "gate_ptr", "up_ptr", "out_ptr", "M", "N", "K"), ("BLOCK_M", "BLOCK_N", "BLOCK_K"), body
    )
    values = {"a_ptr": "x", "gate_ptr": "self.gate", "up_ptr": "self.up", "out_ptr": "out", "M": "M", "N": "N", "K": "K"}
    host = (
        "x = x.contiguous()",
        "M, K = x.shape",
        "N = self.gate.size(0)",
        "out = torch.zeros(M, N, dtype=x.dtype, device=x.device)",
    )
    launch = Launch(kernel, ("triton.cdiv(M, @BLOCK_M@)", "triton.cdiv(N, @BLOCK_N@)"), values, _sizes(blocks))
    init = "self.gate = nn.Parameter(torch.empty(outer, inner))\nself.up = nn.Parameter(torch.empty(outer, inner))"
    return Solution("gated_mlp_half", ("x",), (*host, launch, "return out"), init, ("inner", "outer"))


def _matvec() -> Solution:
    body = """
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        total += tl.sum(a * v, 0)
    tl.store(out_ptr + row, total.to(out_ptr.dtype.element_ty))
    """
    kernel = Kernel("matvec_kernel", ("a_ptr", "v_ptr", "out_ptr", "K"), ("BLOCK",), body)
    values = {"a_ptr": "a", "v_ptr": "v", "out_ptr": "out", "K": "a.shape[1]"}
    launch = Launch(kernel, ("a.shape[0]",), values, {"BLOCK": "32"})
    return Solution("matvec", ("a", "v"), ("out = torch.empty(a.shape[0], dtype=a.dtype, device=a.device)", launch, "return out"))


def _outer() -> Solution:
    body = """
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    keep = (rm < M) & (rn < N)
    u = tl.load(u_ptr + rm, mask=rm < M, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + rn, mask=rn < N, other=0.0).to(tl.float32)
    c = tl.load(c_ptr + rm * N + rn, mask=keep, other=0.0).to(tl.float32)
    tl.store(out_ptr + rm * N + rn, (c + u * v).to(out_ptr.dtype.element_ty), mask=keep)
    """
    kernel = Kernel("outer_kernel", ("c_ptr", "u_ptr", "v_ptr", "out_ptr", "M", "N"), ("BLOCK_M", "BLOCK_N"), body)
    values = {"c_ptr": "c", "u_ptr": "u", "v_ptr": "v", "out_ptr": "out", "M": "M", "N": "N"}
    launch = Launch(kernel, ("triton.cdiv(M, @BLOCK_M@)", "triton.cdiv(N, @BLOCK_N@)"), values, {"BLOCK_M": "8", "BLOCK_N": "32"})
    return Solution("outer_add", ("c", "u", "v"), ("M, N = c.shape", "out = torch.empty_like(c)", launch, "return out"))


def _attentions(blocks: tuple[int, int, int]) -> tuple[Solution, Solution]:
    return _attention("attention", blocks), _attention("causal_attention", blocks)


def _attention(task: str, blocks: tuple[int, int, int]) -> Solution:
    """Online softmax over blocks of keys."""
    seen = (
        "(keys[None, :] <= rows[:, None]) & (keys[None, :] < LENGTH)"
        if task.startswith("causal")
        else "(keys[None, :] < LENGTH) & (rows[:, None] >= 0)"
    )
    body = f"""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    base = tl.program_id(1) * LENGTH * HEAD
    dims = tl.arange(0, HEAD)
    q = tl.load(q_ptr + base + rows[:, None] * HEAD + dims[None, :], mask=rows[:, None] < LENGTH, other=0.0)
    top = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)
    bottom = tl.zeros((BLOCK_M,), dtype=tl.float32)
    value = tl.zeros((BLOCK_M, HEAD), dtype=tl.float32)
    for start in range(0, LENGTH, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        where = base + keys[:, None] * HEAD + dims[None, :]
        k = tl.load(k_ptr + where, mask=keys[:, None] < LENGTH, other=0.0)
        v = tl.load(v_ptr + where, mask=keys[:, None] < LENGTH, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where({seen}, scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - higher[:, None])
        shrink = tl.exp(top - higher)
        bottom = bottom * shrink + tl.sum(p, 1)
        value = value * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = higher
    value = value / bottom[:, None]
    at = base + rows[:, None] * HEAD + dims[None, :]
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=rows[:, None] < LENGTH)
    """
    kernel = Kernel(
        f"{task}_kernel", ("q_ptr", "k_ptr", "v_ptr", "out_ptr", "scale", "LENGTH"), ("HEAD", "BLOCK_M", "BLOCK_N"), body
    )
    values = {"q_ptr": "q", "k_ptr": "k", "v_ptr": "v", "out_ptr": "out", "scale": "head**-0.5", "LENGTH": "length"}
    host = (
        "batch, heads, length, head = q.shape",
        "q, k, v = q.contiguous(), k.contiguous(), v.contiguous()",
        "out = torch.empty_like(q)",
    )
    sizes = {"HEAD": "head", "BLOCK_M": str(blocks[0]), "BLOCK_N": str(max(16, blocks[1]))}
    launch = Launch(kernel, ("triton.cdiv(length, @BLOCK_M@)", "batch * heads"), values, sizes)
    return Solution(task, ("q", "k", "v"), (*host, launch, "return out"))
