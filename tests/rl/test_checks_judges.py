"""The check of the data by the recipe's own judges: what nobody could learn from is named before anything is rented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windtunnel.check import CheckFailed, Evidence
from windtunnel.rehearse.context import Context
from windtunnel.rl.checks import asks_prompts, judges
from windtunnel.verify.checks import loads

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 200, "max_position_embeddings": 64, "tie_word_embeddings": True, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
RECIPE = """
name: asked
model: {kind: huggingface, config: tiny.json, sequence: 256}
data: {corpus: {kind: prompts, files: [prompts.jsonl]}, tokenizer: {kind: character}, validation: 0.1}
stages:
  rl: {prompts: 4, samples: 4, prompt_tokens: 128, answer_tokens: 16, budget: {steps: 2}}
"""
GSM8K = "First 2 and {0}.\nThat makes {0}.\n#### {0}"
BOXED: list[dict[str, Any]] = [{"kind": "math", "where": "boxed"}]
FUNCTIONS = """
def good(completions, nums, ground_truth, **kwargs):
    return [float(nums[0] > 0 and ground_truth[0] in completions[0])]

def named(completions, golden_answers, **kwargs):
    return [float(any(one in completions[0] for one in golden_answers[0]))]

def lost(completions, tests):
    return [1.0]

def breaks(prompt, answer, truth):
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    (tmp_path / "asked.yaml").write_text(RECIPE)
    (tmp_path / "rewards.py").write_text(FUNCTIONS)


def check(record: dict[str, Any], rewards: list[dict[str, Any]], odd: dict[str, Any] | None = None) -> Evidence:
    """Judge data of 40 such records, each with its number; the first odd ones in between."""
    rows = [json.loads(json.dumps(record).replace("{0}", str(number))) for number in range(1, 41)]
    rows = [row | (odd if odd is not None and at % 2 else {}) for at, row in enumerate(rows)]
    Path("prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    context = Context("asked.yaml", (f"stages.rl.rewards={json.dumps(rewards)}",), ("H100",), Path("work"))
    assert asks_prompts(context)
    return judges(context, lambda text: None)


@pytest.mark.parametrize(
    "record",
    [
        {"question": "How much is {0}?", "answer": GSM8K},
        {"prompt": [{"role": "user", "content": "How much is {0}?"}], "reward_model": {"style": "rule", "ground_truth": "{0}"}},
    ],
)
def test_right_answers_of_public_data_are_accepted(record: dict[str, Any]) -> None:
    found = check(record, BOXED)
    assert found.facts == {"accepted": 3, "refused": 4}
    assert not found.warnings


def function(name: str) -> dict[str, Any]:
    """Return a judge of the file."""
    return {"kind": "function", "function": f"rewards.py:{name}"}


ASKED = {"question": "How much is {0}?", "answer": "{0}"}


@pytest.mark.parametrize(
    ("record", "rewards", "message", "fix"),
    [
        ({"question": "{0}?", "result": {"is": "{0}"}}, BOXED, "has no answer, which rewards of kind math need", "result.is"),
        (ASKED | {"answer": "a proof of {"}, BOXED, "nothing is known: math task", "answer_key"),
        (ASKED, [BOXED[0] | {"of": "mathematics"}], "whose record has no subject", "without `of`"),
        ({"question": "{0}?", "nums": [1]}, [function("lost")], "'tests' is none .*: answer, nums, solution", "nums"),
        (ASKED, [*BOXED, function("breaks")], r"rewards\.py:breaks: of an answer .* ZeroDivisionError", ""),
        ({"question": "{0}?", "tests": "none"}, [{"kind": "code", "key": "tests"}], "nothing is known: there is no", "tests"),
    ],
)
def test_what_nobody_could_learn_from_is_named(
    record: dict[str, Any], rewards: list[dict[str, Any]], message: str, fix: str
) -> None:
    with pytest.raises(CheckFailed, match=message) as caught:
        check(record, rewards)
    assert fix in (caught.value.fix or "")


def test_functions_of_the_list_are_tried_with_the_columns_of_the_data() -> None:
    record = {"question": "How much is {0}?", "answer": GSM8K, "nums": 3}
    found = check(record, [function("good")])
    assert found.facts == {"accepted": 3, "refused": 4}
    found = check({"question": "Who is {0}?", "golden_answers": ["A {0}", "B {0}"]}, [function("named")])
    assert found.facts == {"accepted": 3, "refused": 4}


def test_the_checks_of_one_reward_give_it_the_columns_of_the_data(tmp_path: Path) -> None:
    check({"question": "How much is {0}?", "answer": "{0}", "nums": 3}, BOXED)
    tried = {}
    for name in ("good", "lost"):
        context = Context("asked.yaml", (f"stages.rl.reward=rewards.py:{name}",), ("H100",), tmp_path)
        try:
            tried[name] = loads(context, lambda text: None).text
        except CheckFailed as error:
            tried[name] = str(error)
    assert "imported" in tried["good"]
    assert "'tests' is none of those that are known; columns of the record: nums" in tried["lost"]


def test_a_few_records_that_nobody_can_judge_are_a_warning() -> None:
    found = check({"question": "How much is {0}?", "answer": "{0}"}, BOXED, {"answer": "a proof of {"})
    assert 0 < found.facts["accepted"] < 3
    assert "nothing is known" in found.warnings[0]
