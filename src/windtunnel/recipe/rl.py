"""The stage of kind rl: how answers are drawn, judged and learned from, and the questions that are held out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from .section import Count, Every, Interval, Pair, Section
from .stage_base import Attention, Schedule, TrainingStage


class RewardSource(Section):
    """One judge of answers. An answer's reward is the weighted sum of what its judges give."""

    kind: Literal["math", "exact", "format", "code", "kernel", "function"] = Field(
        description="math: equal as an expression to the prompt's answer; exact: the same text; format: has the parts that "
        "`task` asks for; code: passes the prompt's tests; kernel: a kernel for the prompt's task; function: the user's own"
    )
    weight: float = Field(1.0, description="of this judge in the sum; below 0 it is a penalty")
    where: Literal["all", "last-line", "boxed", "answer-tag", "hashes"] = Field(
        "all", description="of math and exact: the part of the answer that counts; hashes: behind the last ####, as in GSM8K"
    )
    task: dict[str, Any] = Field(
        default_factory=dict, description="of format: tags, boxed, only_tags, schema (see `windtunnel verify format`)"
    )
    function: str | None = Field(
        None,
        pattern=r"^(.+:)?[A-Za-z_][\w-]*$",
        description="of function: 'file.py:function', or the name under which a package offers it",
    )
    key: str | None = Field(
        None, min_length=1, description="key of the prompt's record that holds answer, tests or task; null: the right answer's"
    )

    of: str | None = Field(
        None, min_length=1, description="judges only prompts whose record has this under the key `subject`; null: all prompts"
    )
    speed: bool = Field(
        False,
        description="of kernel: PyTorch's time over the kernel's, at most 2, and 0 for a wrong one; only from timed verdicts",
    )
    tokens: Literal["all", "plan", "code"] = Field(
        "all", description="the tokens that are rewarded: all, those before an answer's block of code, or from there on"
    )

    @property
    def name(self) -> str:
        """What its metric is called by."""
        return "speed" if self.speed else self.kind

    @model_validator(mode="after")
    def _whole(self) -> RewardSource:
        if self.speed and self.kind != "kernel":
            raise ValueError("rewards: speed is of kernels; fix: kind: kernel")
        if (self.kind == "function") != (self.function is not None):
            raise ValueError("rewards: kind function, and no other, is given with `function`")
        if (self.kind == "format") != bool(self.task):
            raise ValueError("rewards: kind format, and no other, is given with `task`, such as {tags: [think, answer]}")
        if self.weight == 0:
            raise ValueError("rewards: a weight of 0 judges for nothing; leave the source out")
        return self


class Curriculum(Section):
    """Prompts by level: the lowest first; the next one is added when the newest level's mean reward passes a bar."""

    bar: float = Field(
        0.7, description="mean reward of the answers to the newest level's prompts from which the next one is added"
    )
    rounds: int = Field(5, ge=1, description="rounds over which that mean is taken, all of them at this level")
    key: str = Field("level", min_length=1, description="key of the prompt's record that holds its level, a number")
    mixed: bool = Field(True, description="ask prompts of the levels before too; false: of the newest level alone")


class HeldOut(Section):
    """Held-out prompts answered by the policy and judged as in training; the share of right answers decides what is the best."""

    every: Interval = Field(Every(steps=20), description="how often")
    prompts: int = Field(64, ge=1, description="prompts answered each time, greedily")
    tokens: Count | None = Field(None, ge=1, description="most tokens of such an answer; null: as in training")


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
    # Clip-higher (DAPO, arXiv:2503.14476): a wider upper bound leaves unlikely tokens room to become likely.
    clip_higher: float | None = Field(None, gt=0, description="clip at 1 + clip_higher instead; null: as `clip`")
    kl: float = Field(0.0, ge=0, description="weight of the KL divergence from the reference policy in the loss")
    reference: bool = Field(False, description="keep the weights that the stage begins with as a frozen reference policy")
    # Engines and learners compute the same model with other kernels, so that a token's probability differs a little; weighing
    # by the ratio keeps the gradient right (docs/rl.md).
    mismatch: Literal["truncate", "mask", "ignore"] = Field(
        "truncate",
        description="where sampler and learner give a token other probabilities: weigh it by their ratio up to mismatch_cap "
        "(truncated importance sampling), leave it out where the ratio is outside mismatch_band (IcePop), or go on",
    )
    mismatch_cap: float = Field(2.0, gt=1, description="most weight of a token under mismatch: truncate")
    mismatch_band: Pair = Field((0.5, 5.0), description="ratios [lowest, highest] kept under mismatch: mask")
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
    # true is written for one round ahead, and a bool is no number to a strict section.
    def _rounds(cls, value: object) -> object:
        return int(value) if isinstance(value, bool) else value

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
            # The short form of one judge: the rest of the package knows only sources.
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
        # GSPO's ratio is of a whole answer, so every update but the first needs all its tokens scored before it.
        between = (self.updates - 1) / self.updates if self.loss == "gspo" else 0.0
        return int(self.reference) + int(self.updates > 1) + between
