"""Generated exercises in mathematics, general reasoning and code, each with its right answer; the same ones for a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from windtunnel.recipe import Exercises

EXERCISES = 1  # version of what is generated
DRAWS = 10  # exercises drawn at most for each that is wanted: some kinds have few different ones
NAMES = ("Ada", "Ben", "Chen", "Dina", "Emil", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena", "Mira", "Noor", "Otto")
THINGS = ("apples", "books", "coins", "stamps", "marbles", "tickets", "pencils", "shells", "cards", "buttons")
WORDS = (
    "river", "stone", "cloud", "garden", "lantern", "mirror", "ocean", "pepper", "quartz", "ribbon", "saddle", "timber", "urchin",
    "violet", "walnut", "yellow", "zipper", "anchor", "basket", "candle", "desert", "engine", "feather", "guitar", "harbor",
    "island", "jacket", "kettle", "ladder", "market", "needle", "orchard", "pillow", "rocket", "silver", "tunnel", "velvet",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
BOXED = "Think step by step and put the result in \\boxed{}."
TAGGED = "Write the answer between <answer> and </answer>."
FENCED = "Answer with one block of Python and nothing else."


@dataclass(frozen=True)
class Exercise:
    """What is asked, and what is right.

    Attributes:
        answer: the bare answer; of code a solution.
        written: a whole answer in the form that was asked for.
        tests: of code: assert statements.
    """

    subject: str
    prompt: str
    answer: str
    written: str
    tests: str = ""

    @property
    def side(self) -> int:
        """xxh3-64 of the prompt: the side of the split, whether the answer is shown or not."""
        return xxhash.xxh3_64_intdigest(self.prompt.encode())

    @property
    def record(self) -> dict[str, Any]:
        """Return what a prompt's record has beside prompt and answer."""
        return {"subject": self.subject} | ({"tests": {"asserts": self.tests}} if self.tests else {})


