# task: swap_heads
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swap(x_ptr, out_ptr, stride_b, stride_l, stride_h, heads, length, head, BLOCK: tl.constexpr):
    b, l, h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + b * stride_b + l * stride_l + h * stride_h + i, mask=i < head)
    tl.store(out_ptr + ((b * heads + h) * length + l) * head + i, x, mask=i < head)


class ModelNew(nn.Module):
    def forward(self, x):
        batch, length, heads, head = x.shape
        out = torch.empty(batch, heads, length, head, device=x.device, dtype=x.dtype)
        s = x.stride()
        swap[batch, length, heads](x, out, s[0], s[1], s[2], heads, length, head, BLOCK=triton.next_power_of_2(head))
        return out
