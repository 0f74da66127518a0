# attack: 26
# how: the kernel writes into the module's bias
# task: bias_gelu
# where: cpu
# naive: gpu
# reasons: input-changed, keeps-state, wrong-values, parameters-changed
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_kernel(x_ptr, bias_ptr, out_ptr, total, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0).to(tl.float32)
    h = x + tl.load(bias_ptr + at % cols, mask=at < total, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))).to(out_ptr.dtype.element_ty), mask=at < total)


@triton.jit
def clear_kernel(bias_ptr, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(bias_ptr + at, tl.zeros((BLOCK,), dtype=tl.float32).to(bias_ptr.dtype.element_ty), mask=at < cols)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        out = torch.empty_like(x)
        bias_kernel[(triton.cdiv(x.numel(), 128),)](x, self.bias, out, x.numel(), x.shape[1], BLOCK=128)
        clear_kernel[(1,)](self.bias, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
