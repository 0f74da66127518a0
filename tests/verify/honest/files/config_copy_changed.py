# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl
CONFIGS = {
    torch.float32: {"BLOCK_SIZE": 256, "num_warps": 4},
    torch.float16: {"BLOCK_SIZE": 512, "num_warps": 4},
    torch.bfloat16: {"BLOCK_SIZE": 512, "num_warps": 4},
}


@triton.jit
def relu_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)

class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        meta = CONFIGS[x.dtype].copy()
        if n < 1024:
            meta["BLOCK_SIZE"] = 128
            meta["num_warps"] = 1
        y = torch.empty_like(x)
        grid = lambda META: (triton.cdiv(n, META["BLOCK_SIZE"]),)
        relu_kernel[grid](x, y, n, **meta)
        return y
