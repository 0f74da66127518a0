"""Generated sums: their answers are right, their questions differ, and no answer is right more often than the rest."""

from __future__ import annotations

from collections import Counter

from windtunnel.recipe import ArithmeticCorpus

from .context import Context
from .types import Check, CheckFailed, Evidence, Findings, Say

LOOKED_AT = 5_000
FEWEST_QUESTIONS = 0.5
"""Share of the sums that must differ."""
UNBALANCED = 0.5


def _has_answers(context: Context) -> bool:
    return isinstance(context.recipe.data.corpus, ArithmeticCorpus)


def answers(context: Context, say: Say) -> Evidence:
    """Solve the first 5,000 sums again, exactly."""
    from windtunnel.data import parse_problem, sample_documents, solve

    batch = next(iter(sample_documents(context.recipe, 1)))
    questions: set[str] = set()
    given: Counter[str] = Counter()
    number = min(LOOKED_AT, len(batch))
    for i in range(number):
        text = batch.document(i)
        problem = parse_problem(text)
        if solve(problem.prompt[1:-1]) != problem.answer:
            raise CheckFailed(
                f"{text!r}: the answer should be {solve(problem.prompt[1:-1])}", "report this: the package is at fault"
            )
        questions.add(problem.prompt)
        given[problem.answer] += 1
    found = Findings()
    answer, times = given.most_common(1)[0]
    if len(questions) < FEWEST_QUESTIONS * number:
        what = f"{number:,} sums have only {len(questions):,} different questions: the model can learn them by heart"
        found.warn(f"{what}; raise data.corpus.digits or terms")
    if times > UNBALANCED * number:
        found.warn(f"{times / number:.0%} of the answers are {answer}: always saying so scores as much")
    common = f"the most common answer is {answer} ({times / number:.1%})"
    text = f"{number:,} sums solved again: all right; {len(questions):,} different questions, {common}"
    return found.evidence(text, {"sums": number, "distinct_questions": len(questions), "majority": times / number})


CHECKS = (
    Check(
        "data-answers", "answers are right, questions differ, no answer dominates", "look at data.corpus", answers,
        shows="end", needs=("recipe", "data"), applies=_has_answers,
    ),
)  # fmt: skip
