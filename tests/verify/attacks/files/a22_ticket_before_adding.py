# attack: 22
# how: takes its ticket before it adds its part, so that the last one by ticket need not find all parts
# task: sum_last
# where: cpu
# naive: gpu
# reasons: wrong-values, race
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, sum_ptr, count_ptr, out_ptr, cols, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.sum(tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0).to(tl.float32), 0)
    ticket = tl.atomic_add(count_ptr + row, 1)
    tl.atomic_add(sum_ptr + row, v)
    if ticket == SPLIT - 1:
        tl.store(out_ptr + row, tl.load(sum_ptr + row))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        split = 4
        total = torch.zeros((rows,), dtype=torch.float32, device=x.device)
        count = torch.zeros((rows,), dtype=torch.int32, device=x.device)
        out = torch.empty((rows,), dtype=x.dtype, device=x.device)
        sum_kernel[(rows, split)](x, total, count, out, cols, SPLIT=split, BLOCK=triton.next_power_of_2(triton.cdiv(cols, split)))
        return out
