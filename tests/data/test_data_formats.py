"""Documents in JSON lines, Parquet, gzip and zstd: the same texts as plain ones, and every way such a file can be bad."""

from __future__ import annotations

import bz2
import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windtunnel.data import prepare
from windtunnel.data.conversations import ConversationReader
from windtunnel.data.corpus import corpus_files, listed_files, read_documents
from windtunnel.data.formats import dataset_files, records
from windtunnel.recipe import CharacterTokenizer, ConversationCorpus, Recipe, TextCorpus, UserError, load_recipe

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


def read(path: Path, separator: str | None = None, **options: str) -> list[str]:
    files = corpus_files(TextCorpus(files=[str(path)], **options))  # type: ignore[arg-type]
    return [text for file in files for batch in read_documents(file, separator) for text in batch.documents()]


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


LINE = json.dumps({"text": "Good."}) + "\n"


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


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        (
            "two words.txt.gz",
            gzip.compress("text in pairs of bytes".encode("utf-16"), mtime=0),
            "zcat 'two words.txt.gz' | iconv -f utf-16",
        ),
        ("a.txt", "caf\xe9 noir".encode("latin1"), "iconv -f cp1252 -t utf-8 a.txt > a.utf8.txt (or -f"),
        ("a.txt", "caf\xe9".encode()[:-1], "if it was cut off inside a character, download it again"),
        ("a.jsonl", "[" + LINE + "]", "jq -c '.[]' a.jsonl > a.lines.jsonl"),
        ("a.json", '["one"]', "jq -c '.[] | {text: .}' a.json"),
        ("a.jsonl", LINE + '{"txt": "b"}\n', "mend the record"),
        ("a.jsonl", LINE + '{"text": null}\n', """jq -c 'select(.["text"] != null)' a.jsonl > a.lines.jsonl"""),
        ("a.jsonl.gz", gzip.compress((LINE.strip() * 2).encode()), "zcat a.jsonl.gz | jq -c . > a.lines.jsonl"),
        ("a.jsonl", json.dumps(json.loads(LINE), indent=1), "jq -c . a.jsonl"),
        ("a.jsonl", '"one"\n"two"\n', "jq -c '{text: .}' a.jsonl"),
        ("a.jsonl", '{"doc": {"text": "one"}}\n', "--set data.corpus.text_key=doc.text"),
        ("a.jsonl", '{"instruction": "Say.", "input": "", "output": "No."}\n', "--set data.corpus.kind=conversations"),
        ("a.txt", "\u4e2d\u6587\u6587\u672c\n".encode("gbk") * 99, "iconv -f gb18030 -t utf-8 a.txt > a.utf8.txt (or -f big5"),
    ],
)
def test_the_fix_of_a_bad_file_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | bytes, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as caught:
        read(Path(name))
    assert command in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("record", "command"),
    [
        ({"question": "Two?", "answer": "Four."}, """jq -c '{prompt: .["question"], completion: .["answer"]}' a.jsonl"""),
        (
            {"instruction": "Sum.", "context": "Two", "response": "Four."},
            """jq -c '{instruction: .["instruction"], input: .["context"], output: .["response"]}' a.jsonl""",
        ),
        ({"text": "Two? Four."}, "mend the record"),
    ],
)
def test_questions_and_answers_by_other_names_are_given_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(json.dumps(record) + "\n")
    parquet.write_table(pyarrow.Table.from_pylist([record]), "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        reader = ConversationReader(ConversationCorpus(files=[name]))
        with pytest.raises(UserError) as caught:
            list(reader.read(listed_files([name])))
        fix = caught.value.fix or ""
        assert command in fix or (name == "a.parquet" and "rename_columns" in fix)
        if "rename_columns" in fix:
            exec(shlex.split(fix.partition("python -c ")[2].partition(", and name that")[0])[0])
            (read_again,) = ConversationReader(ConversationCorpus(files=["x"])).read(listed_files(["a.pairs.parquet"]))
            assert read_again.messages[-1]["content"] == "Four."


def run_fix(error: UserError) -> None:
    """Run the command of an error's fix in a shell, as its reader would."""
    command = (error.fix or "").partition(", and name that")[0]
    starts = [command.find(start) for start in ("python -c ", "jq -c ", "zcat ", "zstdcat ", "iconv ") if start in command]
    command = command[min(starts) :].partition(" (or -f ")[0]
    tools = {"jq", "iconv", "zcat", "zstdcat"} & set(shlex.split(command))
    if missing := [tool for tool in sorted(tools) if shutil.which(tool) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    if command.startswith("python "):
        command = shlex.quote(sys.executable) + command.removeprefix("python")
    subprocess.run(command, shell=True, check=True, timeout=120)


def conversations(name: str) -> list[list[str]]:
    read = ConversationReader(ConversationCorpus(files=[name])).read(listed_files([name]))
    return [[message["content"] for message in one.messages] for one in read]


ODD = ["doc.text", 'a"b', "it's", "\N{GRINNING FACE}", "back\\(slash)", "$x", "new\nline"]


def write_records(name: str, rows: list[dict[str, object]]) -> None:
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), name)
    else:
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("key", ODD)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_records_without_text_are_left_out_by_the_command_of_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"it's {ODD[3]}{suffix}"
    write_records(name, [{key: "one"}, {key: None}, {key: "two"}])
    with pytest.raises(UserError, match=re.escape(f":2: {key!r} is null, expected text")) as caught:
        read(Path(name), text_key=key)
    run_fix(caught.value)
    made = Path(name).with_suffix(".lines.jsonl" if suffix == ".jsonl" else ".filled.parquet")
    assert read(made, text_key=key) == ["one", "two"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_records_without_text_within_are_left_out_by_the_command_of_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, object]] = [{"doc": {"text": "one"}}, {"doc": {"text": None}}, {"doc": None}, {"doc": {"text": "two"}}]
    for at, message in ((1, "'doc.text' is null, expected text"), (2, "'doc' is null, expected an object with 'text'")):
        write_records(f"a{suffix}", [rows[0], rows[at], *rows[1:]])
        with pytest.raises(UserError, match=f":2: {message}") as caught:
            read(Path(f"a{suffix}"), text_key="doc.text")
        run_fix(caught.value)
        made = Path("a.lines.jsonl" if suffix == ".jsonl" else "a.filled.parquet")
        assert read(made, text_key="doc.text") == ["one", "two"]


