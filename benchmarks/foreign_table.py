"""What libraries' kernels compute: for each the function, how it is called, the same in PyTorch, and inputs. None of their code.

A line of foreign_table.txt: file | function | call | reference | inputs [| dtype]. Inputs: `x:M,N` is normal, `p=prob:M,N` a
distribution over the last dimension, `l=logprob:M,N` its logarithm, `i=int(N):M` whole numbers below N, `b=bool:M` either.
Letters are the sizes of SIZES. `F` is torch.nn.functional on both sides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SIZES = {
    "B": 4, "M": 512, "N": 1024, "K": 256, "C": 64, "G": 8, "H": 8, "S": 128, "D": 64, "W": 32, "X": 24, "V": 2048, "R": 96,
}  # fmt: skip
"""Full sizes: those that come together differ, so that none stands for another."""
DRAWN = {
    "": "torch.randn({})",
    "prob": "torch.softmax(torch.randn({}), -1)",
    "logprob": "torch.log_softmax(torch.randn({}), -1)",
    "bool": "torch.rand({}) > 0.5",
}


@dataclass(frozen=True)
class Row:
    """One kernel of a library."""

    file: str
    function: str
    call: str
    reference: str
    inputs: str
    dtype: str


def rows(library: str) -> list[Row]:
    """Return the lines of a library's table."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    lines = text.partition(f"[{library}]\n")[2].partition("\n[")[0].splitlines()
    return [Row(*[part.strip() for part in [*line.split(" | "), "float32"][:6]]) for line in lines if line.strip()]


def names_of(row: Row) -> list[str]:
    """The names of a row's inputs."""
    return [part.partition(":")[0].partition("=")[0].strip() for part in row.inputs.split(";")]


def sizes_in(text: str) -> set[str]:
    """The letters of SIZES that stand by themselves in a text."""
    return set(SIZES) & set(re.findall(r"[A-Za-z_]\w*", text))


def task_of(row: Row) -> str:
    """Return the task in KernelBench's form."""
    made = []
    for part in row.inputs.split(";"):
        head, _, shape = part.strip().partition(":")
        kind = head.partition("=")[2]
        whole = kind.startswith("int(")
        made.append(f"torch.randint(0, {kind[4:-1]}, ({shape},))" if whole else DRAWN[kind].format(shape))
    used = sizes_in(" ".join([*made, row.reference]))
    numbers = "".join(f"{name} = {value}\n" for name, value in SIZES.items() if name in used)
    return (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n{numbers}\n\n"
        f"class Model(nn.Module):\n    def forward(self, {', '.join(names_of(row))}):\n        return {row.reference}\n\n\n"
        f"def get_inputs():\n    return [{', '.join(made)}]\n\n\ndef get_init_inputs():\n    return []\n"
    )
