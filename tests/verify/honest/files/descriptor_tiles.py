# task: transpose
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tiles_kernel(x_ptr, y_ptr, rows, cols, TILE: tl.constexpr):
    row, col = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    x_desc = tl.make_tensor_descriptor(x_ptr, shape=[rows, cols], strides=[cols, 1], block_shape=[TILE, TILE])
    y_desc = tl.make_tensor_descriptor(y_ptr, shape=[cols, rows], strides=[rows, 1], block_shape=[TILE, TILE])
    y_desc.store([col, row], tl.trans(x_desc.load([row, col])))


@triton.jit
def pointers_kernel(x_ptr, y_ptr, rows, cols, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    col = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * cols + col, mask=inside)
    tl.store(y_ptr + col * rows + row, x, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty((cols, rows), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(rows, 32), triton.cdiv(cols, 32))
        # The hardware copies tiles only where each row starts at a multiple of 16 bytes.
        aligned = rows * x.element_size() % 16 == 0 and cols * x.element_size() % 16 == 0
        if aligned:
            tiles_kernel[grid](x, y, rows, cols, TILE=32)
        else:
            pointers_kernel[grid](x, y, rows, cols, TILE=32)
        return y
