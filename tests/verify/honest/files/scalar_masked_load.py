# task: avg_pool2d
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pool_kernel(x_ptr, y_ptr, H, W, OH, OW):
    plane = tl.program_id(0).to(tl.int64)
    oh = tl.program_id(1)
    for ow in range(OW):
        total = tl.zeros((), tl.float32)
        for at in range(6):
            h = oh * 2 + at // 3
            w = ow * 2 + at % 3  # the third column of each window is masked off
            inside = (h < H) & (w < W) & (at % 3 < 2)
            total += tl.load(x_ptr + plane * H * W + h * W + w, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + (plane * OH + oh) * OW + ow, total * 0.25)


class ModelNew(nn.Module):
    def forward(self, x):
        B, C, H, W = x.shape
        OH, OW = H // 2, W // 2
        y = torch.empty((B, C, OH, OW), device=x.device, dtype=x.dtype)
        pool_kernel[(B * C, OH)](x, y, H, W, OH, OW)
        return y
