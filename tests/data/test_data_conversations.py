"""Conversations: formats, packing, and what is prepared of them."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from chat_folders import LIKE_SMOL, TALK, small_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windtunnel.data import (
    BatchLoader,
    ConversationFile,
    Folder,
    ValidationBatches,
    describe_packing,
    load_tokenizer,
    prepare,
    preview,
    shown_samples,
    solve,
)
from windtunnel.data.conversations import Conversation, ConversationReader
from windtunnel.data.corpus import listed_files
from windtunnel.data.packing import NO_TARGET, best_fit, pack_ids
from windtunnel.data.write import folder_tokenizer
from windtunnel.recipe import ArithmeticCorpus, BPETokenizer, ConversationCorpus, FolderTokenizer, Recipe, UserError, load_recipe

SHAREGPT = {"system": "Be brief.", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}
RECORDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
    "completion": {"prompt": "Hi", "completion": "Ho"},
    "sharegpt": SHAREGPT,
    "alpaca": {"instruction": "Hi", "input": "", "output": "Ho"},
}


def read(path: Path, **options: Any) -> tuple[list[Conversation], ConversationReader]:
    reader = ConversationReader(ConversationCorpus(files=[str(path)], **options))
    return list(reader.read(listed_files([str(path)]))), reader


@pytest.mark.parametrize("name", sorted(RECORDS))
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_formats_are_detected_and_told(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text(json.dumps(RECORDS[name]) + "\n" + json.dumps(RECORDS[name]) + "\n")
    else:
        parquet.write_table(pyarrow.Table.from_pylist([RECORDS[name]] * 2), path)
    found, reader = read(path)
    said = [(m["role"], m["content"]) for m in found[1].messages]
    assert said[-2:] == [("user", "Hi"), ("assistant", "Ho")]
    assert found[1].where == f"{path}:2"
    assert reader.format == name
    assert f"format {name}" in reader.notes()[0]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (RECORDS["alpaca"], "a record in the format alpaca, and the records before are in the format messages"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "no turn of the assistant's"),
        ({"messages": [{"role": "bot", "content": "Hi"}]}, "unknown role 'bot'"),
        ({"messages": [{"role": "user", "content": None}]}, "the user's content is null"),
        ({"messages": [{"role": "user", "content": "cut \ud83d"}]}, r"the user's content has \\ud83d at character offset 4"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a part of type 'image'"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]}, "assistant's is empty"),
        ({"messages": ["Hi"]}, "a message is str"),
        ({"text": "x"}, "it has the keys text"),
    ],
)
def test_malformed_records_are_named_or_counted(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (RECORDS["messages"], record, RECORDS["messages"])))
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{message}") as caught:
        read(path)
    assert "malformed=drop" in str(caught.value.fix)
    found, reader = read(path, malformed="drop")
    assert len(found) == 2
    assert "1 malformed records left out: " in reader.notes()[1]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_one_json_array_is_read_as_records(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps([RECORDS["alpaca"]] * 3, indent=2))
    found, reader = read(path)
    assert [one.where for one in found] == [f"{path}:{i}" for i in (1, 2, 3)]
    assert reader.format == "alpaca"
    for content, said in (("[{}, 7]", ":2: expected a JSON object, found int"), ('[{"a"', "is not JSON")):
        path.write_text(content)
        with pytest.raises(UserError, match=said):
            read(path, malformed="drop")


# Packing.


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_best_fit_packs_every_sample_once_and_never_too_full(lengths: list[int]) -> None:
    order, starts = best_fit(np.array(lengths), 20)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in order[a:b]) for a, b in itertools.pairwise(starts)]
    assert max(sums) <= 20
    assert len(sums) <= 1 + 2 * sum(lengths) // 20  # at most one pack is less than half full


def samples_file(path: Path, lengths: list[int], overlong: str = "drop", seed: int = 0) -> ConversationFile:
    """Sample i has the ids 100 i, 100 i + 1, ...; a random part of them is learned, the last one always."""
    draw = np.random.default_rng(seed)
    parts = []
    for i, length in enumerate(lengths):
        learned = draw.random(length) < 0.5
        learned[-1] = True
        parts.append(pack_ids(100 * i + np.arange(length), learned))
    np.concatenate(parts).tofile(path)
    return ConversationFile(path, "uint32", sum(lengths), 100 * len(lengths), overlong=overlong)


def loader(file: ConversationFile, sequence: int, **options: int) -> BatchLoader:
    settings = {"micro_batch": 2, "accumulation": 1, "rank": 0, "world": 1, "seed": 5} | options
    return BatchLoader(file, sequence=sequence, **settings)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(2, 24), min_size=1, max_size=40), sequence=st.integers(12, 30))
def test_packed_batches_hold_every_sample_apart(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], sequence: int
) -> None:
    """One epoch shows every sample that fits once, whole, at positions from 0, with its own targets and no other's."""
    file = samples_file(tmp_path_factory.mktemp("packs") / "t.bin", lengths)
    if min(lengths) > sequence:
        with pytest.raises(UserError, match="none of"):
            file.sequences(sequence)
        return
    rows = 1
    seen: list[int] = []
    targets = 0
    with loader(file, sequence, micro_batch=rows) as batches:
        for _ in range(file.sequences(sequence)):
            batch = batches.next_batch()
            x, y = batch.input_ids, batch.targets
            assert batch.cu_seqlens is not None
            assert batch.position_ids is not None
            assert batch.document_ids is not None
            assert batch.extent is not None
            count, longest = batch.extent.tolist()
            for a, b in itertools.pairwise(batch.cu_seqlens.tolist()[: count + 1]):
                ids = x.reshape(-1)[a:b].tolist()
                assert batch.position_ids.reshape(-1)[a:b].tolist() == list(range(b - a))
                assert len(set(batch.document_ids.reshape(-1)[a:b].tolist())) == 1
                wanted = y.reshape(-1)[a:b].tolist()
                if ids == [0] * (b - a) and not (b - a == 1 and lengths[0] == 1):  # padding
                    assert set(wanted) == {-1}
                    continue
                number = ids[0] // 100
                whole, learned = file.sample(number)
                assert ids == whole.tolist()
                assert wanted == [t if f else -1 for t, f in zip(whole[1:].tolist(), learned[1:].tolist(), strict=True)] + [-1]
                seen.append(number)
                targets += sum(t >= 0 for t in wanted)
            assert batch.target_rows is not None
            assert batch.cu_seqlens.shape == (rows * sequence + 1,)
            assert set(batch.cu_seqlens[count:].tolist()) == {rows * sequence}
            assert longest == int(np.diff(batch.cu_seqlens.numpy()).max())
            found = batch.target_rows.tolist()
            assert len(set(found)) == len(found)
            assert set(np.flatnonzero(y.numpy() >= 0).tolist()) <= set(found)
    fitting = [i for i, length in enumerate(lengths) if length <= sequence]
    assert sorted(seen) == fitting
    packing = file.packing(sequence)
    assert (packing.dropped, int(packing.targets.sum())) == (len(lengths) - len(fitting), targets)