def test_what_stands_in_the_way_to_the_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"doc": "b"}\n')
    with pytest.raises(UserError, match="'doc' is str, expected an object with 'text'"):
        read(tmp_path / "a.jsonl", text_key="doc.text")
    (tmp_path / "a.jsonl").write_text('{"doc": {"text": {"en": "b"}}}\n')
    with pytest.raises(UserError, match=r"'doc\.text' is dict, expected text"):
        read(tmp_path / "a.jsonl", text_key="doc.text")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_columns_of_any_name_are_renamed_by_the_command_of_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Names are compared in lower case, and the command gives them as they are written."""
    monkeypatch.chdir(tmp_path)
    name = f"it's {ODD[3]}{suffix}"
    write_records(name, [{"Question": "Two?", "Output": "Four."}])
    with pytest.raises(UserError) as caught:
        conversations(name)
    run_fix(caught.value)
    made = Path(name).with_suffix(".lines.jsonl" if suffix == ".jsonl" else ".pairs.parquet")
    assert conversations(str(made)) == [["Two?", "Four."]]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"instruction": "Add.", "input": "2, 2", "response": "4"}, ["Add.\n\n2, 2", "4"]),
        ({"instruction": "Add.", "input": None, "response": "4"}, ["Add.", "4"]),
        ({"instruction": "Be short.", "question": "2 + 2?", "answer": "4"}, ["Be short.\n\n2 + 2?", "4"]),
        ({"input": "2 + 2?", "response": "4"}, ["2 + 2?", "4"]),
        ({"system": "Be short.", "question": "2 + 2?", "response": "4"}, ["Be short.", "2 + 2?", "4"]),
        ({"system_prompt": "", "question": "2 + 2?", "response": "4"}, ["2 + 2?", "4"]),
        ({"system": "Be short.", "question": "Sum?", "context": "2, 2", "answer": "4"}, ["Be short.", "Sum?\n\n2, 2", "4"]),
        ({"question": "Sum?", "context": "2, 2", "input": "3", "answer": "4"}, None),
    ],
)
def test_the_command_of_the_fix_loses_no_text_beside_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, record: dict[str, object], said: list[str] | None
) -> None:
    monkeypatch.chdir(tmp_path)
    write_records(f"a{suffix}", [record])
    with pytest.raises(UserError) as caught:
        conversations(f"a{suffix}")
    if said is None:
        assert (caught.value.fix or "").startswith("mend the record")
        return
    run_fix(caught.value)
    assert conversations("a.lines.jsonl" if suffix == ".jsonl" else "a.pairs.parquet") == [said]


TABLE = 'id,text\n1,"one, ""two"""\n2,"a\nb"\n'


