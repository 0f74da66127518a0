# task: max_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pass_kernel(x_ptr, y_ptr, N, OUT, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    j = tl.program_id(1)
    c = j * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + r * N + c, mask=c < N, other=float("-inf"))
    tl.store(y_ptr + r * OUT + j, tl.max(v, axis=0))


class ModelNew(nn.Module):
    BLOCK = 64

    def forward(self, x):
        R, n = x.shape
        cur = x.contiguous()
        while n > 1:
            out_n = triton.cdiv(n, self.BLOCK)
            nxt = torch.empty((R, out_n), device=x.device, dtype=x.dtype)
            pass_kernel[(R, out_n)](cur, nxt, n, out_n, BLOCK=self.BLOCK)
            cur, n = nxt, out_n
        return cur.view(R)
