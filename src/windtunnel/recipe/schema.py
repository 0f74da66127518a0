"""The recipe: what to train. Importable without torch; every field says what it means.

A recipe is strict: unknown keys and impossible values are refused. None or 'auto' means derived,
and every derived value is printed with the rule it came from (see `windtunnel.model.rules`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from .consistent import phases_problem, puzzle_problem, recursion_problem
from .data import ARITHMETIC_ALPHABET, Data
from .errors import UserError
from .finetuning import GRPO, FineTune, HuggingFaceModel, LayoutChoice
from .phases import Phase
from .recursion import Recursion
from .section import Section
from .units import Count, Dollars, Every, Hours, Interval


class GPTModel(Section):
    """A GPT whose size is one dial: dim = aspect * depth, heads = dim / head_dim."""

    kind: Literal["gpt"] = "gpt"
    depth: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto", description="layers; 'auto' is the deepest that fits the rig and reaches its tokens within the budget"
    )
    aspect: int = Field(64, ge=1, description="model width per layer of depth: dim = aspect * depth, rounded up to whole heads")
    head_dim: int = Field(128, ge=2, multiple_of=2, description="channels per attention head")
    kv_heads: int | None = Field(None, ge=1, description="key/value heads (GQA); null: as many as query heads")
    mlp: Literal["relu2", "swiglu"] = "relu2"
    mlp_ratio: float | None = Field(
        None, gt=0, description="width of the MLP / dim; null: 4, for swiglu 8/3 (up to a multiple of 128)"
    )
    qk_gain: float = Field(1.2, gt=0, description="normed queries and keys are scaled by this, each")
    sequence: int = Field(2048, ge=8, description="tokens per training sequence")
    vocab_pad: int = Field(32, ge=1, description="the vocabulary is padded up to a multiple of this")
    value_embeddings: bool = Field(True, description="token embeddings added to the values of every other layer (ResFormer)")
    window: str = Field(
        "L", pattern="^[SL]+$", description="attention per layer, tiled: L full, S a quarter of the sequence; the last layer is L"
    )
    softcap: float = Field(15.0, gt=0, description="logits are squashed into (-softcap, softcap) by tanh")
    rope_base: float = Field(100_000.0, gt=1)
    causal: bool = Field(True, description="false: every position sees all others, for puzzles instead of text")


class Optimizer(Section):
    """Muon for matrices, AdamW for the rest. null: derived from depth and batch (`windtunnel.model.rules`)."""

    matrix_lr: float | None = Field(None, gt=0, description="Muon learning rate of the matrices")
    embedding_lr: float | None = Field(None, gt=0)
    unembedding_lr: float | None = Field(None, gt=0)
    scalar_lr: float | None = Field(None, gt=0)
    weight_decay: float | None = Field(None, ge=0, description="of the matrices at the start; falls to zero on a cosine")
    momentum: float = Field(0.95, gt=0, lt=1, description="Muon's momentum after its warm-up")
    clip: float | None = Field(None, gt=0, description="gradients are scaled down to this norm; null: never")


class Schedule(Section):
    """The learning rate over the run's progress: linear warm-up, constant, linear warm-down."""

    warmup_steps: int = Field(40, ge=0)
    warmdown: float = Field(0.65, ge=0, le=1, description="share of the run spent warming down")
    final: float = Field(0.05, ge=0, le=1, description="learning rate at the end, as a share of the peak")


class Pretrain(Section):
    """Train from random weights on the corpus."""

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
    compile: bool | Literal["auto"] = Field("auto", description="torch.compile; auto: on GPUs")
    graphs: bool | Literal["auto"] = Field(
        "auto",
        description="record a recursive model's passes as CUDA graphs, so that the GPU never waits for the host to launch "
        "them; auto: on GPUs where their memory fits",
    )
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    validate_every: Interval = Every(steps=250)
    validation_tokens: Count = Field(10_485_760, ge=1, description="most tokens of the validation split scored each time")


class Evaluate(Section):
    """What the best checkpoint is measured on."""

    bits_per_byte_tokens: Count = Field(10_485_760, ge=1)
    exact_match_problems: int = Field(500, ge=0, description="held-out sums answered greedily, or puzzles solved")
    samples: int = Field(4, ge=0)
    sample_tokens: int = Field(64, ge=1)
    prompts: list[str] = Field(
        default_factory=list, description="prompts for the samples; empty: beginnings of held-out documents"
    )


class Stages(Section):
    """The recipe's stages, run in this order; a Hugging Face model has `sft` or `rl` in the place of `pretrain`."""

    pretrain: Pretrain = Pretrain()
    sft: FineTune | None = None
    rl: GRPO | None = None
    evaluate: Evaluate = Evaluate()


class Budget(Section):
    """The run ends at whichever limit comes first. All null: tokens_per_parameter decides."""

    dollars: Dollars | None = Field(None, gt=0)
    hours: Hours | None = Field(None, gt=0)
    tokens: Count | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0)
    steps: int | None = Field(None, ge=1)


