"""Prompts with answers: read from every format, generated, kept with their data, and loaded in groups."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from windtunnel.data import PromptFile, PromptLoader, prepare, solve
from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe
from windtunnel.recipe import (
    ArithmeticCorpus,
    BPETokenizer,
    CharacterTokenizer,
    FolderTokenizer,
    PromptCorpus,
    Recipe,
    UserError,
    load_recipe,
)

RECORDS = [{"question": f"How much is {i} + {i}?", "answer": str(2 * i), "level": i % 3, "tags": ["sum"]} for i in range(120)]


def recipe(tokenizer: Any, **corpus: Any) -> Recipe:
    charlm = load_recipe("charlm")
    data = charlm.data.model_copy(update={"corpus": PromptCorpus(**corpus), "tokenizer": tokenizer, "validation": 0.2})
    return charlm.model_copy(update={"data": data})


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def files(prepared: Any) -> list[PromptFile]:
    assert isinstance(prepared.train, PromptFile)
    assert isinstance(prepared.validation, PromptFile)
    return [prepared.train, prepared.validation]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_every_prompt_keeps_its_answer_and_data(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p.{suffix}"
    if suffix == "jsonl":
        lines(path, RECORDS)
    else:
        parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)
    made = prepare(recipe(CharacterTokenizer(), files=[str(path)]), tmp_path / "cache")
    found = [file.prompt(i) for file in files(made) for i in range(file.samples)]
    by_text = {p.prompt: p for p in found}
    assert len(by_text) == len(RECORDS)
    for record in RECORDS:
        prompt = by_text[record["question"]]  # type: ignore[index]
        assert (prompt.answer, prompt.data) == (record["answer"], {"level": record["level"], "tags": ["sum"]})
        assert made.tokenizer.decode(prompt.ids) == record["question"]
        assert prompt.ids[0] == made.tokenizer.bos


def test_groups_are_the_same_for_any_ranks_and_after_resuming(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", RECORDS)
    file = files(prepare(recipe(CharacterTokenizer(), files=[str(path)]), tmp_path / "cache"))[0]
    one = PromptLoader(file, prompts=8, seed=3)
    alone = [[p.number for p in one.next_group()] for _ in range(40)]
    ranks = [PromptLoader(file, prompts=8, seed=3, rank=r, world=4) for r in range(4)]
    assert [[p.number for rank in ranks for p in rank.next_group()] for _ in range(40)] == alone
    late = PromptLoader(file, prompts=8, seed=3, position=8 * 15)
    assert [[p.number for p in late.next_group()] for _ in range(25)] == alone[15:]
    visited = [number for group in alone for number in group][: file.samples]
    assert sorted(visited) == list(range(file.samples))
    assert one.epochs == pytest.approx(320 / file.samples)
    with pytest.raises(UserError, match="cannot be shared by 3 ranks"):
        PromptLoader(file, prompts=8, seed=3, world=3)


def test_generated_sums_have_exact_answers(tmp_path: Path) -> None:
    sums = ArithmeticCorpus(documents=300, digits=2)
    plain = prepare(recipe(CharacterTokenizer(), arithmetic=sums), tmp_path / "cache")
    for file in files(plain):
        for i in range(file.samples):
            prompt = file.prompt(i)
            assert isinstance(prompt.prompt, str)
            assert prompt.prompt.startswith("H")
            assert solve(prompt.prompt[1:-1]) == prompt.answer
    chat = prepare(recipe(BPETokenizer(vocab_size=300), arithmetic=sums, template="chatml", system="Count."), tmp_path / "cache")
    prompt = files(chat)[0].prompt(0)
    assert isinstance(prompt.prompt, str)
    assert solve(prompt.prompt.split("?")[0].split(" is ")[1]) == prompt.answer
    assert [chat.tokenizer.piece(int(i)) for i in prompt.ids[-3:]][-1] == b"\n"
    assert prepare(recipe(CharacterTokenizer(), arithmetic=sums), tmp_path / "cache").reused


def test_messages_are_rendered_by_the_models_own_template(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    train_bpe(["Who are you? I am a model."] * 9, 300, (CHATML_START, CHATML_END)).save(folder / "tokenizer.json")
    template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}[go]{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": CHATML_END, "chat_template": template}))
    records = [{"messages": [{"role": "user", "content": f"Who is {i}?"}], "truth": [i]} for i in range(50)]
    path = lines(tmp_path / "p.jsonl", records)
    made = prepare(recipe(FolderTokenizer(path=str(folder)), files=[str(path)], prompt_tokens=100), tmp_path / "cache")
    prompt = files(made)[0].prompt(0)
    assert isinstance(prompt.prompt, list)
    assert made.tokenizer.decode(prompt.ids) == f"[user]{prompt.prompt[0]['content']}[go]"
    assert prompt.answer == [int(prompt.prompt[0]["content"].split()[-1][:-1])]
    with pytest.raises(UserError, match="split is empty"):
        prepare(recipe(FolderTokenizer(path=str(folder)), files=[str(path)], prompt_tokens=3), tmp_path / "cache")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "x"}, r"p\.jsonl:2: no key with a prompt .*it has text"),
        ({"question": " ", "answer": "1"}, r"p\.jsonl:2: question is str, expected text or messages, and not empty"),
        ({"question": "cut \ud83d", "answer": "1"}, r"p\.jsonl:2: question has \\ud83d at character offset 4: half of"),
        ({"question": "x"}, r"p\.jsonl:2: it has no answer, and the records before have one"),
        ({"prompt": [{"role": "bot", "content": "x"}], "answer": 1}, r"p\.jsonl:2: prompt: unknown role 'bot'"),
        ({"prompt": [{"role": "assistant", "content": "x"}], "answer": 1}, "nothing is asked"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    path = lines(tmp_path / "p.jsonl", [RECORDS[0], record])
    with pytest.raises(UserError, match=message):
        prepare(recipe(CharacterTokenizer(), files=[str(path)]), tmp_path / "cache")


def test_another_right_answer_is_other_data(tmp_path: Path) -> None:
    made = {}
    for changed in ({}, {"answer": "seven"}, {"level": 9}):
        records = [record | (changed if number == 7 else {}) for number, record in enumerate(RECORDS)]
        path = lines(tmp_path / "p.jsonl", records)
        made[str(changed)] = prepare(recipe(CharacterTokenizer(), files=[str(path)]), tmp_path / "cache").checksum
    assert len(set(made.values())) == 3


def test_damaged_records_are_found(tmp_path: Path) -> None:
    wanted = recipe(CharacterTokenizer(), files=[str(lines(tmp_path / "p.jsonl", RECORDS))])
    made = prepare(wanted, tmp_path / "cache")
    path = files(made)[0].records_path
    path.write_text(path.read_text().replace("How much", "How mush"))
    assert not prepare(wanted, tmp_path / "cache").reused


ASKED = [{"role": "user", "content": "How much?"}]


@pytest.mark.parametrize(
    ("record", "prompt", "answer"),
    [
        ({"prompt": ASKED, "reward_model": {"ground_truth": "4"}, "extra_info": {"answer": "#### 4"}}, ASKED, "4"),
        ({"prompt": ASKED, "reward_spec": {"ground_truth": "4"}}, ASKED, "4"),
        ({"prompt": "How much?", "verification_info": '{"ground_truth": "4"}', "solution": "It is 4."}, "How much?", "4"),
        ({"messages": json.dumps(ASKED), "ground_truth": "4"}, ASKED, "4"),
        ({"conversations": [{"from": "human", "value": "How much?"}], "label": 4}, ASKED, 4),
        ({"Problem": "How much?", "Answer": 4, "Solution": "long"}, "How much?", 4),
        ({"messages": [*ASKED, {"role": "assistant", "content": "4"}], "problem": "How much?", "answer": "4"}, "How much?", "4"),
        ({"prompt": ASKED, "reward_model": {"ground_truth": '["4"]'}}, ASKED, "4"),
        ({"question": "Who?", "golden_answers": ["A", "B"]}, "Who?", ["A", "B"]),
        ({"question": "Who?", "reward_model": {"ground_truth": {"target": ["A", "B"]}}}, "Who?", ["A", "B"]),
        ({"question": "24?", "reward_model": {"ground_truth": {"target": 24, "nums": [4]}}}, "24?", {"target": 24, "nums": [4]}),
        ({"question": "[1, 2] has how many?", "answer": "[2, 3]"}, "[1, 2] has how many?", "[2, 3]"),
    ],
)  # fmt: skip
def test_prompts_and_answers_are_found_where_public_data_keep_them(tmp_path: Path, record: Any, prompt: Any, answer: Any) -> None:
    made = prepare(recipe(CharacterTokenizer(), files=[str(spread(tmp_path, record))]), tmp_path / "cache")
    found = files(made)[0].prompt(0)
    number = found.data["id"]
    assert json.dumps(found.prompt) == json.dumps(prompt).replace("?", f"? {number}")
    assert found.answer == answer
    assert any("right answers: " in note for note in made.notes)


def spread(folder: Path, record: dict[str, Any]) -> Path:
    """Write many records that ask different things, each with its number."""
    texts = [json.dumps(record).replace("?", f"? {number}") for number in range(40)]
    return lines(folder / "p.jsonl", [json.loads(text) | {"id": number} for number, text in enumerate(texts)])


def test_nested_keys_are_named_with_a_dot(tmp_path: Path) -> None:
    path = spread(tmp_path, {"task": {"question": "How much?"}, "checks": '{"right": {"number": 4}}'})
    keys = {"prompt_key": "task.question", "answer_key": "checks.right.number"}
    found = files(prepare(recipe(CharacterTokenizer(), files=[str(path)], **keys), tmp_path / "cache"))[0].prompt(0)
    assert (found.prompt, found.answer) == (f"How much? {found.data['id']}", 4)
    with pytest.raises(UserError, match=r"no key 'checks\.wrong' with the answer") as caught:
        prepare(recipe(CharacterTokenizer(), files=[str(path)], **keys | {"answer_key": "checks.wrong"}), tmp_path / "cache")
    assert "it has checks.right, id, task.question" in (caught.value.fix or "")


def test_columns_that_json_cannot_hold_are_written_as_text_and_images_refused(tmp_path: Path) -> None:
    rows = [{"question": f"When is {n}?", "answer": "1", "held": datetime.date(2024, 5, 1 + n % 20)} for n in range(40)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    made = prepare(recipe(CharacterTokenizer(), files=[str(tmp_path / "p.parquet")]), tmp_path / "cache")
    assert files(made)[0].prompt(0).data["held"].startswith("2024-05-")
    images = [row | {"images": [{"bytes": b"PNG", "path": None}]} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(images), tmp_path / "i.parquet")
    with pytest.raises(UserError, match=r"i\.parquet:1: images\.bytes holds 3 bytes, such as an image"):
        prepare(recipe(CharacterTokenizer(), files=[str(tmp_path / "i.parquet")]), tmp_path / "cache")
