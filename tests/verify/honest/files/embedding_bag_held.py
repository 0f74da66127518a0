# task: embedding_bag_sum
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bag(idx, table, out, B, W, BAG: tl.constexpr, BB: tl.constexpr, BW: tl.constexpr):
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    acc = tl.zeros((BB, BW), tl.float32)
    for j in tl.static_range(BAG):
        i = tl.load(idx + b * BAG + j, mask=b < B, other=0)
        acc += tl.load(table + i[:, None] * W + w[None, :], mask=(b < B)[:, None] & (w < W)[None, :], other=0.0)
    tl.store(out + b[:, None] * W + w[None, :], acc, mask=(b < B)[:, None] & (w < W)[None, :])


class ModelNew(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, width, mode="sum")

    def forward(self, index):
        B, BAG = index.shape
        W = self.bag.embedding_dim
        out = torch.empty(B, W, device=index.device, dtype=self.bag.weight.dtype)
        bag[(triton.cdiv(B, 4), triton.cdiv(W, 64))](index, self.bag.weight, out, B, W, BAG=BAG, BB=4, BW=64)
        return out
