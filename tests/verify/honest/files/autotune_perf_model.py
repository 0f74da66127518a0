# task: gemm_bias_relu
import math
import torch
import torch.nn as nn
import triton
import triton.language as tl


def get_configs_io_bound():
    configs = []
    for num_stages in [2, 3]:
        for block_m in [16, 32]:
            for block_k in [32, 64]:
                for block_n in [32, 64, 128]:
                    num_warps = 2 if block_n <= 64 else 4
                    configs.append(triton.Config({"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}, num_stages=num_stages, num_warps=num_warps))
    return configs


def estimate_matmul_time(num_warps, num_stages, x_ptr, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, **kwargs):
    """A rough model: tiles times steps, plus what is wasted at the edges."""
    tiles = triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N)
    steps = math.ceil(K / BLOCK_K)
    waste = tiles * BLOCK_M * BLOCK_N / (M * N)
    return tiles * steps * waste / num_warps


def early_config_prune(configs, named_args, **kwargs):
    element_size = named_args["x_ptr"].element_size()
    pruned = []
    for config in configs:
        kw = config.kwargs
        BLOCK_M, BLOCK_N, BLOCK_K, num_stages = kw["BLOCK_M"], kw["BLOCK_N"], kw["BLOCK_K"], config.num_stages
        required = (BLOCK_M + BLOCK_N) * BLOCK_K * num_stages * element_size
        if required <= 100_000:
            pruned.append(config)
    return pruned


@triton.autotune(
    configs=get_configs_io_bound() + [triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, num_stages=4, num_warps=4)],
    key=["M", "N", "K"],
    prune_configs_by={"early_config_prune": early_config_prune, "perf_model": estimate_matmul_time, "top_k": 10},
)
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit
def linear_relu(x_ptr, w_ptr, b_ptr, y_ptr, M, N, K, sxm, sxk, swn, swk, sym, syn,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr):
    pid_n, pid_m = tl.program_id(0), tl.program_id(1)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    X = x_ptr + (rm % M)[:, None] * sxm + rk[None, :] * sxk
    W = w_ptr + (rn % N)[None, :] * swn + rk[:, None] * swk
    for k in range(K, 0, -BLOCK_K):
        if EVEN_K:
            x = tl.load(X)
            w = tl.load(W)
        else:
            x = tl.load(X, mask=rk[None, :] < k, other=0.)
            w = tl.load(W, mask=rk[:, None] < k, other=0.)
        acc += tl.dot(x, w)
        X += BLOCK_K * sxk
        W += BLOCK_K * swk
    acc += tl.load(b_ptr + rn, mask=rn < N, other=0.).to(tl.float32)[None, :]
    acc = tl.maximum(acc, 0.)
    tl.store(y_ptr + rm[:, None] * sym + rn[None, :] * syn, acc.to(y_ptr.dtype.element_ty), mask=(rm < M)[:, None] & (rn < N)[None, :])


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, inner))
        self.bias = nn.Parameter(torch.empty(outer))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        nn.init.zeros_(self.bias)

    def forward(self, x):
        M, K = x.shape
        N = self.weight.shape[0]
        y = x.new_empty(M, N)
        grid = lambda META: (triton.cdiv(N, META["BLOCK_N"]), triton.cdiv(M, META["BLOCK_M"]))
        linear_relu[grid](x, self.weight, self.bias, y, M, N, K, *x.stride(), *self.weight.stride(), *y.stride())
        return y
