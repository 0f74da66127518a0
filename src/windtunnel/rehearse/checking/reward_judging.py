"""Whether a reward tells right answers from worthless ones."""

from __future__ import annotations

import math

from windtunnel.recipe import ArithmeticCorpus

from .context import Context
from .reward_examples import GARBAGE, Example
from .reward_plugin import examples, open_reward
from .reward_process import RewardProcess
from .types import CheckFailed, Evidence, Findings, Say

Scored = tuple[Example, float, dict[str, float], float]


def judgement(context: Context, say: Say) -> Evidence:
    """Right answers score above wrong, empty, echoed, meaningless and hedging ones."""
    rl = context.recipe.rl
    assert rl is not None
    known, given = examples(context), rl.reward_examples is not None
    with open_reward(context) as reward:
        scored = [(e, *_scores(reward, e)) for e in known]
        say(f"{len(scored)} examples scored")
    if not given and len(_values(scored)) == 1:
        return Evidence(
            f"every made-up answer gets {scored[0][1]:g}: it may expect another form of prompt or answer",
            warnings=("give right and wrong answers in stages.rl.reward_examples, so that this can be told",),
        )
    found = Findings()
    if not given:  # the form that it likes best is the one it expects
        best_style = max(scored, key=lambda s: s[1] - s[2]["a wrong answer"])[0].where
        scored = [s for s in scored if s[0].where == best_style]
        if not isinstance(context.recipe.data.corpus, ArithmeticCorpus):
            found.warn(f"judged on made-up sums ({best_style}): give your own in stages.rl.reward_examples")
    _judge(scored, found)
    margin = min(best - max(worse.values()) for _, best, worse, _ in scored)
    text = f"{len(scored)} right answers score above wrong, empty, echoed and meaningless ones by {margin:g} or more"
    return found.evidence(text, {"examples": len(scored), "least_margin": margin})


def _scores(reward: RewardProcess, example: Example) -> tuple[float, dict[str, float], float]:
    """(the right answer's, of each kind of worthless one the highest, of one that lists right and wrong)."""

    def score(answer: str) -> float:
        reply = reward.call(example.prompt, answer, example.truth)
        if reply.value is None or not math.isfinite(reply.value):
            raise CheckFailed(f"({example.prompt[:40]!r}, {answer[:40]!r}): {reply.problem or reply.value}")
        return reply.value

    best = score(example.good)
    worse = {
        "a wrong answer": max(score(bad) for bad in example.bad),
        "an empty answer": score(""),
        "the prompt echoed": score(example.prompt),
        "a meaningless answer": max(score(text) for text in GARBAGE),
    }
    bad = example.bad[0]
    return best, worse, max(score(f"{bad} {example.good} {bad}"), score(f"{example.good} {bad}"))


def _judge(scored: list[Scored], found: Findings) -> None:
    values = _values(scored)
    if len(values) == 1:
        found.problem(
            f"every answer, right or wrong, gets {values.pop():g}", "nothing can be learned from it: look at how it reads answers"
        )
        return
    for kind in scored[0][2]:
        fooled = [(example, best, worse[kind]) for example, best, worse, _ in scored if worse[kind] >= best]
        if not fooled:
            continue
        example, best, value = fooled[0]
        what = f"{kind} gets {value:g}, the right one ({example.good[:30]!r}) {best:g}"
        what = f"{example.where}: {what}; so in {len(fooled)} of {len(scored)} examples"
        inverted = kind == "a wrong answer" and len(fooled) == len(scored) and all(v > b for _, b, v in fooled)
        found.problem(
            what, "turn its sign" if inverted else "the model will learn to write that: let it score lower", shows="first steps"
        )
    hedged = [(best, value) for _, best, _, value in scored if value >= best]
    if hedged:
        found.warn(
            f"an answer that lists right and wrong ones gets {hedged[0][1]:g}, as much as the right one alone: "
            "the model will learn to list; compare the whole answer or its last line"
        )


def _values(scored: list[Scored]) -> set[float]:
    return {value for _, best, worse, _ in scored for value in (best, *worse.values())}
