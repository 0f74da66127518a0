"""Rewards written for other trainers are called as those call them, and what cannot be filled is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.verify.reward_process import Reply, RewardProcess

SEEN = """
def seen(value):
    return float({"q": 1, "a": 2, "t": 3}[value])
"""


def called(folder: Path, source: str, function: str = "reward") -> Reply:
    """Return what a reward makes of the prompt q, the answer a and the truth t."""
    file = folder / "rewards.py"
    file.write_text(SEEN + source, encoding="utf-8")
    with RewardProcess(file, function, folder) as process:
        return process.call("q", "a", "t")


@pytest.mark.parametrize(
    "parameters",
    [
        "prompt, answer, truth", "prompt, answer, truth=None", "question, answer, truth=None", "q, pred, wanted=None", "*all",
        "answer, truth", "answer, ground_truth", "solution_str, ground_truth", "solution_str, ground_truth, method='strict'",
        "data_source, solution_str, ground_truth, extra_info=None", "completion, answer", "prompt, response, label, **more",
        "prompt, completion, unheard_of",
    ],
)  # fmt: skip
def test_each_parameter_gets_what_its_name_says(tmp_path: Path, parameters: str) -> None:
    """A digit each for the answer and the right answer: what is swapped gives another number."""
    names = [part.partition("=")[0].strip() for part in parameters.split(",")]
    if parameters == "*all":
        answer, truth = "all[1]", "all[2]"
    else:
        answer = next(n for n in names if n in ("pred", "solution_str", "completion", "response", "answer"))
        after = names[names.index(answer) + 1]
        truth = after
    found = called(tmp_path, f"def reward({parameters}):\n    return 10 * seen({answer}) + seen({truth})\n")
    assert found.value == 23, found.problem


def test_lists_are_of_one_answer_and_a_list_of_one_comes_back(tmp_path: Path) -> None:
    """TRL's."""
    source = "def reward(prompts, completions, answer, **kwargs):\n    assert len(prompts) == len(answer) == 1\n"
    source += "    return [100 * seen(p) + 10 * seen(c) + seen(a) for p, c, a in zip(prompts, completions, answer)]\n"
    assert called(tmp_path, source).value == 123


def test_a_reward_that_reads_messages_gets_a_conversation(tmp_path: Path) -> None:
    """As TRL gives where prompts are conversations; the column of right answers may be among the keywords."""
    source = "def reward(completions, **kwargs):\n    said = [c[0]['content'] for c in completions]\n"
    source += "    return [10 * seen(said[0]) + seen(kwargs['solution'][0]) + (kwargs['prompts'][0][-1]['content'] != 'q')]\n"
    assert called(tmp_path, source).value == 23


def test_queries_hold_prompt_and_answer(tmp_path: Path) -> None:
    """OpenRLHF's, which returns a table of lists."""
    source = (
        "def reward(queries, prompts, labels, **kwargs):\n    return {'rewards': [float(queries == ['qa']) + seen(labels[0])]}\n"
    )
    assert called(tmp_path, source).value == 4


@pytest.mark.parametrize("returned", ["{'score': 2, 'acc': True}", "2", "{'overall': 2.0, 'format': 0}"])
def test_a_score_is_found_in_a_table(tmp_path: Path, returned: str) -> None:
    """verl's and EasyR1's; awaited where the function is asynchronous."""
    for kind in ("def", "async def"):
        assert called(tmp_path, f"{kind} reward(solution_str, ground_truth):\n    return {returned}\n").value == 2


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ("solution_str, ground_truth, budget", "budget"), ("text, ground_truth, method='strict'", "text"),
        ("completions, tests", "tests"),
    ],
)  # fmt: skip
def test_what_nothing_is_known_of_is_named_and_not_guessed(tmp_path: Path, parameters: str, named: str) -> None:
    """A wrong guess would be a wrong reward, without a word."""
    found = called(tmp_path, f"def reward({parameters}):\n    return 1.0\n")
    assert found.value is None
    assert found.signature
    assert repr(named) in found.problem


@pytest.mark.parametrize("returned", ["[1.0, 2.0]", "{'accuracy': 1.0}", "(1.0, True)", "[None]"])
def test_what_is_no_single_number_is_refused(tmp_path: Path, returned: str) -> None:
    """Which of two numbers is meant is not guessed."""
    found = called(tmp_path, f"def reward(completions, **kwargs):\n    return {returned}\n")
    assert found.value is None
    assert "not a number" in found.problem


RECORD = {"nums": [3, 4], "metadata": {"of": "sums"}, "extra_info": {"index": 7}, "data_source": "made", "solution": "3 + 4 = 7"}


@pytest.mark.parametrize(
    ("parameters", "holds"),
    [
        ("completions, target, nums, **kwargs", "(target[0], nums[0], kwargs['metadata'][0]) == (7, [3, 4], {'of': 'sums'})"),
        ("completions, answer, solution", "(answer[0], solution[0]) == (7, '3 + 4 = 7')"),
        ("data_source, solution_str, ground_truth, extra_info", "(data_source, extra_info) == ('made', {'index': ground_truth})"),
        ("prompt, completion, metadata", "(prompt, completion, metadata) == ('q', 'a', {'of': 'sums'})"),
        ("prompt, answer, truth", "(prompt, answer, truth) == ('q', 'a', '7')"),
        ("answer, truth, nums", "(answer, truth, nums) == ('a', '7', [3, 4])"),
        ("question, reply, wanted", "(question, reply, wanted) == ('q', 'a', '7')"),
    ],
)  # fmt: skip
def test_other_columns_of_the_record_reach_parameters_of_their_names(tmp_path: Path, parameters: str, holds: str) -> None:
    file = tmp_path / "rewards.py"
    value = "[float(found)]" if "completions" in parameters else "float(found)"
    file.write_text(f"def reward({parameters}):\n    found = {holds}\n    return {value}\n", encoding="utf-8")
    with RewardProcess(file, "reward", tmp_path) as process:
        assert process.call("q", "a", "7", 7, RECORD).value == 1.0


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def reward(completions, tests):\n    return [1.0]\n", encoding="utf-8")
    with RewardProcess(tmp_path / "rewards.py", "reward", tmp_path) as process:
        reply = process.call("q", "a", "7", 7, {"nums": [1], "level": 2})
    assert "its argument 'tests' is none of those that are known; columns of the record: level, nums" in reply.problem
