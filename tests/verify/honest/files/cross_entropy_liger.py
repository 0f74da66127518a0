# task: cross_entropy_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def _logsumexp(row_ptr, n_cols, BLOCK: tl.constexpr):
    m = float("-inf")
    d = 0.0
    for i in range(0, n_cols, BLOCK):
        at = i + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + at, mask=at < n_cols, other=float("-inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    return m + tl.log(d)


@triton.jit
def ce_kernel(X, stride, Y, LOSS, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(Y + row)
    lse = _logsumexp(X + row * stride, n_cols, BLOCK)
    tl.store(LOSS + row, lse - tl.load(X + row * stride + y).to(tl.float32))


def cross_entropy_forward(_input: torch.Tensor, target: torch.Tensor, ignore_index: int = -100, reduction: str = "none"):
    BT, V = _input.shape
    n_rows = BT
    BLOCK_SIZE = min(65536 // 2, triton.next_power_of_2(V))
    loss_1d = torch.zeros(n_rows, dtype=_input.dtype, device=_input.device)
    if _input.stride(-1) != 1:
        _input = _input.contiguous()
    if target.stride(-1) != 1:
        target = target.contiguous()
    ce_kernel[(n_rows,)](X=_input, stride=_input.stride(-2), Y=target, LOSS=loss_1d, n_cols=V, BLOCK=BLOCK_SIZE, num_warps=32 if BLOCK_SIZE > 16384 else 4)
    return loss_1d


class ModelNew(nn.Module):
    def forward(self, x, label):
        return cross_entropy_forward(x, label)
