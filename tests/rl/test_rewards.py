"""Judges of a recipe: several at once, with weights, by one interface; what fails is asked again and never worth 0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from runs import new_run, series

from windtunnel.checkpoint import CheckpointStore
from windtunnel.data import Prompt
from windtunnel.evaluate import Completion
from windtunnel.recipe import GRPO, UserError
from windtunnel.rl import Reward, Rewards, train_policy
from windtunnel.rl.cross_check import CrossChecks
from windtunnel.rl.judges import EarlyJudging, PromptQuestion
from windtunnel.verify import find_reward, selftest
from windtunnel.verify.probes import PROBES
from windtunnel.verify.reward_process import HUNG_IN_ROW


def prompt(answer: Any = "1/2", **data: Any) -> Prompt:
    """Return a prompt with its right answer."""
    return Prompt(0, np.array([1, 2]), "What is a half?", answer, data)


def judged(stage: GRPO, one: Prompt, *answers: str) -> list[Reward]:
    """Return the rewards of answers."""
    with Rewards(stage) as rewards:
        verifiers = rewards.verifiers(one)
        return [judging.result() for judging in [rewards.begin(verifiers, answer) for answer in answers]]


@pytest.fixture(scope="module")
def both() -> Iterator[Rewards]:
    """Mathematics, and a bonus for the form."""
    sources = [
        {"kind": "math", "where": "boxed"},
        {"kind": "format", "task": {"tags": ["think"], "boxed": True}, "weight": 0.2},
    ]
    with Rewards(GRPO(name="rl", rewards=sources)) as rewards:  # type: ignore[arg-type]
        yield rewards


@pytest.mark.parametrize(
    ("answer", "total", "right"),
    [
        ("<think>2/4</think> \\boxed{0.5}", 1.2, True),
        ("\\boxed{\\frac{1}{2}}", 1.0, True),
        ("<think>hm</think> \\boxed{2}", 0.2, False),
        ("a half", 0.0, False),
    ],
)
def test_sources_add_up_by_their_weights_and_the_first_says_what_is_right(
    both: Rewards, answer: str, total: float, right: bool
) -> None:
    found = both.begin(both.verifiers(prompt()), answer).result()
    assert found.total == pytest.approx(total)
    assert found.accepted is right


def test_held_out_prompts_are_judged_as_in_training(both: Rewards) -> None:
    questions = [PromptQuestion((1, 2), "?", "1/2", source=prompt()) for _ in range(3)]
    said = [Completion("\\boxed{0.5}", False), Completion("\\boxed{3}", True), Completion("", False, "no memory")]
    found = both.judge(questions, said)
    assert (found.right, found.n, found.unknown, found.cut) == (1, 2, 1, 1)
    assert found.score == pytest.approx(0.5)


def test_code_is_judged_by_the_tests_of_the_prompts_record() -> None:
    stage = GRPO(name="rl", rewards=[{"kind": "code", "key": "tests"}])  # type: ignore[list-item]
    one = prompt(None, tests='{"asserts": "assert half(4) == 2\\nassert half(1) == 0.5"}')
    good, bad = judged(stage, one, "```python\ndef half(x):\n    return x / 2\n```", "def half(x):\n    return x // 2\n")
    assert (good.total, good.accepted) == (1.0, True)
    assert bad.accepted is False


def test_a_prompt_without_what_a_judge_needs_is_unknown() -> None:
    stage = GRPO(name="rl", rewards=[{"kind": "exact"}])  # type: ignore[list-item]
    (found,) = judged(stage, prompt(None), "1/2")
    assert (found.total, found.accepted) == (None, None)
    assert "no answer" in found.message


def test_a_function_that_fails_once_is_asked_again_and_one_that_always_fails_is_unknown(tmp_path: Path) -> None:
    mark = tmp_path / "asked"
    source = (
        "import pathlib\n"
        "def once(prompt, answer, truth):\n"
        f"    mark = pathlib.Path({str(mark)!r})\n"
        "    if not mark.exists():\n"
        "        mark.touch()\n"
        "        raise OSError('the disk is away')\n"
        "    return 0.75 if answer == truth else 0.0\n"
        "def never(prompt, answer, truth):\n"
        "    raise OSError('the disk is away')\n"
    )
    (tmp_path / "reward.py").write_text(source)
    (found,) = judged(GRPO(name="rl", reward=f"{tmp_path / 'reward.py'}:once"), prompt(), "1/2")
    assert (found.total, found.accepted, found.asked_again) == (0.75, True, 1)
    sources: Any = [{"kind": "exact"}, {"kind": "function", "function": f"{tmp_path / 'reward.py'}:never", "weight": 0.1}]
    (found,) = judged(GRPO(name="rl", rewards=sources, retries=1), prompt(), "1/2")
    assert found.total is None
    assert found.parts == (1.0, None)
    assert found.accepted is True
    assert found.asked_again == 1


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UserError, match="nothing judges"):
        Rewards(GRPO(name="rl"))
    for wrong in (
        {"kind": "format"},
        {"kind": "function"},
        {"kind": "math", "task": {"boxed": True}},
        {"kind": "math", "weight": 0},
    ):
        with pytest.raises(ValueError, match="rewards"):
            GRPO(name="rl", rewards=[wrong])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="reference"):
        GRPO(name="rl", kl=0.1)


def test_a_source_judges_the_prompts_of_its_subject_alone_with_its_own_weight() -> None:
    sources = [
        {"kind": "math", "of": "mathematics", "weight": 10.0},
        {"kind": "exact", "of": "general"},
        {"kind": "format", "task": {"boxed": True}, "weight": 2.0},
    ]
    with Rewards(GRPO(name="rl", rewards=sources)) as rewards:  # type: ignore[arg-type]

        def judge(one: Prompt, answer: str) -> Reward:
            return rewards.begin(rewards.verifiers(one), answer).result()

        sums = judge(prompt("4", subject="mathematics"), "\\boxed{4}")
        assert (sums.total, sums.parts, sums.accepted) == (12.0, (1.0, None, 1.0), True)
        words = judge(prompt("yes", subject="general"), "yes")
        assert (words.total, words.parts, words.accepted) == (1.0, (None, 1.0, 0.0), True)


def test_of_a_prompt_that_no_source_judges_nothing_is_known_and_it_is_named() -> None:
    stage = GRPO(name="rl", rewards=[{"kind": "math", "of": "mathematics"}])  # type: ignore[list-item]
    (other,) = judged(stage, prompt("4", subject="law"), "4")
    (none,) = judged(stage, prompt("4"), "4")
    assert (other.total, other.accepted, none.total) == (None, None, None)
    assert "'law'" in other.message
    assert "no subject" in none.message


def test_what_judges_print_and_why_they_fail_is_in_their_log(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(
        "def score(prompt, answer, truth):\n    print('judging', answer)\n"
        "    if answer == 'bad':\n        raise KeyError('lost')\n"
        "    return 1.0\n"
    )
    log = tmp_path / "logs" / "judges-0.log"
    with Rewards(GRPO(name="rl", reward=f"{tmp_path / 'reward.py'}:score", retries=1), log) as rewards:
        verifiers = rewards.verifiers(prompt())
        assert rewards.begin(verifiers, "good").result().total == 1.0
        assert rewards.begin(verifiers, "bad").result().total is None
    text = log.read_text()
    assert text.count("judging good") == 1
    assert text.count("judging bad") == 2
    assert text.count("function failed: ") == 1
    assert "KeyError" in text


def test_a_judge_that_hangs_is_not_asked_for_every_answer(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("import time\ndef score(prompt, answer, truth):\n    time.sleep(1000)\n")
    with find_reward(f"{tmp_path / 'reward.py'}:score", "stages.rl.reward").open(tmp_path, call_seconds=0.05) as process:
        replies = [process.call("?", "!", None) for _ in range(3 * HUNG_IN_ROW)]
        assert process.starts == HUNG_IN_ROW
    assert [reply.ended for reply in replies] == ["hung"] * HUNG_IN_ROW + [""] * 2 * HUNG_IN_ROW
    assert all(reply.value is None for reply in replies)
    assert replies[-1].problem == f"it was not called: {HUNG_IN_ROW} calls in a row did not come back within 0.05 s"


def test_a_judge_that_refuses_what_is_right_ends_the_stage_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = [replace(one, answer="no function") if one.kind == "code" and one.right else one for one in PROBES]
    monkeypatch.setattr(selftest, "PROBES", spoilt)
    judges = "stages.rl.rewards=[{kind: exact}, {kind: code, key: tests}]"
    run = new_run(tmp_path, "stages.rl.reward=null", judges)
    with pytest.raises(UserError, match=r"stages\.rl\.rewards\.1: verifiers of kind code do not work on this machine") as error:
        train_policy(run)
    assert error.value.exit_code == 1
    assert "windtunnel verify selftest" in (error.value.fix or "")
    assert series(run, "answers_reward") == {}  # not even step 0 was asked
    assert CheckpointStore(run / "checkpoints").all() == []


@pytest.mark.parametrize(
    ("speed", "timed", "against"), [(False, False, ()), (True, False, ("eager",)), (False, True, ("eager",))]
)
def test_kernels_are_timed_only_where_somebody_asks_for_speed(
    speed: bool, timed: bool, against: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock has the GPU to itself, and compiling a reference takes seconds a task."""
    monkeypatch.setattr("windtunnel.rl.rewards.require_working", lambda *_: None)
    sources = [{"kind": "kernel", "key": "task"}] + [{"kind": "kernel", "key": "task", "speed": True}] * speed
    with Rewards(GRPO(name="rl", rewards=sources), timed=timed) as rewards:  # type: ignore[arg-type]
        assert rewards.timed_against == against


