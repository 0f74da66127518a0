# task: variance_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, part_ptr, N, CHUNK: tl.constexpr):
    row, c = tl.program_id(0), tl.program_id(1)
    o = c * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(x_ptr + row * N + o, mask=o < N, other=0.0).to(tl.float32)
    mean = tl.sum(x) / tl.minimum(CHUNK, N - c * CHUNK)
    d = tl.where(o < N, x - mean, 0.0)
    tl.store(part_ptr + (row * tl.num_programs(1) + c) * 2, mean)
    tl.store(part_ptr + (row * tl.num_programs(1) + c) * 2 + 1, tl.sum(d * d))


@triton.jit
def join_kernel(part_ptr, y_ptr, N, P, DOF, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    mean = 0.0
    m2 = 0.0
    count = 0
    for c in range(P):
        n = tl.minimum(CHUNK, N - c * CHUNK)
        d = tl.load(part_ptr + (row * P + c) * 2) - mean
        total = count + n
        mean += d * n / total
        m2 += tl.load(part_ptr + (row * P + c) * 2 + 1) + d * d * count * n / total
        count = total
    tl.store(y_ptr + row, m2 / DOF)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        f32 = dict(device=x.device, dtype=torch.float32)
        parts = triton.cdiv(cols, 1024)
        part = torch.empty((rows, parts, 2), **f32)
        y = torch.empty(rows, device=x.device, dtype=x.dtype)
        sums_kernel[(rows, parts)](x, part, cols, CHUNK=1024)
        join_kernel[(rows,)](part, y, cols, parts, cols, CHUNK=1024)
        return y
