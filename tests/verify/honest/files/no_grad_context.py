# task: mse_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mse(x_ptr, y_ptr, out_ptr, rows, n, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.arange(0, BLOCK)
    mask = (r < rows)[:, None] & (c < n)[None, :]
    x = tl.load(x_ptr + r[:, None] * n + c[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + r[:, None] * n + c[None, :], mask=mask, other=0.0).to(tl.float32)
    d = x - y
    tl.store(out_ptr + r, tl.sum(d * d, axis=1) / n, mask=r < rows)


class ModelNew(nn.Module):
    def forward(self, x, y):
        with torch.no_grad():
            rows, n = x.shape
            out = torch.empty((rows,), dtype=x.dtype, device=x.device)
            mse[(triton.cdiv(rows, 4),)](x, y, out, rows, n, BLOCK_R=4, BLOCK=triton.next_power_of_2(n))
        return out
