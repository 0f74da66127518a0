"""A job's adapters by themselves, as peft's files have them: for whoever holds the frozen weights already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from windtunnel.model import holds_experts
from windtunnel.recipe import UserError

from .engine import HFJob
from .token_rows import TokenRows
from .weights import whole_tensor

PREFIX = "base_model.model."


@torch.no_grad()
def adapter_tensors(job: HFJob, dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    """Return every adapter's two matrices by their names in peft's files, whole, as copies; all ranks call it together."""
    job.reshard()
    found = {}
    for name, module in _adapted(job):
        for side in ("lora_A", "lora_B"):
            matrix = whole_tensor(getattr(module, side)["default"].weight)
            found[f"{PREFIX}{name}.{side}.weight"] = matrix.to(device, dtype, copy=True)
    return found


def adapter_settings(job: HFJob) -> dict[str, Any]:
    """Return the adapter_config.json that belongs to them.

    Raises:
        UserError: the job has no adapters, or trains more than linear layers' own: new tokens, or layers beside experts.
    """
    adapted = _adapted(job)
    model = job.network.model
    more = any(TokenRows.of(module) is not None or holds_experts(module) for module in model.modules())
    if not adapted or more:
        why = "trains rows of new tokens, or has experts" if adapted else "has no adapter"
        raise UserError(
            f"stages.rl.engine_adapter: apart is for adapters of linear layers alone, and this model {why}",
            "--set stages.rl.engine_adapter=merged",
        )
    _, first = adapted[0]
    targets = sorted({name.rsplit(".", 1)[-1] for name, _ in adapted})
    rank = first.r["default"]
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": first.scaling["default"] * rank,
        "target_modules": targets, "bias": "none", "lora_dropout": 0.0, "inference_mode": True,
    }  # fmt: skip


def _adapted(job: HFJob) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in job.network.model.named_modules() if hasattr(module, "lora_A")]
