"""Prompts with answers: read from every format, generated, kept with their data, and loaded in groups."""

from __future__ import annotations

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
