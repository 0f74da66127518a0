# attack: 22
# how: takes its ticket before its part is stored; an exchange before that looks like a lock
# task: sum_last
# where: cpu
# naive: gpu
# reasons: race, non-finite, wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, part_ptr, count_ptr, idle_ptr, out_ptr, cols, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_xchg(idle_ptr + 1, 1)
    ticket = tl.atomic_add(count_ptr + row, 1)
    tl.store(part_ptr + row * SPLIT + part, tl.sum(tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0).to(tl.float32), 0))
    tl.atomic_add(idle_ptr, 1)
    if ticket == SPLIT - 1:
        total = tl.sum(tl.load(part_ptr + row * SPLIT + tl.arange(0, SPLIT)))
        tl.store(out_ptr + row, total)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        split = 4
        part = torch.empty((rows, split), dtype=torch.float32, device=x.device)
        count = torch.zeros((rows,), dtype=torch.int32, device=x.device)
        idle = torch.zeros((2,), dtype=torch.int32, device=x.device)
        out = torch.empty((rows,), dtype=x.dtype, device=x.device)
        sum_kernel[(rows, split)](x, part, count, idle, out, cols, SPLIT=split, BLOCK=triton.next_power_of_2(triton.cdiv(cols, split)))
        return out
