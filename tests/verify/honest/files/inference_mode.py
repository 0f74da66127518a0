# task: embedding
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lookup(index_ptr, table_ptr, out_ptr, width, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index_ptr + i)
    tl.store(out_ptr + i * width + c, tl.load(table_ptr + row * stride + c, mask=c < width), mask=c < width)


class ModelNew(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)

    @torch.inference_mode()
    def forward(self, index):
        table = self.embedding.weight
        count, width = index.numel(), table.shape[1]
        out = torch.empty((*index.shape, width), dtype=table.dtype, device=index.device)
        lookup[(count, triton.cdiv(width, 16))](index, table, out, width, table.stride(0), BLOCK=16)
        return out
