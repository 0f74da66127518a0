"""Everything one training process holds, built from a run folder."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from windtunnel.data import BatchLoader, PreparedData, ValidationBatches, prepare
from windtunnel.evaluate import Validation, validation_loss
from windtunnel.model import GPT, HyperParameters, build_model, derive, deterministic, recipe_shape
from windtunnel.recipe import Recipe, UserError
from windtunnel.run import Checkpoint

from .optimizer import MuonAdamW
from .ranks import Ranks
from .staging import Staging, restore
from .step import StepParts
from .supervised import step_function

COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class Layout:
    """How the run's plan spreads the work; see `windtunnel.plan`."""

    ranks: int
    micro_batch: int
    accumulation: int
    precision: str
    compile: bool
    device: str
    sequence: int
    recompute: str = "none"  # of a recursive model's activations: or 'step', or 'block'
    recorded: bool = False  # a recursive model's passes as CUDA graphs

    @classmethod
    def of_plan(cls, layout: Mapping[str, Any]) -> Layout:
        """The part of a plan's layout that training needs; what older plans do not name has its default."""
        return cls(**{key: layout[key] for key in cls.__dataclass_fields__ if key in layout})

    @property
    def batch_sequences(self) -> int:
        """Sequences a step, all ranks."""
        return self.ranks * self.micro_batch * self.accumulation

    @property
    def batch_tokens(self) -> int:
        """Tokens a step, all ranks."""
        return self.batch_sequences * self.sequence


def build(recipe: Recipe, layout: Layout, ranks: Ranks, vocab: int) -> tuple[HyperParameters, GPT, MuonAdamW]:
    """Learning rates, model and optimizer on this rank's device, compiled as the layout says; depth must be a number."""
    if ranks.device.type == "cuda":
        deterministic(recipe.pretrain.deterministic)
    torch.set_float32_matmul_precision("highest" if layout.precision == "fp32" else "high")
    rates = derive(recipe, vocab)
    shape = recipe_shape(recipe, vocab)
    model = build_model(
        shape, device=ranks.device, compute=COMPUTE[layout.precision], seed=recipe.seed, recompute=layout.recompute
    )
    if layout.precision == "fp8":
        from windtunnel.model import enable_fp8  # its kernels need a GPU's packages

        enable_fp8(model)
    optimizer = MuonAdamW(
        model, rates, rank=ranks.rank, world=ranks.world, compiled=layout.compile,
        clip=recipe.pretrain.optimizer.clip, ema=recipe.trm.ema if recipe.trm else None,
    )  # fmt: skip
    if layout.compile:
        model.compile()
    return rates, model, optimizer


class Job:
    """Model, optimizer, data and host buffers of one rank."""

    def __init__(self, recipe: Recipe, layout: Layout, ranks: Ranks) -> None:
        assert recipe.gpt.depth != "auto"
        if ranks.world != layout.ranks:
            raise UserError(
                f"the run is planned for {layout.ranks} ranks and was started with {ranks.world}",
                "start it with: windtunnel train",
            )
        self.recipe, self.layout, self.ranks = recipe, layout, ranks
        # One rank prepares; the others find it done.
        if not ranks.first:
            ranks.barrier()
        self.data: PreparedData = prepare(recipe)
        if ranks.first:
            ranks.barrier()
        self.rates, self.model, self.optimizer = build(recipe, layout, ranks, self.data.tokenizer.vocab)
        self.staging = Staging(self.model, self.optimizer, weights=ranks.first)
        self.loader = BatchLoader(
            self.data.train, sequence=layout.sequence, micro_batch=layout.micro_batch, accumulation=layout.accumulation,
            rank=ranks.rank, world=ranks.world, seed=recipe.seed, device=ranks.device,
        )  # fmt: skip
        self.parts = StepParts(self.model, self.optimizer, self.loader, ranks, self.staging, layout.batch_tokens)
        self.run_step = step_function(recipe, recorded=layout.recorded)
        self._token_bytes = torch.as_tensor(self.data.tokenizer.token_bytes())
        gc.collect()
        gc.freeze()  # the collector need not look at long-lived objects again and stall a step

    def load(self, checkpoint: Checkpoint, *, position: int | None = None) -> None:
        """Go to a checkpoint; `position`: go on with the data from there instead."""
        restore(self.model, self.optimizer, checkpoint, checkpoint.state)
        self.loader.seek(checkpoint.state["position"] if position is None else position)

    def start_over(self, position: int) -> None:
        """Initial weights and empty states, as at step 0, but with the data from `position` on."""
        self.model.initialise(self.recipe.seed)
        self.optimizer.start_over()
        self.loader.seek(position)

    def validate(self) -> Validation:
        """Loss on the first tokens of the validation split, reduced over ranks; of the averaged weights, where these are kept."""
        batches = ValidationBatches(
            self.data.validation, sequence=self.layout.sequence, micro_batch=self.layout.micro_batch, rank=self.ranks.rank,
            world=self.ranks.world, limit=self.recipe.pretrain.validation_tokens, device=self.ranks.device,
        )  # fmt: skip
        with self.optimizer.averaged():
            return validation_loss(self.model, batches, self._token_bytes, self.ranks.device)

    def close(self) -> None:
        """End the loader's thread."""
        self.loader.close()
