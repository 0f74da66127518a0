"""Near copies: what MinHash finds against every pair compared word by word."""

from __future__ import annotations

import random

import pytest

from windtunnel.data.near_copies import SIMILAR, NearCopies, jaccard, trigrams

WORDS = [f"word{i}" for i in range(400)]


def changed(text: str, words: int, drawn: random.Random) -> str:
    said = text.split()
    for at in drawn.sample(range(len(said)), words):
        said[at] = drawn.choice(WORDS)
    return " ".join(said)


def test_trigrams_and_similarity_by_hand() -> None:
    assert trigrams("A b  C d") == {("a", "b", "c"), ("b", "c", "d")}
    assert jaccard("a b c d", "a b c e") == 1 / 3
    assert jaccard("a b", "A  B") == 1.0
    assert jaccard("a b c", "x y z") == 0.0


@pytest.mark.end_to_end
def test_what_is_found_is_what_comparing_every_pair_finds() -> None:
    drawn = random.Random(1)
    train = [" ".join(drawn.choices(WORDS, k=drawn.randint(20, 90))) for _ in range(1500)]
    held = [changed(drawn.choice(train), drawn.randint(0, 6), drawn) for _ in range(150)]
    held += [" ".join(drawn.choices(WORDS, k=50)) for _ in range(150)]
    finder = NearCopies(held)
    finder.compare(train[:700])
    finder.compare(train[700:])
    near = {number for number, text in enumerate(held) if max(jaccard(text, other) for other in train) >= SIMILAR}
    assert len(near) > 30
    assert set(finder.found) <= near
    assert len(near - set(finder.found)) <= 1  # 998 of 1,000 are found
    for number, (other, similarity) in finder.found.items():
        assert similarity == jaccard(held[number], train[other]) >= SIMILAR


def test_boilerplate_and_short_texts_cost_no_more_than_a_few_comparisons() -> None:
    held = ["the same sentence stands in every one of these texts, number " + str(i % 7) for i in range(3000)]
    finder = NearCopies([*held, "BUY", "", "one two"])
    finder.compare([*held, "buy", "", "one two three"])
    assert len(finder.found) >= 3002
    assert 3002 not in finder.found
    assert finder.found[3000][1] == 1.0
    assert NearCopies([]).found == {}


def test_a_copy_is_found_behind_any_number_of_texts_that_only_share_a_paragraph() -> None:
    drawn = random.Random(3)
    paragraph = " ".join(drawn.choices(WORDS, k=45))

    def text() -> str:
        return f"{paragraph} {' '.join(drawn.choices(WORDS, k=60))}"

    held = [text() for _ in range(20)]
    finder = NearCopies(held)
    finder.compare([text() for _ in range(3000)])
    assert finder.found == {}
    finder.compare([changed(one, 2, drawn) for one in held])
    near = {i for i, (other, similarity) in finder.found.items() if other == 3000 + i and similarity >= SIMILAR}
    assert len(near) >= 19


def test_a_copy_is_found_behind_many_texts_of_one_template() -> None:
    """Written by one model, theses share most of their words: each is a candidate, and few of them are copies."""
    drawn = random.Random(2)
    template = " ".join(drawn.choices(WORDS, k=100))
    held = [changed(template, 7, drawn) for _ in range(40)]
    train = [changed(template, 7, drawn) for _ in range(400)] + [changed(text, 1, drawn) for text in held]
    assert max(jaccard(held[0], other) for other in train[:400]) < SIMILAR
    finder = NearCopies(held)
    finder.compare(train)
    assert len(finder.found) >= 38
