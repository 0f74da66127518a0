"""Text files: streaming, separators, pieces, and every way a file can be bad."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.data import corpus as corpus_module
from windtunnel.data.corpus import CorpusFile, corpus_files, read_documents
from windtunnel.recipe import StdlibCorpus, TextCorpus, UserError


def read(path: Path, separator: str | None = None, longest: int = 1 << 20) -> list[str]:
    batches = read_documents(CorpusFile(str(path), path.stat().st_size), separator, longest)
    return [document for batch in batches for document in batch.documents()]


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab é漢😀\n-")), block=st.integers(1, 7), separator=st.sampled_from([None, "\n", "--", "漢"]))
def test_streaming_finds_the_same_documents_at_any_block_size(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int, separator: str | None
) -> None:
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "BLOCK", block)
        found = read(path, separator)
    assert found == [d for d in (text.split(separator) if separator else [text]) if d]


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab é漢😀\n"), min_size=1), longest=st.integers(4, 40), block=st.integers(1, 50))
def test_pieces_lose_nothing_and_know_where_they_come_from(
    tmp_path_factory: pytest.TempPathFactory, text: str, longest: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "BLOCK", block)
        batches = list(read_documents(CorpusFile(str(path), 0), None, longest))
    documents = [d for b in batches for d in b.documents()]
    assert "".join(documents) == text
    assert all(len(d.encode()) <= longest for d in documents)
    offsets = [o for b in batches if b.offsets is not None for o in b.offsets.tolist()]
    raw = text.encode()
    assert all(raw[o:].startswith(d.encode()) for o, d in zip(offsets, documents, strict=True))


def test_pieces_end_at_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(("word " * 15 + "\n\n") * 50)
    pieces = read(path, None, 400)
    assert len(pieces) > 5
    assert all(p.endswith("\n\n") for p in pieces)


def test_globs_are_sorted_and_each_file_counts_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", "empty.txt", "odd[1].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.txt" else name)
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    corpus = TextCorpus(files=[f"{tmp_path}/**/*.txt", f"{tmp_path}/a.txt", f"{tmp_path}/odd[1].txt"])
    assert [os.path.relpath(f.path, tmp_path) for f in corpus_files(corpus)] == ["a.txt", "b.txt", "odd[1].txt", "sub/c.txt"]


def test_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    cases = {
        "missing.txt": "does not exist",
        "*.md": "matches no file",
        "empty.txt": "is empty",
        ".": "is a directory",
        "dangling.txt": "cannot",
        "pipe.txt": "is a pipe",
    }
    for name, expected in cases.items():
        with pytest.raises(UserError, match=expected) as caught:
            corpus_files(TextCorpus(files=[f"{tmp_path}/{name}"]))
        assert name in caught.value.message
        assert caught.value.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    (tmp_path / "secret.txt").chmod(0)
    with pytest.raises(UserError, match=r"secret.txt cannot be read: Permission denied"):
        corpus_files(TextCorpus(files=[f"{tmp_path}/secret.txt"]))


@pytest.mark.parametrize(("separator", "block"), [(None, 1 << 20), ("\n", 1 << 20), ("\n", 3)])
def test_bad_bytes_are_named_with_their_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str | None, block: int
) -> None:
    monkeypatch.setattr(corpus_module, "BLOCK", block)
    path = tmp_path / "latin.txt"
    path.write_bytes("été\n".encode() + b"caf\xe9 noir\n")
    with pytest.raises(UserError, match=r"latin\.txt is not UTF-8: byte 0xe9 at byte offset 9"):
        read(path, separator)
    path.write_bytes(b"ab\n\0\0")
    with pytest.raises(UserError, match="is binary: NUL byte at byte offset 3"):
        read(path, separator)


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-8-sig")
    assert read(tmp_path / "a.txt") == ["text"]


def test_characters_are_located_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\ufeffé\n漢字\n\nlast =", encoding="utf-8")
    batch = next(iter(read_documents(CorpusFile(str(path), 0), "\n\n", 100)))
    full = [b for b in read_documents(CorpusFile(str(path), 0), "\n\n", 100)]
    assert batch.locate(0, 2).endswith("character offset 2, line 2")
    assert full[-1].locate(0, 5).endswith("character offset 11, line 4")


def test_the_standard_library_is_real_text_without_tests_and_packages() -> None:
    files = corpus_files(StdlibCorpus(megabytes=1.0))
    size = sum(f.size for f in files)
    assert 1e6 <= size < 2e6
    assert [f.path for f in files] == sorted(f.path for f in files)
    assert not any("site-packages" in f.path or "/test/" in f.path for f in files)
    assert len(corpus_files(StdlibCorpus(megabytes=0.1))) < len(files)
