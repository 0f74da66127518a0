"""Documents in JSON lines, Parquet, gzip and zstd: the same texts as plain ones, and every way such a file can be bad."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import zstandard
from data_files import LINE, conversations, read
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windtunnel.data import prepare
from windtunnel.data.formats import dataset_files, records
from windtunnel.recipe import CharacterTokenizer, Recipe, TextCorpus, UserError, load_recipe

TEXTS = [f"Document {i} says naïve things.\nIt has lines; 漢字 too.\n" * (1 + i % 4) for i in range(300)]


def write(folder: Path, form: str, texts: list[str], key: str = "text") -> Path:
    path = folder / form
    lines = "".join(json.dumps({key: text, "id": i}, ensure_ascii=i % 2 == 0) + "\n" for i, text in enumerate(texts))
    if form == "a.jsonl":
        path.write_text(lines, encoding="utf-8")
    elif form == "a.jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif form == "a.jsonl.zst":  # two frames, as parallel compressors write them
        data, middle = lines.encode(), len(lines) // 2
        path.write_bytes(zstandard.compress(data[:middle]) + zstandard.compress(data[middle:]))
    elif form == "a.parquet":
        table = pyarrow.table({"id": list(range(len(texts))), key: texts})
        parquet.write_table(table, path, row_group_size=70)
    elif form == "saved":
        path.mkdir()
        table = pyarrow.table({key: texts})
        with (
            pyarrow.OSFile(str(path / "data-00000-of-00001.arrow"), "wb") as sink,
            pyarrow.ipc.new_stream(sink, table.schema) as out,
        ):
            out.write_table(table, max_chunksize=50)
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    elif form == "a.txt.gz":
        path.write_bytes(gzip.compress("\x1e".join(texts).encode()))
    else:
        path.write_bytes(zstandard.compress("\x1e".join(texts).encode()))
    return path


FORMS = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "saved", "a.txt.gz", "a.txt.zst"]


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_documents(tmp_path: Path, form: str) -> None:
    assert read(write(tmp_path, form, TEXTS), "\x1e" if ".txt" in form else None) == TEXTS


def recipe(path: Path, separator: str | None = None) -> Recipe:
    corpus = TextCorpus(files=[str(path)], separator=separator)
    charlm = load_recipe("charlm")
    data = charlm.data.model_copy(update={"corpus": corpus, "validation": 0.2, "tokenizer": CharacterTokenizer()})
    return charlm.model_copy(update={"data": data})


def test_the_splits_are_the_same_in_every_format(tmp_path: Path) -> None:
    """What is held out depends on a document's text alone, so tokens and checksums are equal."""
    folder = tmp_path / "files"
    folder.mkdir()
    made = [prepare(recipe(write(folder, form, TEXTS), "\x1e" if ".txt" in form else None), tmp_path / "cache") for form in FORMS]
    assert len({prepared.checksum for prepared in made}) == 1
    assert np.array_equal(made[0].validation.array, made[3].validation.array)
    assert len({prepared.fingerprint for prepared in made}) == len(FORMS)


