"""What a trial of a Hugging Face model repeats: full-size steps of fine-tuning on random tokens."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from windtunnel.recipe import FineTune, HuggingFaceModel, Layout, Recipe, UserError

from .causal import build_causal
from .engine import COMPUTE, Mark, Moment, Pending
from .ranks import Ranks
from .trial import random_feed

# What the recipe's learning_rate stands for where it is null.
FULL_RATE, ADAPTER_RATE = 1e-5, 2e-4


class CausalSteps:
    """Steps of the fine-tuning engine.

    Args:
        spread: the plan's layout as JSON: how weights are sharded, and whether blocks are computed again.
        config: the mapping of a config.json.
        folder: for the random tokens.
    """

    def __init__(
        self, recipe: Recipe, layout: Layout, spread: dict[str, Any], ranks: Ranks, config: dict[str, Any], folder: Path
    ) -> None:
        model, stage = recipe.model, recipe.sft
        assert isinstance(model, HuggingFaceModel)
        assert stage is not None
        if layout.precision == "fp8":
            raise UserError("stages.sft.precision: fp8 is not what this engine computes in", "--set stages.sft.precision=bf16")
        torch.set_float32_matmul_precision("highest" if layout.precision == "fp32" else "high")
        self._layout, self._ranks = layout, ranks
        self._rate = learning_rate(model, stage)
        self._job = build_causal(
            config, lora=model.adapter, weights=model.weights, master=stage.master, states=stage.states,
            recompute=spread["recompute"], compile=layout.compile, shard=spread["shard"], ranks=ranks,
            sequence=layout.sequence, seed=recipe.seed, compute=COMPUTE[layout.precision],
        )  # fmt: skip
        self._loader = random_feed(layout, ranks, _vocabulary(config), folder, recipe.seed).batches
        self._done = 0
        self._since: Pending | None = None
        self.parameters, self.trained = self._job.parameters.total, self._job.parameters.trained
        gc.collect()
        gc.freeze()

    def step(self, mark: Mark | None = None) -> Pending:
        """One step. Marked, it is no part of a series: the next one is timed from its own beginning."""
        self._done += 1
        began = Moment(self._ranks.device)
        batches = (self._loader.next_batch() for _ in range(self._layout.accumulation))
        sums = self._job.step(batches, self._layout.batch_tokens, self._rate, mark)
        pending = Pending(self._done, sums, began, self._since)
        self._since = pending if mark is None else None
        return pending

    def validate(self) -> None:
        """It needs no memory beside a step's."""

    def close(self) -> None:
        """End the loader's thread and what the job holds."""
        self._loader.close()
        self._job.close()


def learning_rate(model: HuggingFaceModel, stage: FineTune) -> float:
    """The recipe's, or what null stands for."""
    if stage.learning_rate is not None:
        return stage.learning_rate
    return FULL_RATE if model.adapter is None else ADAPTER_RATE


def _vocabulary(config: dict[str, Any]) -> int:
    text = config.get("text_config") or config
    return int(text["vocab_size"])
