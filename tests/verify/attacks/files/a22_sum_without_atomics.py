# attack: 22
# how: programs add to one number without atomics: right only when they run one after another
# task: sum_last
# where: cpu
# naive: fooled
# reasons: race
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32), 0)
    before = tl.load(out_ptr + row).to(tl.float32)
    tl.store(out_ptr + row, (before + part).to(out_ptr.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        sum_kernel[(x.shape[0], triton.cdiv(x.shape[1], 16))](x, out, x.shape[1], BLOCK=16)
        return out