@settings(deadline=None, max_examples=50)
@given(texts=st.lists(st.text(max_size=30), max_size=12))
def test_json_lines_round_trip_any_text(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("\ufeff" + "\n\n".join(json.dumps({"text": text}) for text in texts) + "\n", encoding="utf-8")
    assert read(path) == [text for text in texts if text]


def test_another_key_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", TEXTS[:3], key="body")
    assert read(path, text_key="body") == TEXTS[:3]
    with pytest.raises(UserError, match=r"a\.jsonl:1: no key 'text'.*it has 'body', 'id'") as caught:
        read(path)
    assert caught.value.fix == "--set data.corpus.text_key=body"
    with pytest.raises(UserError, match=r"a\.parquet:1: no key 'text'.*'body', 'id'"):
        read(write(tmp_path, "a.parquet", TEXTS[:3], key="body"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", LINE, "plain text by its name, and begins with a JSON object"),
        ("a.json", '[\n{"text": "x"}]', "one JSON array"),
        ("a.jsonl", '[{"text": "x"}]', "one JSON array"),
        ("a.jsonl", LINE + "{oops\n", r"a\.jsonl:2: not JSON"),
        ("a.jsonl", LINE + "[1]\n", r"a\.jsonl:2: expected a JSON object, found list"),
        ("a.jsonl", LINE + '{"text": null}\n', r"a\.jsonl:2: 'text' is null"),
        ("a.jsonl", LINE + '{"text": "cut \\ud83d"}\n', r"a\.jsonl:2: 'text' has \\ud83d at character offset 4: half of"),
        ("a.jsonl", LINE + '{"messages": []}\n', r"a\.jsonl:2: this is a conversation"),
        ("a.jsonl", LINE.encode() + b'{"text": "caf\xe9"}\n', r"a\.jsonl:2: not UTF-8"),
        ("a.txt", "plain text\n".encode("utf-16"), "is UTF-16, expected UTF-8"),
        ("a.txt", "plain text without a mark\n".encode("utf-16-le"), "is UTF-16LE, expected UTF-8"),
        ("a.jsonl", LINE.encode("utf-32"), "is UTF-32, expected UTF-8"),
        ("a.jsonl.gz", gzip.compress(LINE.encode() * 999, mtime=0)[:-20], "is damaged gzip"),
        ("a.jsonl.zst", zstandard.compress(LINE.encode() * 999)[:-5], "is damaged zstd: it ends in the middle"),
        ("a.parquet", b"PAR1 and nothing else PAR1", "cannot be read as parquet"),
        ("a.txt", "# made by hand\n" + LINE * 9, "has a JSON object on most lines"),
        ("a.json", '["one", "two"]', "one JSON array"),
        ("a.json", '{\n "data": [1]\n}', "one JSON object"),
        ("a.txt.bz2", bz2.compress(b"text"), "is bzip2"),
        ("a.zip", b"PK\x03\x04 and so on", "is zip"),
        ("a.tgz", gzip.compress(b"a.txt".ljust(257, b"\0") + b"ustar\x0000", mtime=0), "is a tar archive"),
        ("a.csv", "id,text\n1,one\n", "is a table, whose names, quotes and commas"),
        ("a.PARQUET", "<html>404", "is not Parquet: it begins with '<html>404'"),
        ("a.tsv.gz", gzip.compress(b"id\ttext\n", mtime=0), "is a table, whose names, quotes and tabs"),
        ("a.html", "<!DOCTYPE html><p>Hi.", "is a web page"),
        ("a.parquet", "<html>404", "is not Parquet: it begins with '<html>404'"),
        ("a.jsonl.gz", gzip.compress(gzip.compress(LINE.encode())), "is gzip within gzip"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "is a Git LFS pointer"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=message) as caught:
        read(path)
    assert caught.value.fix


@pytest.mark.parametrize(("name", "message"), [("a.parquet", "is not Parquet: it begins"), ("a.jsonl", "is a web page")])
def test_a_site_s_answer_in_place_of_records_is_told(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("<!DOCTYPE html><p>404")
    with pytest.raises(UserError, match=message) as caught:
        conversations(str(tmp_path / name))
    assert "download it again" in (caught.value.fix or "")
    assert "format=text" not in (caught.value.fix or "")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_records_are_read_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"prompt": "Two?", "completion": "Four."}\n')
    assert conversations(str(tmp_path / name)) == [["Two?", "Four."]]
    (tmp_path / name).write_text('[{"prompt": "Two?", "completion": "Four."}]')
    assert conversations(str(tmp_path / name)) == [["Two?", "Four."]]


def test_text_within_a_record_or_written_as_bytes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"doc": {"text": "one"}}\n')
    parquet.write_table(pyarrow.table({"doc": [{"text": "one", "url": "x"}], "id": [1]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.jsonl", text_key="doc.text") == read(tmp_path / "a.parquet", text_key="doc.text") == ["one"]
    parquet.write_table(pyarrow.table({"text": pyarrow.array([b"caf\xc3\xa9"])}), tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet") == ["caf\xe9"]
    parquet.write_table(pyarrow.table({"text": pyarrow.array([b"caf\xe9"])}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match="bytes that are not UTF-8"):
        read(tmp_path / "b.parquet")


def test_a_zstd_file_may_begin_with_a_frame_for_other_programs(tmp_path: Path) -> None:
    frame = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    (tmp_path / "a.jsonl.zst").write_bytes(frame + zstandard.compress(LINE.encode()) + frame + zstandard.compress(LINE.encode()))
    assert read(tmp_path / "a.jsonl.zst") == ["Good.", "Good."]


def test_marks_between_documents_that_nobody_split_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"Story {number} of many. " * 20 for number in range(30)))
    assert any(
        "stands 29 times" in note and "data.corpus.separator=" in note for note in prepare(recipe(tmp_path / "a.txt")).notes
    )


def test_json_lines_are_raw_text_only_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(LINE * 2)
    assert read(path, format="text") == [LINE * 2]
    assert read(path, format="jsonl") == ["Good.", "Good."]
    with pytest.raises(UserError, match="separator divides plain text"):
        read(path, "\n", format="jsonl")


def test_an_unknown_character_is_located_in_its_record(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", ["abc", "abd", "abé"] * 40)
    wanted = recipe(path)
    tokenizer = wanted.data.tokenizer.model_copy(update={"alphabet": "abcd"})
    wanted = wanted.model_copy(update={"data": wanted.data.model_copy(update={"tokenizer": tokenizer})})
    with pytest.raises(UserError, match=r"a\.jsonl:3: character offset 2 of the text: character 'é'"):
        prepare(wanted, tmp_path / "cache")


def test_folders_of_datasets(tmp_path: Path) -> None:
    """A dataset saved in splits, and files as the hub has them: `train` is taken."""
    saved = tmp_path / "both"
    saved.mkdir()
    (saved / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    write(saved, "saved", TEXTS).rename(saved / "train")
    assert [record["text"] for file in dataset_files(str(saved)) for _, record in records(file, "arrow")] == TEXTS
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    write(hub, "a.parquet", TEXTS).rename(hub / "train-00000-of-00001.parquet")
    write(hub, "a.parquet", TEXTS[:2]).rename(hub / "test-00000-of-00001.parquet")
    assert read(tmp_path / "hub") == TEXTS
    (saved / "dataset_dict.json").write_text('{"splits": ["test"]}')
    with pytest.raises(UserError, match="none named train"):
        dataset_files(str(saved))
