"""The stages of a recipe: what each kind does, how long, from which weights, and what must hold before the next.

`Recipe.stages` maps a stage's name to the stage, in the order in which they run. A stage's name may be that of its
kind, which `kind` then need not repeat: `stages: {pretrain: {batch_tokens: 1M}}`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from .evaluation import Answers, Backtest, EvaluationGates
from .rl import GRPO
from .section import Count, Every, Interval, Section, either
from .stage_base import Attention, Schedule, Stage, TrainingStage


class Prepare(Stage):
    """Read, split and tokenize the data, and check it, before any GPU is used."""

    kind: Literal["prepare"] = "prepare"


class Optimizer(Section):
    """Muon for matrices, AdamW for the rest. null: derived from depth and batch (`windtunnel.model.rules`)."""

    matrix_lr: float | None = Field(None, gt=0, description="Muon learning rate of the matrices")
    embedding_lr: float | None = Field(None, gt=0, description="AdamW learning rate of token and value embeddings")
    unembedding_lr: float | None = Field(None, gt=0, description="of the head")
    scalar_lr: float | None = Field(None, gt=0, description="of per-layer scalars")
    weight_decay: float | None = Field(None, ge=0, description="of the matrices at the start; falls to zero on a cosine")
    momentum: float = Field(0.95, gt=0, lt=1, description="Muon's momentum after its warm-up")
    clip: float | None = Field(None, gt=0, description="gradients are scaled down to this norm; null: never")


class Pretrain(TrainingStage):
    """Train on the corpus, every token a target."""

    kind: Literal["pretrain"] = "pretrain"
    batch_tokens: Count | None = Field(None, ge=1, description="tokens per optimizer step over all ranks; null: derived")
    micro_batch: int | None = Field(None, ge=1, description="sequences per rank per forward pass; null: the plan's")
    tokens_per_parameter: float = Field(
        12.0, gt=0, description="length of the run when the budget names none (scaling parameters)"
    )
    precision: Literal["auto", "fp32", "bf16", "fp8"] = Field("auto", description="auto: bf16 on GPUs that have it, else fp32")
    deterministic: bool = Field(
        True,
        description="the same losses bit for bit on the same GPUs; false: faster attention where FlashAttention-4 is missing",
    )
    compile: bool | Literal["auto"] = Field("auto", description="on CPUs torch.compile, on GPUs fused updates; auto: on GPUs")
    graphs: bool | Literal["auto"] = Field(
        "auto",
        description="record passes as CUDA graphs, so that the GPU never waits for the host to launch them; auto: those of "
        "recursive models and of narrow ones (at most 512 channels), on GPUs where their memory fits",
    )
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    validate_every: Interval = Field(Every(steps=250), description="between two scorings of the held-out data")
    validation_tokens: Count = Field(10_485_760, ge=1, description="most tokens of the validation split scored each time")


class FineTune(TrainingStage):
    """Train a Hugging Face model on packed sequences: all weights, or the adapter's."""

    kind: Literal["sft"] = "sft"
    batch_tokens: Count = Field(131_072, ge=1, description="tokens per optimizer step over all ranks")
    micro_batch: int | None = Field(None, ge=1, description="sequences per rank per forward pass; null: the plan's")
    precision: Literal["auto", "bf16", "fp8"] = Field(
        "auto", description="of matrix products; auto: bf16, on a CPU fp32; fp8 is only planned"
    )
    compile: bool = Field(True, description="torch.compile of each block")
    graphs: bool | Literal["auto"] = Field(
        "auto",
        description="record passes as CUDA graphs, so that the GPU never waits for the host to launch them, on ranks that hold "
        "all weights; auto: those of models with small layers, where the host would bound the step",
    )
    attention: Attention = Field(
        "auto",
        description="kernel for packed documents: FlashAttention-4 (Hopper, Blackwell), PyTorch's FlashAttention-2, "
        "FlexAttention, one document after the other (CPU), a mask of all positions; auto: the fastest that is there",
    )
    deterministic: bool = Field(True, description="the same losses bit for bit on the same GPUs; false: faster attention")
    states: Literal["fp32", "bf16", "int8"] = Field("fp32", description="precision of AdamW's two moments")
    master: bool = Field(True, description="fp32 master weights; false: bf16 weights are updated in place")
    learning_rate: float | None = Field(None, gt=0, description="null: 1e-5 for all weights, 2e-4 for an adapter")
    schedule: Schedule = Schedule(warmup_steps=10, warmdown=1.0, final=0.1)
    validate_every: Interval = Field(Every(steps=100), description="between two scorings of the held-out data")
    validation_tokens: Count = Field(1_048_576, ge=1, description="most tokens of the validation split scored each time")
    answers: Answers | None = Field(None, description="held-out conversations answered and judged; null: the loss alone decides")


