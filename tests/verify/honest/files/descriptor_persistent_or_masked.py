# task: gemm_bias_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NUM_SMS: tl.constexpr, TMA: tl.constexpr):
    start = tl.program_id(0)
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    if TMA:
        x_desc = tl.make_tensor_descriptor(x_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
        w_desc = tl.make_tensor_descriptor(w_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
        y_desc = tl.make_tensor_descriptor(y_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    for tile in tl.range(start, tiles, NUM_SMS):
        om, on = (tile // tiles_n) * BM, (tile % tiles_n) * BN
        rm, rn = om + tl.arange(0, BM), on + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            if TMA:
                a = x_desc.load([om, k])
                b = w_desc.load([on, k])
            else:
                rk = k + tl.arange(0, BK)
                a = tl.load(x_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
                b = tl.load(w_ptr + rn[:, None] * K + rk[None, :], mask=(rn[:, None] < N) & (rk[None, :] < K), other=0.0)
            acc = tl.dot(a, b.T, acc)
        acc += tl.load(bias_ptr + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]
        y = tl.maximum(acc, 0.0).to(y_ptr.dtype.element_ty)
        if TMA:
            y_desc.store([om, on], y)
        else:
            tl.store(y_ptr + rm[:, None] * N + rn[None, :], y, mask=(rm[:, None] < M) & (rn[None, :] < N))


def alloc_fn(size: int, alignment: int, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        M, K = x.shape
        N = self.linear.out_features
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        triton.set_allocator(alloc_fn)
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        tma = (K * x.element_size()) % 16 == 0 and (N * x.element_size()) % 16 == 0
        grid = (min(sms, triton.cdiv(M, 64) * triton.cdiv(N, 64)),)
        kernel[grid](x, self.linear.weight, self.linear.bias, y, M, N, K, BM=64, BN=64, BK=32, NUM_SMS=grid[0], TMA=tma)
        return y
