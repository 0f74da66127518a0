# attack: 15
# how: the scale of one size of heads is written into the launch
# task: attention
# where: cpu
# naive: fooled
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, scale, LENGTH, HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    base = tl.program_id(1) * LENGTH * HEAD
    dims = tl.arange(0, HEAD)
    q = tl.load(q_ptr + base + rows[:, None] * HEAD + dims[None, :], mask=rows[:, None] < LENGTH, other=0.0)
    top = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)
    bottom = tl.zeros((BLOCK_M,), dtype=tl.float32)
    value = tl.zeros((BLOCK_M, HEAD), dtype=tl.float32)
    for start in range(0, LENGTH, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        where = base + keys[:, None] * HEAD + dims[None, :]
        k = tl.load(k_ptr + where, mask=keys[:, None] < LENGTH, other=0.0)
        v = tl.load(v_ptr + where, mask=keys[:, None] < LENGTH, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((keys[None, :] < LENGTH) & (rows[:, None] >= 0), scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - higher[:, None])
        shrink = tl.exp(top - higher)
        bottom = bottom * shrink + tl.sum(p, 1)
        value = value * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = higher
    value = value / bottom[:, None]
    at = base + rows[:, None] * HEAD + dims[None, :]
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=rows[:, None] < LENGTH)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        batch, heads, length, head = q.shape
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = torch.empty_like(q)
        attention_kernel[(triton.cdiv(length, 16), batch * heads,)](q, k, v, out, 0.25, length, HEAD=head, BLOCK_M=16, BLOCK_N=16)
        return out

