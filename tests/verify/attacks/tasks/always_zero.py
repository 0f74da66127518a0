"""A reference that computes much and always answers zero: a maximum over one column, minus its own mean."""

import torch
import torch.nn as nn

M = 1024
K = 1024
TASK = {
    "family": "gemm",
    "sizes": {"tiny": {"M": 8, "K": 32}, "tiny_ragged": {"M": 5, "K": 21}, "full": {}, "full_ragged": {"M": 1001, "K": 777}},
}


class Model(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, inner))

    def forward(self, x):
        top = torch.nn.functional.linear(x, self.weight).amax(-1, keepdim=True)
        return torch.relu(top - top.mean(-1, keepdim=True))


def get_inputs():
    return [torch.randn(M, K)]


def get_init_inputs():
    return [K]
