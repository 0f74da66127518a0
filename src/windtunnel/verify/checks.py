"""Check the user's reward: it can be called, gives finite numbers, tells right from wrong, survives what models write."""

from __future__ import annotations

import math
import statistics

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import ArithmeticCorpus

from .checks_answers import GARBAGE, Example, examples, has_reward, is_rl, open_reward, reward_of, robustness
from .reward_process import Reply, RewardProcess

# Seconds; thousands of answers a round are rewarded one after the other.
SLOW_CALL, SLOWEST_CALL = 0.25, 2.0
SLOW_IMPORT = 20.0
LARGEST = 1e4
PRINTED_BYTES = 20_000


def loads(context: Context, say: Say) -> Evidence:
    """Import it as training would and call it a few times."""
    rl = context.recipe.rl
    assert rl is not None
    if rl.rewards and not has_reward(context):
        named = ", ".join(source.kind for source in rl.rewards)
        return Evidence(f"answers are judged by {named}; the checks of judges and verifiers try them")
    if not has_reward(context):
        return Evidence(
            "the recipe names no reward: there is nothing to learn from", absent="give stages.rl.reward: file.py:function"
        )
    say("importing it")
    first = examples(context)[0]
    found = Findings()
    with open_reward(context) as reward:
        replies = [reward.call(first.prompt, answer, first.truth) for answer in (first.good, first.bad[0], first.good)]
        reply = next((r for r in replies if r.signature or r.ended), replies[0])
        left = reward.close()
        seconds, printed = reward.import_seconds, reward.printed
    where = reward_of(context)
    file, function = where.file, where.function.rpartition(":")[2]
    if reply.signature:
        found.problem(
            f"{file}: {function} cannot be called as reward(prompt, answer, truth): {reply.problem}",
            f"def {function}(prompt: str, answer: str, truth: str | None) -> float, or as TRL's and verl's rewards name theirs",
        )
    elif reply.ended:
        found.problem(
            f"{file}: {function}('{first.prompt}', ...): {reply.problem}", "a reward must return a number and nothing else"
        )
    if left:
        found.warn(f"{left} process{'es' if left > 1 else ''} of its own went on after it: end what a reward starts")
    if seconds > SLOW_IMPORT:
        found.warn(f"importing it takes {seconds:.0f} s in every process that rewards: move heavy imports into the function")
    return found.evidence(
        f"{file.name}:{function} imported in {seconds:.2f} s and called",
        {"import_seconds": round(seconds, 3), "printed_bytes": printed},
    )


def values(context: Context, say: Say) -> Evidence:
    """Look for finite numbers, the same again in any order, and quick enough for a round."""
    given = examples(context)
    calls = [(e, answer) for e in given for answer in (e.good, *e.bad)][:60]
    found = Findings()
    with open_reward(context) as reward:
        first = _round(reward, calls, say, "calling it")
        # A reward that keeps state, or draws numbers, says something else then.
        again = list(reversed(_round(reward, list(reversed(calls)), say, "once more, in reverse order")))
        printed = reward.printed
    for (example, answer), one, two in zip(calls, first, again, strict=True):
        shown = f"({example.prompt[:40]!r}, {answer[:40]!r})"
        if one.value is None:
            found.problem(
                f"{shown}: {'raises ' if one.raised else ''}{one.problem}",
                "return a float for every answer; a fault of the machine must raise",
            )
        elif not math.isfinite(one.value):
            found.problem(
                f"{shown} gives {one.value}", "return a finite number: one NaN spoils the whole batch", shows="first steps"
            )
        elif two.value != one.value:
            what = f"gives {one.value:g}, then {two.value if two.value is not None else two.problem}"
            found.problem(
                f"{shown} {what}", "the same answer must get the same reward: seed what is random, keep no state between calls"
            )
        else:
            continue
        break
    seconds = statistics.median(reply.seconds for reply in (*first, *again))
    _judge_pace(context, seconds, found)
    largest = max((abs(r.value) for r in first if r.value is not None and math.isfinite(r.value)), default=0.0)
    if largest > LARGEST:
        found.warn(f"rewards reach {largest:g}: scale them to about 1, or advantages lose the small differences")
    if printed > PRINTED_BYTES:
        found.warn(f"it printed {printed / 1e3:,.0f} kB in {2 * len(calls)} calls: a run would fill its log, print nothing")
    text = f"{len(calls)} answers, each twice in two orders: the same finite numbers; {1e3 * seconds:.1f} ms a call"
    return found.evidence(text, {"calls": len(calls), "median_seconds": seconds, "largest": largest})


