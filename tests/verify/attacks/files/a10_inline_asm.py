# attack: 10
# how: a kernel drops into PTX
# task: relu
# where: cpu
# naive: gpu
# reasons: kernel-call, reaches-into-triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def asm_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    y = tl.inline_asm_elementwise("max.f32 $0, $1, 0f00000000;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + at, y, mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        asm_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return out
