# task: sigmoid
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sigmoid_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, tl.sigmoid(x).to(y_ptr.dtype.element_ty), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        launch = lambda source, target: sigmoid_kernel[(triton.cdiv(source.numel(), 64),)](source, target, source.numel(), BLOCK=64)
        gate = torch.empty_like(x)
        launch(x, gate)
        return gate
