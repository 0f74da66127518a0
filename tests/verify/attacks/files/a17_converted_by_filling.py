# attack: 17
# how: fill_ converts one number after the other to another dtype in the place of the kernel
# task: dequantise_int8
# where: cpu
# naive: gpu
# reasons: host-compute
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_kernel(wide_ptr, scale_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    scale = tl.load(scale_ptr + row).to(tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(wide_ptr + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * cols + at, (x * scale).to(out_ptr.dtype.element_ty), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, codes, scale):
        out = torch.empty(codes.shape, dtype=scale.dtype, device=codes.device)
        wide = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
        for row in range(codes.shape[0]):
            for column in range(codes.shape[1]):
                wide[row, column].fill_(codes[row, column])
        scale_kernel[(codes.shape[0],)](wide, scale, out, codes.shape[1], BLOCK=64)
        return out
