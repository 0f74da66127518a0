"""The stages of a recipe: what each kind does, how long, from which weights, and what must hold before the next.

`Recipe.stages` maps a stage's name to the stage, in the order in which they run. A stage's name may be that of its
kind, which `kind` then need not repeat: `stages: {pretrain: {batch_tokens: 1M}}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from .evaluation import Answers, Backtest, EvaluationGates
from .rewards import Curriculum, HeldOut, RewardSource
from .section import Section
from .units import Count, Dollars, Every, Hours, Interval

NAME = r"^[a-z][a-z0-9_-]{0,99}$"
Attention: TypeAlias = Literal["auto", "flash4", "varlen", "flex", "split", "mask"]


class Budget(Section):
    """The run ends at whichever limit comes first. All null: tokens_per_parameter decides."""

    dollars: Dollars | None = Field(None, gt=0, description="$ for the whole rig, start-up and waiting included")
    hours: Hours | None = Field(None, gt=0, description="h of wall time, start-up included")
    tokens: Count | None = Field(None, ge=1, description="tokens trained on, repeated ones counted again")
    epochs: float | None = Field(None, gt=0, description="times that the training data are seen")
    steps: int | None = Field(None, ge=1, description="optimizer steps")
    replaced: dict[str, Any] = Field(
        default_factory=dict, exclude=True, description="limits that were inherited, and gave way to those named instead"
    )


class Gates(Section):
    """What a stage's run must have shown before the next stage may spend money. null: not asked for.

    'preset' is the limit that belongs to the stage's trm.preset; where that promises nothing, nothing is asked for.
    """

    order: bool = Field(True, description="each supervision step's validation loss is below the one before")
    refinement: float | Literal["preset"] | None = Field(
        "preset", description="least percent by which the last step's loss is below the first's"
    )
    gradient_norm: tuple[float, float] | Literal["preset"] | None = Field(
        "preset", description="band of the median gradient norm before clipping"
    )
    decreasing: bool = Field(True, description="the loss falls smoothly")
    utilisation: float | None = Field(80.0, ge=0, le=100, description="least mean GPU utilisation, percent; CPUs have none")
    validation_loss: float | None = Field(None, gt=0, description="most validation loss of the best checkpoint, nats a token")
    answers: float | None = Field(None, ge=0, le=1, description="least share of held-out answers that are right at their best")

    @field_validator("gradient_norm", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        """Turn YAML's list into a tuple."""
        return tuple(value) if isinstance(value, list) else value

    @field_validator("gradient_norm")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | str | None) -> tuple[float, float] | str | None:
        if isinstance(value, tuple) and not 0 <= value[0] < value[1]:
            raise ValueError("expected [lowest, highest], such as [0.5, 1.5]")
        return value


class Stage(Section):
    """What every stage has."""

    name: str = Field("", exclude=True, description="the key under `stages`; not written inside the section")
    description: str = Field("", description="one line for people, printed with the stage's plan")


class TrainingStage(Stage):
    """What every stage that trains has."""

    kind: str
    init_from: str | None = Field(
        None,
        min_length=1,
        description="weights to begin with: 'previous' (the stage before), 'random', a run's name or folder, a folder of "
        "weights, or the name of a model that was fetched (windtunnel fetch NAME); null: previous, or of the first stage the "
        "model's own where it has some",
    )
    budget: Budget = Field(Budget(), description="limits of this stage, beside those of the whole recipe")
    share: float | None = Field(
        None, gt=0, le=1, description="most of the recipe's dollars and hours that this stage may take; null: what is left"
    )
    gates: Gates | None = Field(None, description="must hold at the end of this stage before the next begins")
    set: dict[str, Any] = Field(
        default_factory=dict,
        description="keys of the recipe outside `stages` that differ in this stage, as sections or as key.path: value",
    )
    overridden: dict[str, Any] = Field(default_factory=dict, description="this stage's own values that --set replaced")

    @property
    def differs(self) -> bool:
        """Whether it has more than the recipe says: gates, limits of its own, or keys that it sets."""
        return bool(self.gates or self.set or self.share or self.budget != Budget())


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