def _judge_pace(context: Context, seconds: float, found: Findings) -> None:
    rl = context.recipe.rl
    assert rl is not None
    answers = rl.prompts * rl.samples
    minutes = answers * seconds / 60
    what = f"a call takes {seconds:.2f} s: {answers:,} answers a round take {minutes:,.1f} min one after the other"
    if seconds > SLOWEST_CALL:
        found.problem(what, "make it faster: cache what is loaded, drop network calls", shows="first steps")
    elif seconds > SLOW_CALL:
        found.warn(f"{what}: make it faster")


def _round(reward: RewardProcess, calls: list[tuple[Example, str]], say: Say, what: str) -> list[Reply]:
    replies: list[Reply] = []
    for number, (example, answer) in enumerate(calls, 1):
        say(f"{what}: {number} of {len(calls)}")
        replies.append(reward.call(example.prompt, answer, example.truth))
        if replies[-1].ended and len([r for r in replies if r.ended]) > 1:  # one may be chance; do not wait for every one
            replies += [replies[-1]] * (len(calls) - number)
            break
    return replies


_CONVENTION = "def reward(prompt: str, answer: str, truth: str | None) -> float"


# Whether it tells right answers from worthless ones.

Scored = tuple[Example, float, dict[str, float], float]


def judgement(context: Context, say: Say) -> Evidence:
    """See that right answers score above wrong, empty, echoed, meaningless and hedging ones."""
    rl = context.recipe.rl
    assert rl is not None
    known, given = examples(context), rl.reward_examples is not None
    with open_reward(context) as reward:
        scored = [(e, *_scores(reward, e)) for e in known]
        say(f"{len(scored)} examples scored")
    # With made examples that is no proof: the reward may want a form which none of them has.
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
    """Return what a reward says of an example: of the right answer, the highest of worthless ones, and of right beside wrong.

    The middle one is told for each kind of worthless answer.
    """

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
    # Only a warning: some rewards read the last line, and then the list's order decides.
    hedged = [(best, value) for _, best, _, value in scored if value >= best]
    if hedged:
        found.warn(
            f"an answer that lists right and wrong ones gets {hedged[0][1]:g}, as much as the right one alone: "
            "the model will learn to list; compare the whole answer or its last line"
        )


def _values(scored: list[Scored]) -> set[float]:
    return {value for _, best, worse, _ in scored for value in (best, *worse.values())}


# Whether the verifiers that rewards ask work on this machine.


def works(context: Context, say: Say) -> Evidence:
    """Judge answers whose verdict is known, as training will."""
    from .kinds import Verifiers
    from .selftest import ADVICE, TESTED, self_test

    kinds = [kind for kind in TESTED if kind in _judges(context)]
    say(f"judging known answers of kind {', '.join(kinds)}")
    with Verifiers(2) as verifiers:
        found = self_test(verifiers, kinds)
    if found.fault:
        raise CheckFailed(found.fault, ADVICE)
    right = sum(trial.probe.right for trial in found.trials)
    text = f"{right} right answers accepted, {len(found.trials) - right} wrong ones refused for what is wrong with them"
    warnings = [f"the sandbox is not hardened here: {what}; windtunnel verify layers says more" for what in found.missing]
    return Evidence(text, {"answers": len(found.trials), "seconds": round(found.seconds, 1)}, warnings=warnings)


def _judges(context: Context) -> set[str]:
    """Return the kinds of the recipe's rewards."""
    rl = context.recipe.rl
    return {source.kind for source in rl.sources} if rl is not None else set()


def asks_verifiers(context: Context) -> bool:
    """Return whether rewards are of a kind whose verdict depends on the machine."""
    from .selftest import TESTED

    return not _judges(context).isdisjoint(TESTED)


CHECKS = (
    Check(
        "verifier", "the verifiers of the recipe's rewards accept right answers and refuse wrong ones on this machine",
        "windtunnel verify selftest", works,
        shows="start", needs=("recipe", "packages"), applies=asks_verifiers, limit=300.0,
    ),
    Check(
        "reward", "the reward can be imported and called as training will", f"the plug-in is {_CONVENTION}", loads,
        shows="start", needs=("recipe",), applies=is_rl, limit=90.0,
    ),
    Check(
        "reward-values", "it gives finite numbers, the same for the same answer, quickly", f"the plug-in is {_CONVENTION}",
        values, shows="first steps", needs=("reward",), applies=has_reward, limit=120.0,
    ),
    Check(
        "reward-judgement", "right answers score above wrong, empty, echoed and meaningless ones", "look at how it reads answers",
        judgement, shows="end", needs=("reward",), applies=has_reward,
    ),
    Check(
        "reward-robustness", "nothing that a model may write crashes, hangs or takes over the reward", "bound what it does",
        robustness, shows="first steps", needs=("reward",), applies=has_reward, limit=120.0,
    ),
)  # fmt: skip
