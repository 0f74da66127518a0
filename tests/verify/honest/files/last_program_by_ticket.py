# task: log_count_positive
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def k(x_ptr, part_ptr, count_ptr, o_ptr, C, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    s = tl.program_id(1)
    acc = tl.zeros((BLOCK,), tl.float32)
    for c0 in range(s * BLOCK, C, SPLIT * BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        acc += tl.maximum(tl.load(x_ptr + row * C + c, mask=c < C, other=0.0).to(tl.float32), 0.0)
    tl.store(part_ptr + row * SPLIT + s, tl.sum(acc))
    ticket = tl.atomic_add(count_ptr + row, 1, sem="acq_rel")
    if ticket == SPLIT - 1:
        total = tl.sum(tl.load(part_ptr + row * SPLIT + tl.arange(0, SPLIT), volatile=True))
        tl.store(o_ptr + row, tl.log(1.0 + total))


class ModelNew(nn.Module):
    def forward(self, x):
        R, C = x.shape
        SPLIT = 4
        part = torch.empty((R, SPLIT), dtype=torch.float32, device=x.device)
        count = torch.zeros((R,), dtype=torch.int32, device=x.device)
        o = torch.empty((R,), dtype=x.dtype, device=x.device)
        k[(R, SPLIT)](x, part, count, o, C, SPLIT=SPLIT, BLOCK=128)
        return o
