"""Check data by the recipe's own judges: right answers that they hold are accepted, worthless ones refused, none is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from windtunnel.check import CheckFailed, Context, Evidence, Say
from windtunnel.data import Prompt, PromptFile, shown_names
from windtunnel.recipe import GRPO, PromptCorpus, RewardSource

from .examination import right_answers
from .judges import SUBJECT, Reward, final_answer, first_judge
from .rewards import Rewards

RIGHT_ANSWERS, WORTHLESS = 3, ("", "I do not know.")
LOOKED_AT = 2000
"""Prompts among which some of each judge are looked for."""
COMPARING = ("math", "exact", "code", "kernel")
"""Kinds that know nothing of an answer where the prompt comes without the right one, or without tests."""


@dataclass
class _Found:
    """What the judges said.

    Attributes:
        accepted: right answers, by judge, and the words to the first.
        refused: of each judge, what is wrong with it or with a prompt of its.
        unlike: right answers that a function does not accept, which may want another form.
        again: right answers that were judged once more. worthless: answers that were refused.
    """

    accepted: Counter[str] = field(default_factory=Counter)
    said: str = ""
    refused: dict[str, list[CheckFailed]] = field(default_factory=dict)
    unlike: int = 0
    again: int = 0
    worthless: int = 0


def judge_data(context: Context, say: Say) -> Evidence:
    """Judge right and worthless answers to prompts of the data by the very judges of the run."""
    stage, prepared, corpus = context.recipe.rl, context.prepared, context.recipe.data.corpus
    assert stage is not None
    assert isinstance(prepared.validation, PromptFile)
    assert isinstance(prepared.train, PromptFile)
    assert isinstance(corpus, PromptCorpus)
    prompts = _some_of_each_judge(stage, prepared.validation, prepared.train)
    found = _Found()
    with Rewards(stage) as rewards:
        for prompt, answers in zip(prompts, right_answers(context.recipe, prompts), strict=True):
            say(f"judging answers to prompt {prompt.number}")
            source = _judge_of(stage, prompt)
            try:
                _judge(rewards, prompt, source, answers, found)
            except CheckFailed as error:
                found.refused.setdefault(source.kind, []).append(error)
    for kind, problems in found.refused.items():
        # Public data have a few records that nobody can judge; what is generated has none.
        if not found.accepted[kind] or not corpus.files:
            raise problems[0]
    return _evidence(stage, found)


def _evidence(stage: GRPO, found: _Found) -> Evidence:
    known = found.accepted.total()
    if not known and not found.unlike:
        none = f"{stage.sources[0].kind}: the data hold no right answer that could be judged"
        text = f"{none}; {found.worthless} worthless ones refused"
        return Evidence(text, absent="--set stages.rl.reward_examples=FILE")
    what = " and ".join(sorted(found.accepted)) or "function"
    text = f"{known} right answers of the data are accepted by {what}"
    text += f": '{found.said}'; " if known else "; "
    text += f"{found.worthless} worthless ones refused"
    text += f"; {found.again} judged once more, another way, and accepted again" if found.again else ""
    problems = [str(error) for errors in found.refused.values() for error in errors]
    warnings = [f"{len(problems)} of the prompts tried teach nothing: {problems[0]}"] if problems else []
    if found.unlike:
        warnings.append(f"{found.unlike} of the data's right answers are not accepted as they stand")
    return Evidence(text, {"accepted": known, "refused": found.worthless}, warnings)


def _judge(rewards: Rewards, prompt: Prompt, source: RewardSource, right: tuple[str, ...], found: _Found) -> None:
    """Judge worthless answers to a prompt, and the right one in the first form that is accepted. Raises CheckFailed."""
    if source.kind in COMPARING and final_answer(prompt, source) is None:
        what = f"{_named(prompt)} has no {source.key or 'answer'}, which rewards of kind {source.kind} need"
        raise CheckFailed(what, _keys(prompt))
    verifiers = rewards.verifiers(prompt)

    def judge(answer: str) -> Reward:
        reward = rewards.begin(verifiers, answer).result()
        # Any of them: an answer of which one judge knows nothing has no reward.
        for one, verifier, part in zip(rewards.sources, verifiers, reward.parts, strict=True):
            if verifier is not None and part is None:
                verdict, _ = rewards.ask(verifier, answer)
                if verdict.infrastructure:
                    what = f"stages.rl.rewards, {one.function or one.kind}: of an answer to {_named(prompt)} nothing is known"
                    raise CheckFailed(f"{what}: {verdict.message}", _keys(prompt))
        return reward

    for answer in WORTHLESS if not found.worthless else WORTHLESS[:1]:
        if (reward := judge(answer)).accepted:
            raise CheckFailed(f"{answer!r} is accepted as an answer to {_named(prompt)}: {reward.message}")
        found.worthless += 1
    tried = []
    for answer in right:
        tried.append(judge(answer))
        if tried[-1].accepted:
            _judge_again(rewards, prompt, answer, found)
            found.said = found.said or (tried[-1].message or "accepted").splitlines()[0][:120]
            found.accepted[source.kind] += 1
            return
    if tried and source.kind != "function":
        raise CheckFailed(f"the data's own right answer to {_named(prompt)} is not accepted: {tried[0].message}")
    found.unlike += bool(tried)


def _judge_again(rewards: Rewards, prompt: Prompt, answer: str, found: _Found) -> None:
    """See that a judge agrees with itself: one that does not would take right answers out of training."""
    if rewards.stage.cross_check:
        again = rewards.check(prompt, answer, None)
        if again.accepted is False:
            words = f"the data's own right answer to {_named(prompt)} is accepted, and refused when judged once more"
            raise CheckFailed(f"{words}: {again.message}")
        found.again += 1


def _judge_of(stage: GRPO, prompt: Prompt) -> RewardSource:
    """Return what says whether answers to a prompt are right. Raises CheckFailed where nothing does."""
    source = first_judge(stage, prompt)
    if source is None:
        subject = prompt.data.get(SUBJECT)
        what = f"for prompts of the subject {subject!r}" if subject else f"for prompts whose record has no {SUBJECT}"
        fix = "name judges without `of`, such as --set stages.rl.rewards='[{kind: math, where: boxed}]'"
        raise CheckFailed(f"{_named(prompt)}: none of stages.rl.rewards is {what}", fix)
    return source


def _keys(prompt: Prompt) -> str:
    return (
        "name where it is: --set stages.rl.set.data.corpus.answer_key=KEY, or OUTER.INNER, or `key` of the reward; "
        f"its record has {shown_names(prompt.data)}"
    )


def _named(prompt: Prompt) -> str:
    asked = prompt.prompt if isinstance(prompt.prompt, str) else prompt.prompt[-1]["content"]
    return f"prompt {prompt.number} ({asked[:40]!r})"


def _some_of_each_judge(stage: GRPO, *files: PromptFile) -> list[Prompt]:
    """Return the first few prompts of each judge that says what is right."""
    taken: Counter[int | None] = Counter()
    found = []
    for prompt in islice(chain.from_iterable(map(_prompts, files)), LOOKED_AT):
        judge = first_judge(stage, prompt)
        key = None if judge is None else stage.sources.index(judge)
        taken[key] += 1
        if taken[key] <= RIGHT_ANSWERS:
            found.append(prompt)
    return found


def _prompts(file: PromptFile) -> Iterator[Prompt]:
    return map(file.prompt, range(file.samples))
