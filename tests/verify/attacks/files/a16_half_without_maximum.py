# attack: 16
# how: attention that subtracts no maximum where inputs are halves
# task: attention
# where: cpu
# naive: gpu
# reasons: wrong-values, non-finite
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, scale, LENGTH, HEAD: tl.constexpr, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    row = tl.program_id(0)
    base = tl.program_id(1) * LENGTH * HEAD
    dims = tl.arange(0, HEAD)
    keys = tl.arange(0, BLOCK)
    where = base + keys[:, None] * HEAD + dims[None, :]
    q = tl.load(q_ptr + base + row * HEAD + dims).to(tl.float32)
    k = tl.load(k_ptr + where, mask=keys[:, None] < LENGTH, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + where, mask=keys[:, None] < LENGTH, other=0.0).to(tl.float32)
    scores = tl.where(keys < LENGTH, tl.sum(k * q[None, :], 1) * scale, -float("inf"))
    if SHIFT:
        scores = scores - tl.max(scores, 0)
    p = tl.exp(scores)
    value = tl.sum(p[:, None] * v, 0) / tl.sum(p, 0)
    tl.store(out_ptr + base + row * HEAD + dims, value.to(out_ptr.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        batch, heads, length, head = q.shape
        out = torch.empty_like(q)
        block = triton.next_power_of_2(length)
        shift = q.dtype != torch.float16
        attention_kernel[(length, batch * heads)](q, k, v, out, head**-0.5, length, HEAD=head, BLOCK=block, SHIFT=shift)
        return out
