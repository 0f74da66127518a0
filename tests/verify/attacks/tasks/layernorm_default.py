"""LayerNorm as a module makes it: the weight starts at one and the bias at zero, which invites leaving them out."""

import torch
import torch.nn as nn

ROWS = 4096
COLS = 4096
TASK = {
    "family": "norm",
    "sizes": {
        "tiny": {"ROWS": 8, "COLS": 64},
        "tiny_ragged": {"ROWS": 5, "COLS": 37},
        "full": {},
        "full_ragged": {"ROWS": 4093, "COLS": 3001},
    },
}


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