@pytest.mark.parametrize(
    ("name", "made", "content"),
    [
        ("it's.csv", "it's.table.parquet", TABLE.encode()),
        (f"{ODD[3]}.CSV", f"{ODD[3]}.table.parquet", TABLE.encode()),
        ("-a.tsv", "-a.table.parquet", TABLE.replace("id,", "id\t").replace('1,"', '1\t"').replace("2,", "2\t").encode()),
        ("a.csv.gzip", "a.table.parquet", gzip.compress(TABLE.encode())),
        ("a.csv.GZ", "a.table.parquet", gzip.compress(TABLE.encode())),
        ("a.csv.zstd", "a.table.parquet", zstandard.compress(TABLE.encode())),
    ],
)
def test_a_table_becomes_parquet_by_the_command_of_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, made: str, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    with pytest.raises(UserError, match="is a table") as caught:
        read(Path(name))
    run_fix(caught.value)
    assert read(Path(made)) == ['one, "two"', "a\nb"]


def test_a_table_of_long_rows_becomes_parquet_beside_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.parquet").write_bytes(b"another")
    Path("a.csv").write_text(f'id,text\n1,one\n2,"{"long " * 600_000}"\n3,two\n')
    with pytest.raises(UserError, match="is a table") as caught:
        read(Path("a.csv"))
    run_fix(caught.value)
    assert read(Path("a.table.parquet")) == ["one", "long " * 600_000, "two"]
    assert Path("a.parquet").read_bytes() == b"another"


@pytest.mark.parametrize(
    ("name", "made", "content"),
    [
        ("-a.txt", "-a.utf8.txt", "caf\xe9 noir".encode("cp1252")),
        ("-a b.txt.gz", "-a b.utf8.txt", gzip.compress("caf\xe9 noir".encode("utf-16"))),
        ("a.txt.GZ", "a.utf8.txt", gzip.compress("caf\xe9 noir".encode("utf-16"))),
        ("-a b.jsonl", "-a b.lines.jsonl", '[{"text": "caf\xe9 noir"}]'.encode()),
        ("-a.jsonl.zst", "-a.lines.jsonl", zstandard.compress('[{"text": "caf\xe9 noir"}]'.encode())),
    ],
)
def test_a_dash_before_a_name_is_no_option_of_the_command_of_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, made: str, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(Path(name))
    run_fix(caught.value)
    assert read(Path(made)) == ["caf\xe9 noir"]


def test_a_table_of_conversations_becomes_parquet_by_the_command_of_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.csv").write_text('prompt,completion\n"Two, and two?",Four.\n')
    with pytest.raises(UserError, match="is a table, expected JSON lines or Parquet") as caught:
        conversations("q.csv")
    assert "format=text" not in (caught.value.fix or "")
    run_fix(caught.value)
    assert conversations("q.table.parquet") == [["Two, and two?", "Four."]]


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
