# attack: 22
# how: programs add to one number, each behind a lock of its own
# task: sum_last
# where: cpu
# naive: fooled
# reasons: race, wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32), 0)
    while tl.atomic_cas(lock_ptr + row * tl.num_programs(1) + part, 0, 1) == 1:
        pass
    before = tl.load(out_ptr + row)
    tl.store(out_ptr + row, (before + total).to(out_ptr.dtype.element_ty))
    tl.atomic_xchg(lock_ptr + row * tl.num_programs(1) + part, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.zeros(rows, dtype=x.dtype, device=x.device)
        lock = torch.zeros(rows * triton.cdiv(n, 16), dtype=torch.int32, device=x.device)
        sum_kernel[(rows, triton.cdiv(n, 16))](x, out, lock, n, BLOCK=16)
        return out
