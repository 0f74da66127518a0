"""What judges the answers of a stage of kind rl: sources of rewards with their weights, and the questions that are held out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from .section import Section
from .units import Count, Every, Interval


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
