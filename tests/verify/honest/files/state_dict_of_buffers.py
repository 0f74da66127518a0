# task: mean_last
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def stage_one(x_ptr, part_ptr, cols, stride, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.store(part_ptr + row * parts + part, tl.sum(x, axis=0))


@triton.jit
def stage_two(part_ptr, out_ptr, parts, cols, PARTS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, PARTS)
    p = tl.load(part_ptr + row * parts + at, mask=at < parts, other=0.0)
    tl.store(out_ptr + row, tl.sum(p, axis=0) / cols)


def allocate(x, parts):
    buffers = {}
    buffers["partial"] = torch.empty((x.shape[0], parts), device=x.device, dtype=torch.float32)
    buffers["out"] = torch.empty((x.shape[0],), device=x.device, dtype=x.dtype)
    return buffers


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        parts = triton.cdiv(cols, 256)
        buffers = allocate(x, parts)
        stage_one[(rows, parts)](x, buffers["partial"], cols, x.stride(0), parts, BLOCK=256)
        stage_two[(rows,)](buffers["partial"], buffers["out"], parts, cols, PARTS=triton.next_power_of_2(parts))
        return buffers["out"]
