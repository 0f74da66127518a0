# task: global_average_pool
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gap_kernel(x_ptr, out_ptr, HW, scale, BLOCK_HW: tl.constexpr):
    nc = tl.program_id(0)
    acc = tl.zeros((), dtype=tl.float32)
    for hw in range(0, HW, BLOCK_HW):
        o = hw + tl.arange(0, BLOCK_HW)
        acc += tl.sum(tl.load(x_ptr + nc * HW + o, mask=o < HW, other=0.0).to(tl.float32), axis=0)
    tl.store(out_ptr + nc, acc * scale)


class ModelNew(nn.Module):
    def forward(self, x):
        n, c, *spatial = x.shape
        hw = torch.Size(spatial).numel()
        out = torch.empty((n, c), device=x.device, dtype=x.dtype)
        gap_kernel[(out.numel(),)](x, out, hw, 1.0 / float(hw), BLOCK_HW=triton.next_power_of_2(min(hw, 1024)))
        return out
