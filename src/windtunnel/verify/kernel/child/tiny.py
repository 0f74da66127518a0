"""The tiny stage in the sandboxed child: a candidate on Triton's interpreter. Imports torch and triton."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from windtunnel.verify.kernel.arrays import Buffer
from windtunnel.verify.kernel.child.work import Work, finish


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """message: source, groups (init, names, parameters, cases), seed. Returns runs with heads of outputs.

    The first thing that is wrong ends it: the reply then has 'wrong', with what ran before.
    """
    torch.set_num_threads(1)
    gc.enable()
    gc.freeze()  # what the warm worker made is not looked through again
    return finish(Work(message, buffers))
