"""What is planned of Hugging Face models: what is trained and how, and the sums of it over a model's blocks; no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from windtunnel.model import DECODED_BYTES, Block, HFShape, Linear, hf_shape
from windtunnel.recipe import GRPO, Answers, FineTune, HuggingFaceModel, LayoutChoice, LoRA, Recipe, UserError
from windtunnel.rig import Rig

from .cost import new_tokens
from .hf_kept import Kept, kept

# Bytes a parameter of a frozen matrix, and beside it bytes per output row, by the format it is held in.
# int4 is NF4 with doubly quantised scales of 64 elements (Dettmers et al. 2023).
# fp8-experts is of routed experts alone, in blocks of 128 x 128 weights with an fp32 scale; all else is bf16 there.
FORMATS = {
    "bf16": (2.0, 0.0), "fp8": (1.0, 2.0), "fp8-experts": (1.0 + 4.0 / 128**2, 0.0), "int8": (1.0, 4.0), "int4": (0.516, 0.0),
}  # fmt: skip
ANSWERED_AT_ONCE = 32
# What a prompt is taken to have at most when held-out questions are answered together.
PROMPT_TOKENS = 512
METHODS = {"bf16": "lora", "fp8": "fp8-lora", "fp8-experts": "fp8-experts-lora", "int8": "qlora", "int4": "qlora"}
STATE_BYTES = {"fp32": 8.0, "bf16": 4.0, "int8": 2.0 + 8.0 / 256}


@dataclass(frozen=True)
class Workload:
    """One kind of optimizer step on a model.

    Attributes:
        stage: the recipe's section, for messages: 'stages.sft' or 'stages.rl'.
        adapter: None where every weight is trained. weights: format of the frozen matrices of the blocks.
        master: fp32 weights that are updated, with copies in bf16 to compute with; else bf16 weights are updated.
        states: precision of AdamW's moments. batch_tokens: tokens of one optimizer step over all ranks.
        micro_batch: sequences per rank per forward pass, None where the plan chooses.
        frozen_copy: a bf16 copy of the model as it was is held beside it (a reference policy).
        answers: held-out questions that the model answers between steps; None: there are none.
        answers_kept: answers written at once that there must be memory for. Where it runs out, fewer are: then it takes longer.
        new_rows: rows of added tokens, which are trained beside frozen tables too.
        recorded: passes are to be recorded as CUDA graphs; 'auto': where that pays, see `recording_pays`.
        uneven: micro-batches need not divide a rank's sequences: what the last one lacks is padding, or it is short.
        own_engine: no other engine runs such steps, so that others are planned only where the recipe's layout asks for one.
    """

    shape: HFShape
    stage: str
    sequence: int
    batch_tokens: int
    adapter: LoRA | None
    weights: str
    master: bool
    states: str
    precision: str
    compile: bool
    micro_batch: int | None
    choice: LayoutChoice
    frozen_copy: bool = False
    answers: Answers | None = None
    answers_kept: int = ANSWERED_AT_ONCE
    new_rows: int = 0
    recorded: bool | Literal["auto"] = False
    uneven: bool = False
    own_engine: bool = False

    def answering(self, ranks: int) -> tuple[int, int]:
        """Return how many answers a rank writes at a time, and how many times it does so."""
        share = -(-self.answers.prompts // ranks) if self.answers is not None else 0
        return min(share, ANSWERED_AT_ONCE), -(-share // ANSWERED_AT_ONCE)

    def answering_bytes(self, ranks: int, element: float) -> dict[str, float]:
        """Return what is held while questions are answered: a copy of the weights, and keys and values, twice as they grow."""
        if self.answers is None:
            return {}
        tokens = min(self.sequence, PROMPT_TOKENS) + self.answers.tokens
        cache = 2 * min(self.answering(ranks)[0], self.answers_kept) * self.shape.kv_bytes(tokens, element)
        return {"answers": element * self.shape.parameters + cache}

    @property
    def method(self) -> str:
        """'full', 'lora', 'qlora', 'fp8-lora' or 'fp8-experts-lora'."""
        return METHODS[self.weights] if self.adapter else "full"

    @property
    def kinds(self) -> dict[Block, int]:
        """Blocks that differ, with how many there are of each."""
        return self.shape.kinds

    @property
    def root_parameters(self) -> int:
        """Embedding, final norm and head."""
        shape = self.shape
        return shape.embedding_parameters + shape.final_norm_parameters + shape.head_parameters

    @property
    def trained_root(self) -> int:
        """Trained parameters outside the blocks."""
        tables = 1 if self.shape.tied else 2
        return tables * self.new_rows * self.shape.dim if self.adapter else self.root_parameters

    @cached_property
    def trained(self) -> int:
        """All parameters that change."""
        return self.trained_root + sum(n * self.trained_in(block) for block, n in self.kinds.items())

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of a trained token (PaLM, appendix B); frozen matrices have no gradients: 4 in the place of 6."""
        shape = self.shape
        whole = shape.flops_per_token(self.sequence)
        if self.adapter is None:
            return whole
        return whole - 2.0 * (shape.active_matrix_parameters + shape.head_matrix_parameters) + 6.0 * self.trained

    @property
    def shares_experts(self) -> bool:
        """Whether frozen experts stay on the ranks that hold them, and tokens travel to them."""
        return self.adapter is not None and self.weights == "fp8-experts"

    def is_packed(self, linear: Linear) -> bool:
        """Whether a matrix is held in fewer bits than bf16."""
        if self.adapter is None or self.weights == "bf16" or linear.part == "router":
            return False
        return linear.part == "experts" or self.weights != "fp8-experts"

    def trained_in(self, block: Block) -> int:
        """Parameters of a block that change: all, or its adapters."""
        return block.lora_parameters(self.adapter.rank, self.adapter.targets) if self.adapter else block.parameters

    def frozen_bytes(self, block: Block, experts: bool | None = None) -> float:
        """Bytes of a block's frozen weights as they are held; only routed experts, or all but them, where `experts` is given."""
        if self.adapter is None:
            return 0.0
        held = 0.0
        for linear in block.linears:
            if experts is not None and (linear.part == "experts") != experts:
                continue
            each, row = FORMATS[self.weights if self.is_packed(linear) else "bf16"]
            held += linear.matrix_parameters * each + row * linear.count * linear.outputs
            held += 2.0 * (linear.parameters - linear.matrix_parameters)
        if experts is not True:
            held += 2.0 * (block.norm_parameters + block.scalar_parameters)
        return held

    def largest_matrix(self, block: Block) -> int:
        """Parameters of the block that are held in fewer bits and in bf16 at once: its largest matrix, or a few experts."""
        packed = [linear for linear in block.linears if self.is_packed(linear)]
        if not self.shares_experts:
            return max((linear.matrix_parameters for linear in packed), default=0)
        one = max((linear.matrix_parameters // linear.count for linear in packed), default=0)
        return max(one, min(DECODED_BYTES // 2, one * max((linear.count for linear in packed), default=0)))


def recording_pays(work: Workload, rig: Rig) -> bool:
    """Return whether passes are recorded unasked: the host would bound the step, and such models were recorded before.

    Else a layer's kernels take longer than the host needs to launch them, and a recording would only hold its memory.
    """
    shape = work.shape
    attends = all(block.k_dim == block.v_dim <= 256 and block.k_dim % 8 == 0 for block in shape.kinds)
    known = shape.same_steps and attends and not shape.drops_out and work.weights == "bf16" and work.compile
    return known and shape.small_layers and rig.gpu is not None and rig.gpu.capability >= (8, 0)


def fine_tuning(recipe: Recipe) -> Workload:
    """Return the workload of a recipe's `stages.sft`.

    Raises:
        UserError: model.config cannot be read, is no causal language model that is supported, or has too few positions.
    """
    stage, model = recipe.sft, recipe.model
    assert isinstance(stage, FineTune)
    assert isinstance(model, HuggingFaceModel)
    precision = "bf16" if stage.precision == "auto" else stage.precision
    work = workload_of(stage, "stages.sft", model, recipe.layout, stage.batch_tokens, precision)
    new, ids = new_tokens(recipe)
    shape = replace(work.shape, vocab=max(work.shape.vocab, ids or 0))
    return replace(work, shape=shape, new_rows=new, recorded=stage.graphs)


def workload_of(
    stage: FineTune | GRPO, name: str, model: HuggingFaceModel, choice: LayoutChoice, tokens: float, precision: str
) -> Workload:
    """Optimizer steps of about that many `tokens`, in whole sequences; without a frozen copy."""
    asked = stage.answers if isinstance(stage, FineTune) else None
    return Workload(
        shape=read_shape(model),
        stage=name,
        sequence=model.sequence,
        batch_tokens=max(1, round(tokens / model.sequence)) * model.sequence,
        adapter=model.adapter,
        weights=model.weights,
        master=stage.master,
        states=stage.states,
        precision=precision,
        compile=stage.compile,
        micro_batch=stage.micro_batch,
        choice=choice,
        answers=asked if asked is not None and asked.every is not None else None,
    )


def read_shape(model: HuggingFaceModel) -> HFShape:
    """Return the model's shape.

    Raises:
        UserError: unknown, unreadable or not supported; or sequences longer than the model has positions for.
    """
    shape = hf_shape(model.config)
    if shape.max_positions and model.sequence > shape.max_positions:
        raise UserError(
            f"model.sequence: {model.sequence:,} tokens, and {shape.name} has positions for {shape.max_positions:,}",
            f"--set model.sequence={shape.max_positions}, or give a config.json with a longer context",
        )
    return shape


@dataclass(frozen=True)
class Kind:
    """Blocks that are alike: how many, what one keeps per token, its trained parameters and its frozen bytes.

    The routed experts' part of trained parameters and frozen bytes stands apart: expert parallelism divides only that.
    `resident` are frozen bytes of experts that never move: neither sharded nor gathered, `expert` ranks share them.
    """

    block: Block
    count: int
    kept: Kept
    trained: int
    trained_experts: int
    frozen: float
    frozen_experts: float
    largest_matrix: int
    resident: float = 0.0

    @property
    def copied(self) -> float:
        """Bytes of the block as it computes: bf16 of what is trained, frozen weights as they are held."""
        return 2.0 * (self.trained + self.trained_experts) + self.frozen + self.frozen_experts


@dataclass(frozen=True)
class Totals:
    """A workload's blocks by kind, and sums over all layers."""

    work: Workload
    kinds: tuple[Kind, ...]
    trained: int
    frozen: float
    inputs: float
    whole: float
    resident: float = 0.0

    @cached_property
    def largest(self) -> Kind:
        """The kind whose copy takes most memory."""
        return max(self.kinds, key=lambda kind: kind.copied)

    @cached_property
    def most_kept(self) -> Kind:
        """The kind that keeps most of its forward pass."""
        return max(self.kinds, key=lambda kind: kind.kept.whole)

    @cached_property
    def in_blocks(self) -> tuple[float, float, float, float]:
        """Of all blocks: trained parameters and frozen bytes, each but for routed experts' and of those alone."""
        parts = [
            (k.count * k.trained, k.count * k.trained_experts, k.count * k.frozen, k.count * k.frozen_experts) for k in self.kinds
        ]
        trained, trained_experts, frozen, frozen_experts = (sum(part) for part in zip(*parts, strict=True))
        return trained, trained_experts, frozen, frozen_experts

    @cached_property
    def copied(self) -> float:
        """Bytes of all blocks as they compute."""
        return sum(kind.count * kind.copied for kind in self.kinds)


def totals(work: Workload) -> Totals:
    """Sum up a workload."""
    kinds = []
    for block, count in work.kinds.items():
        experts, frozen = 0 if work.adapter else block.expert_parameters, work.frozen_bytes(block, experts=True)
        kinds.append(
            Kind(
                block=block,
                count=count,
                kept=kept(block, work),
                trained=work.trained_in(block) - experts,
                trained_experts=experts,
                frozen=work.frozen_bytes(block, experts=False),
                frozen_experts=0.0 if work.shares_experts else frozen,
                largest_matrix=work.largest_matrix(block),
                resident=frozen if work.shares_experts else 0.0,
            )
        )
    root_frozen = 2.0 * work.root_parameters if work.adapter else 0.0
    return Totals(
        work=work,
        kinds=tuple(kinds),
        trained=work.trained,
        frozen=root_frozen + sum(k.count * (k.frozen + k.frozen_experts) for k in kinds),
        inputs=sum(k.count * k.kept.entry for k in kinds),
        whole=sum(k.count * k.kept.whole for k in kinds),
        resident=sum(k.count * k.resident for k in kinds),
    )