def test_overlong_samples_are_dropped_cut_or_refused_and_counted(tmp_path: Path) -> None:
    lengths = [5, 30, 8, 40, 12]
    dropped = samples_file(tmp_path / "a.bin", lengths).packing(16)
    assert (dropped.dropped, dropped.truncated, len(dropped.order)) == (2, 0, 3)
    assert "2 too long, dropped" in dropped.describe()
    cut = samples_file(tmp_path / "b.bin", lengths, "truncate")
    assert (cut.packing(16).dropped, cut.packing(16).truncated, int(cut.packing(16).lengths.max())) == (0, 2, 16)
    total = sum(int((b.targets >= 0).sum()) for b in ValidationBatches(cut, sequence=16, micro_batch=2))
    assert total == int(cut.packing(16).targets.sum())
    with pytest.raises(UserError, match=r"2 of 5 conversations are longer than model.sequence=16, the longest has 40"):
        samples_file(tmp_path / "c.bin", lengths, "refuse").packing(16)


def test_ranks_and_resuming_change_nothing(tmp_path: Path) -> None:
    file = samples_file(tmp_path / "a.bin", [3 + i * 7 % 19 for i in range(90)])

    def rows(batch: Any) -> list[Any]:
        return list(zip(batch.input_ids.tolist(), batch.targets.tolist(), batch.position_ids.tolist(), strict=True))

    with loader(file, 24, micro_batch=4) as one:
        alone = [rows(one.next_batch()) for _ in range(12)]
    with loader(file, 24, rank=0, world=2) as a, loader(file, 24, rank=1, world=2) as b:
        both = [rows(a.next_batch()) + rows(b.next_batch()) for _ in range(12)]
    with loader(file, 24, micro_batch=4, position=4 * 7) as late:
        resumed = [rows(late.next_batch()) for _ in range(5)]
    assert both == alone
    assert resumed == alone[7:]


