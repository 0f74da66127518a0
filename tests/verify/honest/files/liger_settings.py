# task: rmsnorm
import torch
import torch.nn as nn
import triton
import triton.language as tl
MAX_FUSED_SIZE = 65536


@triton.jit
def _rms_kernel(X, W, Y, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(Y + row * stride + cols, x * rstd * w, mask=mask)

def calculate_settings(n: int) -> tuple[int, int]:
    block_size = triton.next_power_of_2(n)
    if block_size > MAX_FUSED_SIZE:
        raise RuntimeError(f"Cannot launch Triton kernel since n = {n} exceeds the maximum block size = {MAX_FUSED_SIZE}.")
    num_warps = 4
    if block_size >= 32768:
        num_warps = 32
    elif block_size >= 8192:
        num_warps = 16
    elif block_size >= 2048:
        num_warps = 8
    return block_size, num_warps


def rms_norm_forward(X, W, eps):
    shape = X.shape
    dim = shape[-1]
    X = X.view(-1, dim)
    n_rows, n_cols = X.shape
    BLOCK_SIZE, num_warps = calculate_settings(n_cols)
    Y = torch.empty((n_rows, n_cols), dtype=X.dtype, device=X.device)
    assert X.shape[1] == W.shape[0], "Incompatible hidden size dimension between tensor1.shape[1] and tensor2.shape[0]"
    _rms_kernel[(n_rows,)](X, W, Y, X.stride(0), n_cols, eps, BLOCK=BLOCK_SIZE, num_warps=num_warps)
    return Y.view(*shape)


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super(ModelNew, self).__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        return rms_norm_forward(hidden_states, self.weight, self.variance_epsilon)

    def extra_repr(self):
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"