class Evaluate(Stage):
    """What the best checkpoint is measured on."""

    kind: Literal["evaluate"] = "evaluate"
    bits_per_byte_tokens: Count = Field(10_485_760, ge=1, description="most tokens of held-out text scored")
    exact_match_problems: int = Field(500, ge=0, description="held-out sums or questions answered greedily, or puzzles solved")
    samples: int = Field(4, ge=0, description="texts to generate and print")
    sample_tokens: int = Field(64, ge=1, description="most tokens of each")
    prompts: list[str] = Field(
        default_factory=list, description="prompts for the samples; empty: beginnings of held-out documents"
    )
    backtest: Backtest | None = Field(None, description="predicted actions traded on daily prices (`windtunnel backtest`)")
    gates: EvaluationGates | None = None


AnyStage: TypeAlias = Annotated[Prepare | Pretrain | FineTune | GRPO | Evaluate, Field(discriminator="kind")]
# The order in which kinds are named in messages: that in which a job runs.
KINDS: dict[str, type[Stage]] = {"prepare": Prepare, "pretrain": Pretrain, "sft": FineTune, "rl": GRPO, "evaluate": Evaluate}
TRAINING = ("pretrain", "sft", "rl")


def kind_of(name: str, section: Any) -> str | None:
    """Return the kind of a stage as a recipe file has it: its `kind`, or its name; None where neither is one."""
    kind = section.get("kind", name) if isinstance(section, dict) else getattr(section, "kind", name)
    return kind if isinstance(kind, str) and kind in KINDS else None


def names_of_kind(stages: dict[str, Any], kind: str) -> list[str]:
    """Return the names of the stages of a kind, in order."""
    return [name for name, section in stages.items() if section is not None and kind_of(name, section) == kind]


def spread_kinds(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Return `top` with each kind's name replaced by the names of all the stages in `base` that are of that kind.

    So `stages.pretrain.micro_batch` reaches every pretraining stage of a recipe that names them otherwise.
    """
    spread: dict[str, Any] = {}
    for name, section in top.items():
        others = names_of_kind(base, name) if name in KINDS and name not in base else []
        # A section with another kind than its name is a new stage that happens to be named after a kind.
        given = isinstance(section, dict) and section.get("kind", name) == name
        for each in others if others and given else [name]:
            spread[each] = section
    return spread


def complete(stages: Any, *, gpt: bool) -> Any:
    """Return the stages as written with names and kinds put in, and a pretraining stage where a GPT has none that trains.

    What is no mapping of sections comes back as it is: validation says what is wrong with it.

    Raises:
        ValueError: a stage's name or kind is none; says which are.
    """
    if not isinstance(stages, dict):
        return stages
    found: dict[str, Any] = {}
    for name, section in stages.items():
        # `stages.NAME: null` takes a stage out of the recipe that a file extends.
        if section is None:
            continue
        if isinstance(section, Stage):
            found[name] = section if section.name == name else section.model_copy(update={"name": name})
        elif isinstance(section, dict):
            if "kind" not in section and name not in KINDS:
                raise ValueError(f"stages.{name}.kind: missing; expected {either(KINDS)}")
            found[name] = {**section, "kind": section.get("kind", name), "name": name}
        else:
            found[name] = section
    # A GPT's recipe may say nothing of stages at all: what else would be done with one is to pretrain it. Of a Hugging Face
    # model it is not clear what is wanted, which `consistent` then asks.
    if gpt and not any(kind_of(name, section) in TRAINING for name, section in found.items()):
        found = {"pretrain": {"kind": "pretrain", "name": "pretrain"}, **found}
    return found
