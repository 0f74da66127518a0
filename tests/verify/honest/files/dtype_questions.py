# task: root_sum_square
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def k(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(o_ptr + i, tl.sqrt(x * x + y * y + 1.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        shape = torch.broadcast_shapes(x.shape, y.shape)
        kind = torch.result_type(x, y)
        assert torch.is_floating_point(x) and kind == torch.promote_types(x.dtype, y.dtype), f"{x.dtype} and {y.dtype}"
        assert torch.finfo(kind).max > 1e4 and torch.is_tensor(y)
        o = torch.empty(shape, dtype=kind, device=x.device)
        k[(triton.cdiv(o.numel(), 256),)](x.expand(shape).contiguous(), y.expand(shape).contiguous(), o, torch.numel(o), BLOCK=256)
        return o