def test_validation_stops_at_its_limit_and_covers_all_without_one(tmp_path: Path) -> None:
    file = samples_file(tmp_path / "a.bin", [3 + i * 7 % 19 for i in range(60)])
    for world in (1, 3):
        parts = [list(ValidationBatches(file, sequence=24, micro_batch=2, rank=r, world=world)) for r in range(world)]
        assert len({len(part) for part in parts}) == 1
        assert sum(int((b.targets >= 0).sum()) for part in parts for b in part) == int(file.packing(24).targets.sum())
    some = ValidationBatches(file, sequence=24, micro_batch=2, limit=40)
    assert 40 <= sum(int((b.targets >= 0).sum()) for b in some) == some.targets < 80
    assert int(NO_TARGET) == 2**32 - 1


# The whole way.


def recipe(files: Path, tokenizer: Any, **corpus: Any) -> Recipe:
    charlm = load_recipe("charlm")
    data = charlm.data.model_copy(
        update={"corpus": ConversationCorpus(files=[str(files)], **corpus), "tokenizer": tokenizer, "validation": 0.1}
    )
    return charlm.model_copy(update={"data": data})


def talks(path: Path, count: int = 200) -> Path:
    pairs = [(f"{i} and {i}?", f"{2 * i}.") for i in range(count)]
    lines = [{"messages": [TALK[0], {"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in pairs]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", ["folder", "bpe"])
def test_prepared_conversations_train_and_show_their_mask(tmp_path: Path, folders: Path, kind: str) -> None:
    tokenizer = FolderTokenizer(path=str(folders / "smol")) if kind == "folder" else BPETokenizer(vocab_size=400)
    made = prepare(recipe(talks(tmp_path / "a.jsonl"), tokenizer), tmp_path / "cache")
    assert isinstance(made.train, ConversationFile)
    assert (made.documents, made.train.samples) == (200, made.train_documents)
    assert made.validation_documents > 0
    assert prepare(recipe(tmp_path / "a.jsonl", tokenizer), tmp_path / "cache").reused
    shown = preview(made, 2, colour=False)
    assert shown.count("⟦") == 2
    assert "<|im_end|>⟧" in shown
    assert "Be brief." in shown
    assert "\x1b[" in preview(made, 1)
    again = load_tokenizer(made.folder / "tokenizer.json")
    assert again.pieces == made.tokenizer.pieces
    with loader(made.train, 64) as batches:
        batch = batches.next_batch()
        assert int(batch.input_ids.max()) < made.tokenizer.vocab
        assert (batch.targets >= 0).any()


def test_answers_without_an_end_are_told_before_training(tmp_path: Path) -> None:
    """As GLM's, where the next turn's beginning ends an answer: the last one has no end."""
    begins = "{% for m in messages %}<|im_start|>{{ m['role'] + ' ' + m['content'] }}{% endfor %}"
    folder = small_folder(tmp_path / "model", begins + "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}")
    made = prepare(recipe(talks(tmp_path / "a.jsonl"), FolderTokenizer(path=str(folder))), tmp_path / "cache")
    (line,) = describe_packing(made, 256)
    count = made.train_documents
    assert f"{count:,} of {count:,} answers do not end with a token that is learned and ends a text" in line


def generated(folder: Path, seed: int = 7, **corpus: Any) -> Recipe:
    sums = ConversationCorpus(arithmetic=ArithmeticCorpus(documents=300, digits=2), **corpus)
    made = load_recipe("finetune", [f"model.config={folder}", "model.sequence=256", f"seed={seed}"])
    tokenizer = FolderTokenizer(path=str(folder))
    return made.model_copy(
        update={"data": made.data.model_copy(update={"corpus": sums, "tokenizer": tokenizer, "validation": 0.2})}
    )


def test_generated_conversations_are_right_and_held_out_ones_are_not_trained_on(tmp_path: Path, folders: Path) -> None:
    def said(file: ConversationFile, tokenizer: Any) -> list[tuple[str, str]]:
        texts = [tokenizer.decode(file.sample(i)[0]) for i in range(file.samples)]
        found = [re.search(r"What is (\S+)\? Answer with the number alone\.\s*assistant\n(\S+)", text) for text in texts]
        return [(match[1], match[2]) for match in found if match]

    made = prepare(generated(folders / "smol"), tmp_path)
    train, held_out = said(made.train, made.tokenizer), said(made.validation, made.tokenizer)
    assert len(train) + len(held_out) == made.documents == 300
    assert all(answer == solve(asked) for asked, answer in (*train, *held_out))
    assert not {asked for asked, _ in train} & {asked for asked, _ in held_out}
    assert made.epoch_tokens(256) == made.train.sequences(256) * 256 >= made.train.count
    again = prepare(generated(folders / "smol"), tmp_path / "again")
    assert (again.checksum, again.fingerprint) == (made.checksum, made.fingerprint)
    assert prepare(generated(folders / "smol", seed=8), tmp_path).checksum != made.checksum


def test_what_is_looked_at_before_training_is_what_is_learned(tmp_path: Path, folders: Path) -> None:
    made = prepare(generated(folders / "smol"), tmp_path)
    for shown in shown_samples(made, 5, 600):
        learned = "".join(text for text, flag in shown.pieces if flag)
        asked = "".join(text for text, flag in shown.pieces if not flag)
        match = re.search(r"What is (\S+)\?", asked)
        assert match
        assert learned == f"{solve(match[1])}<|im_end|>"
        assert shown.left == 0
    numbers = [sample.number for sample in shown_samples(made, 1000, 10)]
    assert numbers == list(range(1, made.train.samples + 1))
    cut = preview(made, 1, colour=False, width=60, most_tokens=20)
    assert "tokens more" in cut
    assert max(map(len, cut.splitlines())) <= 60
    (packed,) = describe_packing(made, 256)
    assert f"{made.train_documents:,} conversations in" in packed


def test_a_conversation_cannot_draw_on_the_terminal(tmp_path: Path, folders: Path) -> None:
    path = tmp_path / "a.jsonl"
    says = [{"role": "user", "content": "\x1b[2Jhello"}, {"role": "assistant", "content": "\x1b]0;title\x07ok"}]
    path.write_text(
        "".join(
            json.dumps({"messages": [*says[:1], {**says[1], "content": f"{says[1]['content']} {i}"}]}) + "\n" for i in range(40)
        )
    )
    made = prepare(recipe(path, FolderTokenizer(path=str(folders / "smol"))), tmp_path / "cache")
    assert "\x1b" not in preview(made, 3, colour=False)
    assert "\x1b]" not in preview(made, 3)


def test_files_come_before_what_is_generated(tmp_path: Path, folders: Path) -> None:
    files = talks(tmp_path / "talks.jsonl")
    both = generated(folders / "smol", files=[str(files)])
    alone = both.model_copy(
        update={"data": both.data.model_copy(update={"corpus": both.data.corpus.model_copy(update={"arithmetic": None})})}
    )
    made = prepare(both, tmp_path / "cache")
    assert "data.corpus.files are given: nothing is generated" in made.notes
    assert prepare(alone, tmp_path / "cache").reused


def test_the_split_does_not_depend_on_the_template(tmp_path: Path, folders: Path) -> None:
    path = talks(tmp_path / "a.jsonl")
    made = [
        prepare(recipe(path, FolderTokenizer(path=str(folders / "smol")), template=t), tmp_path / "cache")
        for t in ("model", "alpaca", "plain")
    ]
    asked = []
    for prepared in made:
        assert isinstance(prepared.validation, ConversationFile)
        texts = [prepared.tokenizer.decode(prepared.validation.sample(i)[0]) for i in range(prepared.validation.samples)]
        asked.append([text.split(" and ")[1].split("?")[0] for text in texts])
    assert asked[0] == asked[1] == asked[2]


def test_a_folder_keeps_its_files_and_checksum(folders: Path, tmp_path: Path) -> None:
    tokenizer = Folder.from_folder(folders / "smol")
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(again, Folder)
    assert (again.checksum, again.template, again.eos) == (tokenizer.checksum, LIKE_SMOL, tokenizer.eos)
    again.export(tmp_path / "out")
    assert Folder.from_folder(tmp_path / "out").checksum == tokenizer.checksum
    damaged = json.loads((tmp_path / "tokenizer.json").read_text())
    damaged["files"]["chat_template.jinja"] = "x"
    (tmp_path / "tokenizer.json").write_text(json.dumps(damaged))
    with pytest.raises(UserError, match="does not match its checksum"):
        load_tokenizer(tmp_path / "tokenizer.json")
    text = "Text with <|im_end|> spelled out, naïve 漢字.\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_larger_than_the_model_is_refused(folders: Path) -> None:
    tokenizer = Folder.from_folder(folders / "smol")
    tokenizer.require_fits(tokenizer.vocab, "config.json")
    with pytest.raises(UserError, match=f"ids up to {tokenizer.vocab - 1} and the model's table has 300 rows"):
        tokenizer.require_fits(300, "config.json")
    with pytest.raises(UserError, match="is not a folder"):
        Folder.from_folder("/nowhere")


def test_a_misspelt_folder_of_the_model_is_named_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path / "fetched"))
    (tmp_path / "models" / "mined").mkdir(parents=True)
    with pytest.raises(UserError, match="there is no folder") as caught:
        folder_tokenizer(load_recipe("finetune", [f"model.config={tmp_path}/models/mine"]))
    assert f"{tmp_path}/models/mined" in (caught.value.fix or "")
    assert "fetch" not in (caught.value.fix or "")