class Checkpoints(Section):
    """When a checkpoint is saved and which are kept."""

    every: Interval = Every(seconds=600.0)
    keep_last: int = Field(2, ge=1)
    keep_best: int = Field(2, ge=0, description="by validation loss")
    keep_hourly: bool = Field(True, description="also keep one an hour, weights only")


class Bands(Section):
    """Limits of the health metrics. See `windtunnel.run.bands` for advice and actions."""

    gradient_norm_warn: float = Field(5.0, gt=0, description="times its running median")
    spike_sigma: float = Field(6.0, gt=0, description="loss above the running mean by this many deviations is a spike")
    spike_limit: int = Field(3, ge=1, description="spikes in a row after which the run goes back to the last good checkpoint")
    skip_batches: int = Field(20, ge=1, description="batches skipped after going back")
    rewinds: int = Field(2, ge=0, description="most times a run goes back before it ends with exit code 1")
    throughput_warn: float = Field(0.85, gt=0, lt=1, description="share of the planned tokens per second")
    memory_warn: float = Field(0.98, gt=0, le=1, description="share of the GPU's memory")
    overfit_patience: int = Field(4, ge=1, description="validations without improvement, and rising, before the run stops early")
    overfit_margin: float = Field(0.01, ge=0, description="relative rise over the best that counts as rising")
    gap_warn: float = Field(0.3, gt=0, description="validation loss over training loss, relative")


class Serve(Section):
    """Limits of the server."""

    slots: int = Field(16, ge=1, description="sequences decoded together")
    queue: int = Field(64, ge=0, description="requests waiting; more are answered 429")
    max_tokens: int = Field(1024, ge=1)
    max_prompt_bytes: int = Field(1_000_000, ge=1)


def _kind_by_default(value: object) -> object:
    """A model without a kind is a gpt."""
    return {"kind": "gpt", **value} if isinstance(value, dict) else value


Model = Annotated[
    Annotated[GPTModel | HuggingFaceModel, Field(discriminator="kind")],
    BeforeValidator(_kind_by_default),
]


class Recipe(Section):
    """What to train: model, data, stages, budget, gates."""

    name: str = Field(pattern="^[a-z][a-z0-9_-]*$")
    description: str = ""
    seed: int = Field(1337, ge=0, lt=2**32)
    model: Model = GPTModel()
    trm: Recursion | None = Field(None, description="the model's blocks recurse, supervised after every supervision step")
    phases: tuple[Phase, ...] = Field((), description="runs that follow one another, each only if the gates of the last held")
    phase: str | None = Field(None, description="the phase that this recipe is of, once it is resolved")
    layout: LayoutChoice = LayoutChoice()
    data: Data
    stages: Stages = Stages()
    budget: Budget = Budget()
    checkpoints: Checkpoints = Checkpoints()
    bands: Bands = Bands()
    serve: Serve = Serve()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        corpus, tokenizer = self.data.corpus, self.data.tokenizer
        if corpus.kind == "arithmetic" and tokenizer.kind == "character" and tokenizer.alphabet != "auto":
            missing = sorted(set(ARITHMETIC_ALPHABET) - set(tokenizer.alphabet))
            if missing:
                raise ValueError(f"data.tokenizer.alphabet lacks {missing}, which the arithmetic corpus uses")
        if isinstance(self.model, GPTModel) and (self.stages.sft or self.stages.rl):
            stage = "sft" if self.stages.sft else "rl"
            raise ValueError(f"stages.{stage} needs a model of kind huggingface; this one is a gpt, which has stages.pretrain")
        if isinstance(self.model, HuggingFaceModel) and (self.stages.sft is None) == (self.stages.rl is None):
            raise ValueError("a model of kind huggingface needs either stages.sft or stages.rl")
        for problem in (recursion_problem(self), puzzle_problem(self), phases_problem(self)):
            if problem is not None:
                raise ValueError(problem)
        return self

    @field_validator("phases", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """YAML has lists, no tuples."""
        return tuple(value) if isinstance(value, list) else value

    @property
    def pretrain(self) -> Pretrain:
        """The pretraining stage."""
        return self.stages.pretrain

    @property
    def sft(self) -> FineTune | None:
        """The fine-tuning stage, if the recipe has one."""
        return self.stages.sft

    @property
    def rl(self) -> GRPO | None:
        """The reinforcement-learning stage, if the recipe has one."""
        return self.stages.rl

    @property
    def evaluation(self) -> Evaluate:
        """What the trained model is measured on."""
        return self.stages.evaluate

    def with_stages(self, **stages: Any) -> Recipe:
        """Return a copy in which the named stages are replaced; nothing is validated again."""
        return self.model_copy(update={"stages": self.stages.model_copy(update=stages)})

    @property
    def gpt(self) -> GPTModel:
        """The model, where it is a GPT of our own.

        Raises:
            UserError: it is a Hugging Face model.
        """
        if isinstance(self.model, GPTModel):
            return self.model
        raise UserError(
            f"recipe {self.name}: this needs a model of kind gpt, and model.kind is huggingface ({self.model.config})",
            "plan and measure such recipes with: windtunnel plan",
        )