def draw_exercises(asked: Exercises, seed: int) -> Iterator[Exercise]:
    """Yield different exercises, the subjects in turn; fewer than asked for where a subject has no more."""
    each = -(-asked.count // len(asked.subjects))  # rounded up; the last turn is cut
    in_turn = itertools.zip_longest(*(_different(subject, each, seed) for subject in asked.subjects))
    made = (one for turn in in_turn for one in turn if one is not None)
    return itertools.islice(made, asked.count)


def _different(subject: str, count: int, seed: int) -> Iterator[Exercise]:
    seen: set[str] = set()
    for number in range(DRAWS * count):
        # A generator for each number: asking for more exercises changes none of the first ones.
        made = SUBJECTS[subject](random.Random(f"{seed}/{subject}/{number}"))
        if made.prompt not in seen:
            seen.add(made.prompt)
            yield made
        if len(seen) == count:
            return


def _mathematics(draw: random.Random) -> Exercise:
    question, steps, answer = draw.choice(MATHEMATICS)(draw)
    return Exercise("mathematics", f"{question} {BOXED}", str(answer), f"{steps}\nThe result is \\boxed{{{answer}}}.")


def _sum(draw: random.Random) -> tuple[str, str, int]:
    a, b, c = draw.randint(2, 99), draw.randint(2, 12), draw.randint(2, 12)
    sign = draw.choice("+-")
    product = b * c
    answer = a + product if sign == "+" else a - product
    return f"What is {a} {sign} {b} * {c}?", f"{b} * {c} = {product}\n{a} {sign} {product} = {answer}", answer


def _story(draw: random.Random) -> tuple[str, str, int]:
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    has, bags, each = draw.randint(3, 60), draw.randint(2, 9), draw.randint(2, 12)
    away = draw.randint(1, has + bags * each)
    bought, total = bags * each, has + bags * each
    question = (
        f"{name} has {has} {thing}, buys {bags} boxes with {each} {thing} each, and gives {away} {thing} away. "
        f"How many {thing} are left?"
    )
    return question, f"{bags} * {each} = {bought}\n{has} + {bought} = {total}\n{total} - {away} = {total - away}", total - away


def _equation(draw: random.Random) -> tuple[str, str, int]:
    a, x, b = draw.randint(2, 12), draw.randint(-12, 20), draw.randint(1, 60)
    total = a * x + b
    return f"Solve {a}x + {b} = {total} for x.", f"{a}x = {total} - {b} = {a * x}\nx = {a * x} / {a} = {x}", x


def _share(draw: random.Random) -> tuple[str, str, int]:
    percent, whole = 5 * draw.randint(1, 19), 20 * draw.randint(1, 50)
    answer = percent * whole // 100
    steps = f"{percent} % of {whole} = {percent} * {whole} / 100 = {percent * whole} / 100 = {answer}"
    return f"What is {percent} % of {whole}?", steps, answer


def _remainder(draw: random.Random) -> tuple[str, str, int]:
    a, b = draw.randint(20, 500), draw.randint(3, 19)
    steps = f"{b} * {a // b} = {a // b * b}\n{a} - {a // b * b} = {a % b}"
    return f"What is the remainder of {a} divided by {b}?", steps, a % b


def _general(draw: random.Random) -> Exercise:
    question, answer = draw.choice(GENERAL)(draw)
    return Exercise("general", f"{question} {TAGGED}", answer, f"<answer>{answer}</answer>")


def _sorted_words(draw: random.Random) -> tuple[str, str]:
    words = draw.sample(WORDS, draw.randint(3, 5))
    what = f"Put these words into alphabetical order, with a comma and a blank between them: {', '.join(words)}."
    return what, ", ".join(sorted(words))


def _placed_word(draw: random.Random) -> tuple[str, str]:
    words, place = draw.sample(WORDS, draw.randint(4, 7)), draw.randint(0, 3)
    return f"Which word stands at place {place + 1} of this list: {', '.join(words)}?", words[place]


def _letters(draw: random.Random) -> tuple[str, str]:
    word = draw.choice(WORDS) + draw.choice(WORDS)
    letter = draw.choice(word)
    return f"How many times is the letter {letter} in '{word}'?", str(word.count(letter))


def _weekday(draw: random.Random) -> tuple[str, str]:
    day, later = draw.randint(0, 6), draw.randint(2, 40)
    return f"Today is {DAYS[day]}. Which day of the week is it {later} days later?", DAYS[(day + later) % 7]


def _tallest(draw: random.Random) -> tuple[str, str]:
    order = draw.sample(NAMES, 4)
    facts = [f"{taller} is taller than {smaller}." for taller, smaller in itertools.pairwise(order)]
    draw.shuffle(facts)
    last = draw.random() < 0.5
    return f"{' '.join(facts)} Who is the {'smallest' if last else 'tallest'}?", order[-1 if last else 0]


@dataclass(frozen=True)
class _Part:
    """A part of a function over a list of numbers: in words, as an expression, and what it does."""

    words: str
    code: str
    apply: Callable[[int], int | bool]


def _code(draw: random.Random) -> Exercise:
    keep, changes = draw.choice(_filters(draw)), [draw.choice(_changes(draw)) for _ in range(draw.randint(1, 2))]
    words, end, finish = draw.choice(ENDS)
    does = ", then ".join(change.words for change in changes)
    prompt = f"Write a Python function solve(xs) that takes a list of integers, keeps {keep.words}, {does}, and returns {words}."
    lines = [f"found = [x for x in xs if {keep.code}]", *(f"found = [{change.code} for x in found]" for change in changes)]
    solution = "\n    ".join(["def solve(xs):", *lines, f"return {end}"])
    # The empty list first: it is what solutions forget.
    cases = [[], *([draw.randint(-20, 20) for _ in range(draw.randint(1, 8))] for _ in range(5))]
    results = [finish([_changed(x, changes) for x in case if keep.apply(x)]) for case in cases]
    tests = "\n".join(f"assert solve({case}) == {result!r}" for case, result in zip(cases, results, strict=True))
    return Exercise("code", f"{prompt} {FENCED}", solution, f"```python\n{solution}\n```", tests)


def _changed(x: int, changes: Sequence[_Part]) -> int:
    for change in changes:
        x = int(change.apply(x))
    return x


def _filters(draw: random.Random) -> list[_Part]:
    k = draw.randint(-5, 9)
    return [
        _Part("the even ones", "x % 2 == 0", lambda x: x % 2 == 0),
        _Part("the odd ones", "x % 2 == 1", lambda x: x % 2 == 1),
        _Part(f"those above {k}", f"x > {k}", lambda x: x > k),
        _Part(f"those below {k}", f"x < {k}", lambda x: x < k),
        _Part("all of them", "True", lambda x: True),
    ]


def _changes(draw: random.Random) -> list[_Part]:
    k = draw.randint(2, 9)
    return [
        _Part("squares each of them", "x * x", lambda x: x * x),
        _Part(f"adds {k} to each of them", f"x + {k}", lambda x: x + k),
        _Part(f"multiplies each of them by {k}", f"x * {k}", lambda x: x * k),
        _Part("takes the absolute value of each", "abs(x)", abs),
        _Part("changes the sign of each", "-x", lambda x: -x),
    ]


ENDS: tuple[tuple[str, str, Callable[[list[int]], object]], ...] = (
    ("their sum", "sum(found)", sum),
    ("how many there are", "len(found)", len),
    ("the largest, or 0 if there is none", "max(found, default=0)", lambda found: max(found, default=0)),
    ("them in ascending order", "sorted(found)", sorted),
    ("them in reverse order", "found[::-1]", lambda found: found[::-1]),
)
MATHEMATICS = (_sum, _story, _equation, _share, _remainder)
GENERAL = (_sorted_words, _placed_word, _letters, _weekday, _tallest)
SUBJECTS: dict[str, Callable[[random.Random], Exercise]] = {"mathematics": _mathematics, "general": _general, "code": _code}
