# task: batchnorm_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bn_relu(x_ptr, y_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, C, L, eps, BLOCK: tl.constexpr):
    nc = tl.program_id(0)
    c = nc % C
    scale = tl.load(w_ptr + c).to(tl.float32) * tl.rsqrt(tl.load(var_ptr + c).to(tl.float32) + eps)
    shift = tl.load(b_ptr + c).to(tl.float32) - tl.load(mean_ptr + c).to(tl.float32) * scale
    for s in range(0, L, BLOCK):
        at = s + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + nc * L + at, mask=at < L, other=0.0).to(tl.float32)
        tl.store(y_ptr + nc * L + at, tl.maximum(x * scale + shift, 0.0), mask=at < L)


class ModelNew(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.bn = nn.BatchNorm1d(num_features)

    def forward(self, x):
        B, C, L = x.shape
        y = torch.empty_like(x)
        bn = self.bn
        bn_relu[(B * C,)](x, y, bn.running_mean, bn.running_var, bn.weight, bn.bias, C, L, bn.eps, BLOCK=128)
        return y
