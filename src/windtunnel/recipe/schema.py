"""The recipe: what to train. Importable without torch; every field says what it means.

A recipe is strict: unknown keys and impossible values are refused. None or 'auto' means derived,
and every derived value is printed with the rule it came from (see `windtunnel.model.rules`).
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from .consistent import puzzle_problem, records_problem, recursion_problem, stages_problem
from .corpora import ARITHMETIC_ALPHABET
from .data import Data
from .errors import UserError
from .expect import Expect
from .models import GPTModel, Model
from .recursion import Recursion
from .rl import GRPO
from .section import Every, Interval, Section
from .stage_base import NAME, Budget, Stage, TrainingStage
from .stages import AnyStage, Evaluate, FineTune, Pretrain, complete

PLACES = ("path", "config", "init_from")
"""Keys of a recipe that may name a file or folder; `files` has lists of them."""


class Checkpoints(Section):
    """When a checkpoint is saved and which are kept."""

    # By time, not steps: what a crash may cost is then the same for a step of 50 ms and one of a minute.
    every: Interval = Field(Every(seconds=600.0), description="between two saves")
    # Two, so that one is whole while the other is written, or turns out damaged.
    keep_last: int = Field(2, ge=1, description="the newest checkpoints; the last of them with optimizer states")
    keep_best: int = Field(2, ge=0, description="by validation loss")
    # To look back at a run that went wrong hours ago; without optimizer states they are cheap.
    keep_hourly: bool = Field(True, description="also keep one an hour, weights only")
    mirror: str | None = Field(
        None,
        # No @ and no ?: an address with a password in it would stand in every run's folder.
        pattern=r"^(s3|gs|az|sftp|file)://[^@?]+$",
        description="a folder in an object store that gets a copy of the run while it trains: s3://bucket/runs",
    )


class Bands(Section):
    """Limits of the health metrics. See `windtunnel.run.bands` for advice and actions."""

    # These defaults are deliberately wide: a band that cries wolf is switched off, and then misses the real one.
    gradient_norm_warn: float = Field(5.0, gt=0, description="times its running median")
    spike_sigma: float = Field(6.0, gt=0, description="loss above the running mean by this many deviations is a spike")
    spike_limit: int = Field(3, ge=1, description="spikes in a row after which the run goes back to the last good checkpoint")
    skip_batches: int = Field(20, ge=1, description="batches skipped after going back")
    rewinds: int = Field(2, ge=0, description="most times a run goes back before it ends with exit code 1")
    # Against the plan, which is itself off by some percent.
    throughput_warn: float = Field(0.85, gt=0, lt=1, description="share of the planned tokens per second")
    memory_warn: float = Field(0.98, gt=0, le=1, description="share of the GPU's memory")
    overfit_patience: int = Field(4, ge=1, description="validations without improvement, and rising, before the run stops early")
    overfit_margin: float = Field(0.01, ge=0, description="relative rise over the best that counts as rising")
    gap_warn: float = Field(0.3, gt=0, description="validation loss over training loss, relative")


class Notify(Section):
    """Whom to tell what happens to a run: a web hook, a command of yours, or both."""

    webhook: str | None = Field(
        None,
        description="an address that gets JSON by POST, as Slack, Mattermost and Discord take it; 'env:NAME': the variable NAME "
        "holds it, so that it does not stand in the run's folder",
    )
    command: str | None = Field(
        None,
        min_length=1,
        description="run by the shell for each event: its words in $WINDTUNNEL_EVENT, all of it as JSON on stdin",
    )
    on: list[Literal["bands", "gates", "end"]] = Field(
        ["bands", "gates", "end"],
        description="warnings of health bands and of the budget; gates that were judged; the end of a run, however it comes",
    )

    track: list[Literal["wandb", "mlflow", "trackio"]] = Field(
        [], description="trackers that get the metrics, warnings and the recipe, with their own variables and credentials"
    )
    project: str = Field("windtunnel", min_length=1, max_length=128, description="what trackers keep the run under")

    @field_validator("webhook")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://", "env:")):
            raise ValueError("expected an address that begins with https:// or http://, or env:NAME")
        return value


class Serve(Section):
    """Limits of the server."""

    slots: int = Field(16, ge=1, description="sequences decoded together")
    # Beyond this a client waits longer than it will; 429 tells it to come back, or to ask another server.
    queue: int = Field(64, ge=0, description="requests waiting; more are answered 429")
    max_tokens: int = Field(1024, ge=1, description="most tokens of an answer")
    max_prompt_bytes: int = Field(1_000_000, ge=1, description="longer prompts are refused")


class LayoutChoice(Section):
    """How the work is spread. null: the plan searches."""

    shard: Literal["none", "optimizer", "full"] | None = Field(
        None, description="over data-parallel ranks: nothing (DDP), optimizer states (ZeRO-1/2), weights too (FSDP2, ZeRO-3)"
    )
    tensor: int | None = Field(None, ge=1, description="ranks that share each matrix")
    expert: int | None = Field(None, ge=1, description="ranks that share the experts of a layer")
    pipeline: int | None = Field(None, ge=1, description="ranks that share the layers")
    recompute: Literal["none", "step", "block"] | None = Field(
        None,
        description="'block' keeps only the input of each block and computes the rest again; "
        "'step' (recursive models) the states between supervision steps",
    )
    kept_blocks: int | None = Field(
        None,
        ge=0,
        description="with recompute 'block': most of the last blocks to keep instead, as far as that does not raise the peak",
    )
    offload: Literal["none", "optimizer"] | None = Field(None, description="'optimizer' keeps optimizer states in CPU memory")


class Recipe(Section):
    """What to train: model, data, stages, budget, gates."""

    name: str = Field(pattern=NAME, description="runs are named after it")
    description: str = Field("", description="one line for people")
    seed: int = Field(1337, ge=0, lt=2**32, description="of weights, the order of the data and sampling")
    model: Model = GPTModel()
    trm: Recursion | None = Field(None, description="the model's blocks recurse, supervised after every supervision step")
    layout: LayoutChoice = LayoutChoice()
    data: Data
    # validate_default: an empty mapping becomes the pretraining stage, which only the validators add.
    stages: dict[str, AnyStage] = Field({}, description="name -> stage, in the order in which they run", validate_default=True)
    stage: str | None = Field(None, description="the stage that this recipe is for, once it is resolved for one")
    budget: Budget = Field(Budget(), description="limits of all stages together")
    expect: Expect = Field(Expect(), description="what is expected of the run, written before it and compared after it")
    checkpoints: Checkpoints = Checkpoints()
    bands: Bands = Bands()
    serve: Serve = Serve()
    notify: Notify = Notify()

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        """Name the stages."""
        if not isinstance(data, dict):
            return data
        model = data.get("model", {})
        # A dict when it comes from YAML, a model when another recipe is copied.
        kind = model.get("kind", "gpt") if isinstance(model, dict) else getattr(model, "kind", "gpt")
        return data | {"stages": complete(data.get("stages") or {}, gpt=kind == "gpt")}

    @field_validator("stages")
    @classmethod
    def _named(cls, stages: dict[str, Stage]) -> dict[str, Stage]:
        bad = next((name for name in stages if not re.fullmatch(NAME, name)), None)
        if bad is not None:
            raise ValueError(f"a stage's name is of small letters, digits, - and _, at most 100 (got {bad!r})")
        return stages

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        corpus, tokenizer = self.data.corpus, self.data.tokenizer
        if corpus.kind == "arithmetic" and tokenizer.kind == "character" and tokenizer.alphabet != "auto":
            missing = sorted(set(ARITHMETIC_ALPHABET) - set(tokenizer.alphabet))
            if missing:
                raise ValueError(f"data.tokenizer.alphabet lacks {missing}, which the arithmetic corpus uses")
        # One at a time: what contradicts at one place often makes the next complaint meaningless.
        for problem in (stages_problem(self), recursion_problem(self), puzzle_problem(self), records_problem(self)):
            if problem is not None:
                raise ValueError(problem)
        return self

    @property
    def supervision(self) -> int:
        """The supervision steps of a training step, each of which has a loss of its own; 0 where the model answers once."""
        return 0 if self.trm is None else self.trm.supervision

    @property
    def recomputes(self) -> bool:
        """Whether what a backward pass needs of the model's blocks can be computed again in place of being kept."""
        return self.trm is not None or not isinstance(self.model, GPTModel)

    def with_supervision(self, steps: int) -> Recipe:
        """Return a copy with another number of supervision steps, where the model has any."""
        return self if self.trm is None else self.model_copy(update={"trm": self.trm.model_copy(update={"supervision": steps})})

    @property
    def training(self) -> tuple[TrainingStage, ...]:
        """The stages that train, in order."""
        return tuple(stage for stage in self.stages.values() if isinstance(stage, TrainingStage))

    @property
    def staged(self) -> bool:
        """Whether this is a job of several runs, or of one with gates or a recipe of its own, and not yet resolved for one."""
        return self.stage is None and (len(self.training) > 1 or any(stage.differs for stage in self.training))

    @property
    def pretrain(self) -> Pretrain:
        """The pretraining stage, of several the first; one with default values where the recipe has none."""
        return next((stage for stage in self.stages.values() if isinstance(stage, Pretrain)), Pretrain())

    @property
    def sft(self) -> FineTune | None:
        """The fine-tuning stage, of several the first, if the recipe has one."""
        return next((stage for stage in self.stages.values() if isinstance(stage, FineTune)), None)

    @property
    def rl(self) -> GRPO | None:
        """The reinforcement-learning stage, of several the first, if the recipe has one."""
        return next((stage for stage in self.stages.values() if isinstance(stage, GRPO)), None)

    @property
    def evaluation(self) -> Evaluate:
        """What the trained model is measured on; default values where the recipe does not say."""
        return next((stage for stage in self.stages.values() if isinstance(stage, Evaluate)), Evaluate())

    def with_stages(self, **stages: Stage | None) -> Recipe:
        """Return a copy in which the first stage of each kind is replaced, or taken out where the value is None.

        Args:
            stages: kind (pretrain, sft, rl, evaluate) -> the new stage. Nothing is validated again.
        """
        changed: dict[str, Any] = dict(self.stages)
        for kind, stage in stages.items():
            # Stages may have names of their own; the kind finds them.
            name = next((name for name, old in changed.items() if old.kind == kind), kind)
            if stage is None:
                changed.pop(name, None)
            else:
                changed[name] = stage.model_copy(update={"name": name})
        # Not validated again, which takes milliseconds: callers change stages that were valid.
        return self.model_copy(update={"stages": changed})

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
