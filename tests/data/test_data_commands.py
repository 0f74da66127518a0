"""Commands that mend a file: each is printed as a fix, and is run here as it stands."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
import zstandard
from data_files import LINE, conversations, read
from pyarrow import parquet

from windtunnel.data.conversations import ConversationReader
from windtunnel.data.corpus import listed_files
from windtunnel.recipe import ConversationCorpus, UserError


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