class Schedule(Section):
    """The learning rate over the run's progress: linear warm-up, constant, linear warm-down."""

    warmup_steps: int = Field(40, ge=0, description="over which the learning rate rises to its peak")
    warmdown: float = Field(0.65, ge=0, le=1, description="share of the run spent warming down")
    final: float = Field(0.05, ge=0, le=1, description="learning rate at the end, as a share of the peak")


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
        "all weights; auto: those of models with small layers on one GPU, where the host would bound the step",
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


class GRPO(TrainingStage):
    """Reinforcement learning: the policy answers, verifiers reward, and it learns from answers that are better than others.

    A step is a round: answers to prompts, their rewards, and one optimizer step or more.
    """

    kind: Literal["rl"] = "rl"
    prompts: int = Field(64, ge=1, description="prompts per round")
    samples: int = Field(8, ge=2, description="answers per prompt")
    prompt_tokens: Count = Field(512, ge=1, description="most tokens of a prompt")
    answer_tokens: Count = Field(4096, ge=1, description="most tokens of an answer")
    mean_answer: float = Field(0.5, gt=0, le=1, description="expected mean length of an answer as a share of the most")
    temperature: float = Field(1.0, gt=0, le=2, description="of sampling; log-probabilities are those at this temperature")
    updates: int = Field(1, ge=1, description="optimizer steps per round, each on its share of the prompts")
    advantages: Literal["group", "leave-one-out"] = Field(
        "group", description="an answer's reward less the mean of its group: of all answers to the prompt, or of the others"
    )
    scale: Literal["group", "none"] = Field(
        "group", description="divide advantages by the standard deviation of their group; none: as Dr. GRPO"
    )
    best: int | None = Field(
        None, ge=1, description="learn from the so many best rewarded answers to a prompt alone; null: from all (best k of n)"
    )
    loss: Literal["dapo", "grpo", "dr_grpo", "gspo", "cispo", "sapo"] = Field(
        "dapo",
        description="dapo: clipped ratios, mean over all tokens of an update; grpo: over answers of their tokens' mean; dr_grpo: "
        "over answers x answer_tokens; gspo: as grpo with one ratio for all tokens of an answer, for which clips are smaller; "
        "cispo: as dapo with ratios as capped weights; sapo: as grpo with a soft gate",
    )
    clip: float = Field(0.2, gt=0, lt=1, description="a token's probability ratio is clipped at 1 - clip and 1 + clip")
    clip_higher: float | None = Field(None, gt=0, description="clip at 1 + clip_higher instead; null: as `clip`")
    kl: float = Field(0.0, ge=0, description="weight of the KL divergence from the reference policy in the loss")
    reference: bool = Field(False, description="keep the weights that the stage begins with as a frozen reference policy")
    mismatch: Literal["truncate", "mask", "ignore"] = Field(
        "truncate",
        description="where sampler and learner give a token other probabilities: weigh it by their ratio up to mismatch_cap "
        "(truncated importance sampling), leave it out where the ratio is outside mismatch_band (IcePop), or go on",
    )
    mismatch_cap: float = Field(2.0, gt=1, description="most weight of a token under mismatch: truncate")
    mismatch_band: tuple[float, float] = Field((0.5, 5.0), description="ratios [lowest, highest] kept under mismatch: mask")
    mask_truncated: bool = Field(True, description="learn nothing from answers that were cut at answer_tokens")
    equal_rewards: Literal["resample", "drop", "keep"] = Field(
        "resample",
        description="prompts whose answers all get the same reward teach nothing: take others in their place, leave them out of "
        "the mean, or count them with advantage 0",
    )
    resamples: int = Field(2, ge=1, description="most times that others are taken in a round")
    curriculum: Curriculum | None = Field(None, description="begin with the easiest prompts; null: all from the start")
    plan_weight: float = Field(
        0.1, gt=0, description="weight in the loss of the tokens before an answer's code, where rewards are for `tokens: plan`"
    )
    rewards: list[RewardSource] = Field(default_factory=list, description="judges of an answer, with weights")
    reward: str | None = Field(
        None,
        pattern=r"^(.+:)?[A-Za-z_][\w-]*$",
        description="in place of `rewards`: the user's own, 'file.py:function', or the name under which a package offers it",
    )
    reward_examples: str | None = Field(
        None,
        min_length=1,
        description="JSON lines with prompt, good, bad and perhaps truth: answers that the reward must tell apart",
    )
    retries: int = Field(2, ge=0, description="times that a judge which failed is asked again before nothing is known")
    cross_check: float = Field(
        0.02,
        ge=0,
        le=1,
        description="share of accepted answers that are judged once more, another way (docs/rl.md), and at least one of each "
        "round on each rank; what is refused then is not learned from; 0: none",
    )
    answers: HeldOut | None = Field(HeldOut(), description="held-out prompts answered; null: the last weights are best")
    keep_rollouts: int = Field(20, ge=0, description="rounds whose answers and rewards stay in the run's folder, to be read")
    engine: Literal["in-turn", "transformers", "vllm"] = Field(
        "in-turn",
        description="what answers: the learners themselves, in turn with learning; or transformers or vLLM in processes of their "
        "own, to which every version of the weights is published (docs/rl.md)",
    )
    engine_seconds: float = Field(
        600.0,
        gt=0,
        description="most seconds that an engine may take to start, to take new weights or to bring an answer on; then it is "
        "ended and started again",
    )
    placement: Literal["local", "ray"] = Field(
        "local",
        description="where learners, engines and judges run: on this machine, or on the nodes of a Ray cluster (RAY_ADDRESS, or "
        "the one that runs here; docs/rl.md)",
    )
    learners: int | None = Field(None, ge=1, description="GPUs that learn; null: the plan's")
    engines: int | None = Field(
        None,
        ge=1,
        description="GPUs that generate, on a CPU processes that do, of which each engine takes `engine_tensor`; null: the rest, "
        "on a CPU one engine a learner",
    )
    engine_tensor: int | None = Field(None, ge=1, description="GPUs that share one engine's weights; null: the fewest that do")
    engine_memory: float = Field(0.9, gt=0, lt=1, description="share of an engine's GPU for weights and KV cache")
    engine_weights: Literal["bf16", "fp8"] = Field("bf16", description="how engines hold the policy")
    engine_adapter: Literal["merged", "apart"] = Field(
        "merged",
        description="how engines hold model.adapter: merged into weights, which all are sent; or apart, beside weights that they "
        "get once, and then it alone is sent",
    )
    sync: Literal["auto", "disk", "direct"] = Field(
        "auto",
        description="how engines get weights: by files, or directly into their memory (NCCL, CUDA IPC, on a CPU gloo); auto: "
        "directly on GPUs, by files on a CPU and with `overlap`, whose rounds a killed run goes on with",
    )
    overlap: int = Field(
        0,
        ge=0,
        le=8,
        description="rounds that engines answer ahead, by weights that are so many rounds old, while learners train; true is 1",
    )
    in_flight: bool = Field(
        False,
        description="with `overlap`: engines take new weights in the middle of answers, of which each token then has the version "
        "that gave it; such a run is not the same one twice",
    )
    micro_batch: int | None = Field(None, ge=1, description="packed sequences per learner per forward pass; null: the plan's")
    states: Literal["fp32", "bf16", "int8"] = Field("fp32", description="precision of AdamW's two moments")
    master: bool = Field(True, description="fp32 master weights")
    compile: bool = Field(True, description="torch.compile of each block")
    attention: Attention = Field("auto", description="kernel for packed answers, as of stages.sft")
    deterministic: bool = Field(True, description="learners give the same bits every time; false: faster attention")
    learning_rate: float = Field(1e-6, gt=0, description="peak, of AdamW")
    schedule: Schedule = Schedule(warmup_steps=10, warmdown=0.0, final=1.0)

    @field_validator("overlap", mode="before")
    @classmethod
    def _rounds(cls, value: object) -> object:
        return int(value) if isinstance(value, bool) else value

    @field_validator("mismatch_band", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _consistent(self) -> GRPO:
        if self.engine_adapter == "apart" and (self.sync == "disk" or self.overlap or self.engine == "in-turn"):
            raise ValueError(
                "engine_adapter: apart is for engines that get weights directly; fix: engine_adapter: merged, or sync: direct, "
                "overlap: 0 and engine: transformers or vllm"
            )
        if self.sync == "direct" and self.overlap:
            raise ValueError("sync: direct leaves no weights on the disk for rounds ahead; fix: sync: disk, or overlap: 0")
        if self.in_flight and not self.overlap:
            raise ValueError(
                "in_flight: without rounds ahead no answer is under way while learners train; fix: overlap: 1 or in_flight: false"
            )
        asked = self.answers.tokens if self.answers is not None else None
        if self.engine != "in-turn" and asked is not None and asked > self.answer_tokens:
            raise ValueError(
                f"answers.tokens: {asked}, and engines write at most answer_tokens, {self.answer_tokens}; fix: answers.tokens: "
                f"null, or answer_tokens: {asked}"
            )
        if self.kl and not self.reference:
            raise ValueError("kl needs a reference policy; fix: reference: true, or kl: 0")
        if self.rewards and self.reward is not None:
            raise ValueError("reward stands in place of rewards; fix: give it as {kind: function, function: ...} among them")
        if self.classes and all(source.tokens == "plan" for source in self.rewards):
            raise ValueError("rewards: all are for the plan's tokens; fix: one that is for the code's, tokens: code")
        if self.best is not None and self.best > self.samples:
            raise ValueError(f"best is {self.best} of {self.samples} samples; fix: at most as many as samples")
        low, high = self.mismatch_band
        if not 0 <= low < 1 < high:
            raise ValueError("mismatch_band is [lowest, highest] around 1, such as [0.5, 5]")
        return self

    @property
    def sources(self) -> tuple[RewardSource, ...]:
        """Whatever judges answers; empty where the recipe names nothing."""
        if self.reward is not None:
            return (RewardSource(kind="function", function=self.reward),)
        return tuple(self.rewards)

    @property
    def classes(self) -> bool:
        """Whether plan and code have rewards of their own."""
        return any(source.tokens != "all" for source in self.sources)

    @property
    def function(self) -> str | None:
        """The user's function among the judges, of several the first."""
        return next((source.function for source in self.sources if source.function is not None), None)

    @property
    def round_tokens(self) -> float:
        """Tokens of a round that learners see: prompts and answers of mean length."""
        return self.prompts * self.samples * (self.prompt_tokens + self.mean_answer * self.answer_tokens)

    @property
    def scorings(self) -> float:
        """Passes over a round's answers that only score them: by the reference, before several updates, and GSPO's between."""
        between = (self.updates - 1) / self.updates if self.loss == "gspo" else 0.0
        return int(self.reference) + int(self.updates > 1) + between


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
        if section is None:
            continue
        if isinstance(section, Stage):
            found[name] = section if section.name == name else section.model_copy(update={"name": name})
        elif isinstance(section, dict):
            if "kind" not in section and name not in KINDS:
                raise ValueError(f"stages.{name}.kind: missing; expected {_either(KINDS)}")
            found[name] = {**section, "kind": section.get("kind", name), "name": name}
        else:
            found[name] = section
    if gpt and not any(kind_of(name, section) in TRAINING for name, section in found.items()):
        found = {"pretrain": {"kind": "pretrain", "name": "pretrain"}, **found}
    return found


def _either(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
