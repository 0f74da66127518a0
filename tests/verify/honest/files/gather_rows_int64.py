# task: embedding
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gather_rows(index, table, out, count, width, BR: tl.constexpr, BW: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    i = tl.load(index + r, mask=r < count, other=0)
    m = (r < count)[:, None] & (w < width)[None, :]
    v = tl.load(table + i[:, None] * width + w[None, :], mask=m, other=0.0, eviction_policy="evict_last")
    tl.store(out + r[:, None] * width + w[None, :], v, mask=m)


class ModelNew(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.emb = nn.Embedding(vocab, width, padding_idx=None)

    def forward(self, index):
        flat = index.reshape(-1)
        out = torch.empty((flat.numel(), self.emb.embedding_dim), dtype=self.emb.weight.dtype, device=index.device)
        grid = (triton.cdiv(flat.numel(), 8), triton.cdiv(self.emb.embedding_dim, 256))
        gather_rows[grid](flat, self.emb.weight, out, flat.numel(), self.emb.embedding_dim, BR=8, BW=256)
        return out.view(*index.shape, -1)