def test_whoever_waits_for_a_slow_judge_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    (tmp_path / "reward.py").write_text(
        f"import pathlib, time\ndef score(prompt, answer, truth):\n    while not pathlib.Path({str(go)!r}).exists():\n"
        "        time.sleep(0.01)\n    return 1.0\n"
    )
    monkeypatch.setattr("windtunnel.rl.judges.SIGN_SECONDS", 0.02)
    signs: list[int] = []

    def waiting() -> None:
        signs.append(len(signs))
        if len(signs) == 3:
            go.touch()

    with Rewards(GRPO(name="rl", reward=f"{tmp_path / 'reward.py'}:score")) as rewards:
        rewards.waiting = waiting
        verifiers = rewards.verifiers(prompt())
        assert rewards.begin(verifiers, "1").result().total == 1.0
    assert len(signs) >= 3


COUNTED = """
def counted(prompt, answer, truth):
    with open({log!r}, "a") as log:
        log.write(answer + "\\n")
    return float(answer == truth)
"""


def test_equal_answers_to_one_prompt_are_judged_once(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    (tmp_path / "rewards.py").write_text(COUNTED.format(log=str(log)))
    asked = [Prompt(number, np.array([1]), "prompt", "7", {}) for number in range(2)]
    stage = GRPO(name="rl", reward=f"{tmp_path / 'rewards.py'}:counted", samples=3)
    with Rewards(stage) as rewards, ThreadPoolExecutor(1) as threads:
        judged = CrossChecks(rewards, threads, asked, lambda place: False)
        found = judged.results(["7", "8", "7", "7", None, "9"], least=False)
    assert [None if one is None else one.total for one in found] == [1.0, 0.0, 1.0, 1.0, None, 0.0]
    assert sorted(log.read_text().split()) == ["7", "7", "8", "9"]


def test_answers_that_end_together_get_their_texts_together_and_each_is_judged_once() -> None:
    batches, begun, first, gone = list[int](), list[tuple[int, str]](), Event(), Event()

    def decode(many: Sequence[Sequence[int]]) -> list[str]:
        batches.append(len(many))
        first.set()
        assert gone.wait(60)
        return [" ".join(map(str, tokens)) for tokens in many]

    with EarlyJudging(decode, lambda place, text: begun.append((place, text))) as ending:
        ending.add(7, [1, 2])
        assert first.wait(60)
        for place in range(5):  # while the first one's text is being made
            ending.add(place, [place])
        gone.set()
    assert batches == [1, 5]
    assert begun == [(7, "1 2"), *((place, str(place)) for place in range(5))]
    assert ending.texts == dict(begun)


def test_a_text_that_cannot_be_made_leaves_the_others_theirs() -> None:
    def decode(many: Sequence[Sequence[int]]) -> list[str]:
        if [9] in many:
            raise ValueError("token id 9 is outside the vocabulary")
        return ["text"] * len(many)

    begun = list[int]()
    with EarlyJudging(decode, lambda place, text: begun.append(place)) as ending:
        ending.add(0, [9])
    with EarlyJudging(decode, lambda place, text: begun.append(place)) as ending:
        ending.add(1, [1])
    assert (begun, ending.texts) == ([1], {1: "text"})


@pytest.mark.parametrize(
    ("right", "answer"),
    [
        ("Half of 100 is <<100/2=50>>50.\nAnd 8 less is 42.\n#### 42", "42"),  # GSM8K
        ("We see $x = 2$, so that it is $\\boxed{\\frac{1}{2}}$, as $y = 3$.", "\\frac{1}{2}"),  # MATH
        ("1,042", "1042"),
    ],
)
def test_a_solution_that_is_written_out_is_compared_by_its_end(tmp_path: Path, right: str, answer: str) -> None:
    (tmp_path / "r.py").write_text(
        "def same(solution_str, ground_truth):\n    return float(solution_str == ground_truth)\n"
        "def whole(completions, answer, **kwargs):\n    return [float(c == a) for c, a in zip(completions, answer)]\n"
    )
    math = GRPO(name="rl", rewards=[{"kind": "math", "where": "boxed"}])  # type: ignore[list-item]
    found = judged(math, prompt(right), f"So \\boxed{{{answer}}}", "So \\boxed{2}", "So \\boxed{3}")
    assert [one.total for one in found] == [1.0, 0.0, 0.0]
    if "," not in right:
        function = GRPO(name="rl", rewards=[{"kind": "function", "function": f"{tmp_path / 'r.py'}:same"}])  # type: ignore[list-item]
        assert [one.total for one in judged(function, prompt(right), answer, "7")] == [1.0, 0.0]
    whole = GRPO(name="rl", rewards=[{"kind": "function", "function": f"{tmp_path / 'r.py'}:whole"}])  # type: ignore[list-item]
    assert [one.total for one in judged(whole, prompt(right), right, "7")] == [1.0, 0.0], "a column as the data have it"


def test_judges_read_keys_within_the_record_and_functions_its_columns(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("def near(completion, limits):\n    return float(limits['least'] <= float(completion))\n")
    one = prompt(None, check='{"right": "0.5"}', limits={"least": 3})
    exact = GRPO(name="rl", rewards=[{"kind": "exact", "key": "check.right"}])  # type: ignore[list-item]
    assert [reward.total for reward in judged(exact, one, "0.5", "0.6")] == [1.0, 0.0]
    function = GRPO(name="rl", rewards=[{"kind": "function", "function": f"{tmp_path / 'r.py'}:near"}])  # type: ignore[list-item]
    assert [reward.total for reward in judged(function, one, "4", "2")] == [1.0, 0.0]


PAIRS: list[dict[str, Any]] = [{"input": "2\n", "output": "3\n"}, {"input": "5\n", "output": "6\n"}]
PROGRAM, WRONG_PROGRAM = "print(int(input()) + 1)", "print(int(input()) + 2)"
FUNCTION, WRONG_FUNCTION = "def add(x):\n    return x + 1", "def add(x):\n    return x + 2"
CHECK = "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert candidate(5) == 6\n"


@pytest.mark.parametrize(
    ("tests", "more", "program"),
    [
        (json.dumps([one | {"testtype": "stdin"} for one in PAIRS]), {}, True),
        ({"language": "python", "test_cases": [one | {"type": "stdin_stdout", "fn_name": None} for one in PAIRS]}, {}, True),
        (json.dumps({"inputs": ["2\n"], "outputs": ["3\n"]}), {}, True),
        (["assert add(1) == 2", "assert add(5) == 6"], {"test_setup_code": "import math"}, False),
        (CHECK, {"entry_point": "add"}, False),
        ([{"input": "1", "output": "2", "testtype": "functional", "metadata": {"func_name": "add"}}], {}, False),
        ({"test_cases": [{"type": "function_call", "fn_name": "add", "input": "[1]", "output": "[2]"}]}, {}, False),
    ],
)
def test_tests_are_read_as_public_data_keep_them(tests: Any, more: dict[str, Any], program: bool) -> None:
    stage = GRPO(name="rl", rewards=[{"kind": "code", "key": "tests"}])  # type: ignore[list-item]
    right, wrong = (PROGRAM, WRONG_PROGRAM) if program else (FUNCTION, WRONG_FUNCTION)
    found = judged(stage, prompt(None, tests=tests, **more), f"```python\n{right}\n```", f"```python\n{wrong}\n```")
    assert [one.total for one in found] == [1.0, 0.0], [one.message for one in found]


def test_tests_in_another_language_are_not_run_as_python() -> None:
    stage = GRPO(name="rl", rewards=[{"kind": "code"}])  # type: ignore[list-item]
    (found,) = judged(stage, prompt({"language": "cpp", "test_cases": PAIRS}), PROGRAM)
    assert found.total is None
