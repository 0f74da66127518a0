"""ReLU whose own inputs are all positive, so that a copy looks right."""

import torch
import torch.nn as nn

ROWS = 4096
COLS = 4096
TASK = {
    "family": "activation",
    "sizes": {
        "tiny": {"ROWS": 8, "COLS": 64},
        "tiny_ragged": {"ROWS": 5, "COLS": 37},
        "full": {},
        "full_ragged": {"ROWS": 4093, "COLS": 3001},
    },
}


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
