"""Preparing: once, atomically, from several processes, after kills and damage, and refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from waiting import HANG

from windtunnel.data import PreparedData, prepare
from windtunnel.recipe import Recipe, UserError, load_recipe

SMALL = ("data.corpus.documents=3000", "data.validation=0.05")


def arithmetic(*sets: str) -> Recipe:
    return load_recipe("charlm", [*SMALL, *sets])


def text(files: str, *sets: str) -> Recipe:
    kind = ["data.corpus.kind=text", f"data.corpus.files=[{files}]", "data.tokenizer.alphabet=auto", "data.validation=0.1"]
    return load_recipe("charlm", [*kind, *sets])


def documents(prepared: PreparedData, split: str) -> list[str]:
    tokens = getattr(prepared, split).array
    starts = np.flatnonzero(tokens == prepared.tokenizer.bos)
    assert starts[0] == 0
    return [prepared.tokenizer.decode(part) for part in np.split(tokens, starts[1:])]


def paragraphs(n: int) -> str:
    return "\n\n".join(f"paragraph {i}: {i * 7919 % 1000} words, naïve café {i}" for i in range(n))


def test_both_splits_hold_whole_documents_and_nothing_is_lost(tmp_path: Path) -> None:
    from windtunnel.data.arithmetic import generate

    recipe = arithmetic()
    prepared = prepare(recipe, tmp_path)
    train, validation = documents(prepared, "train"), documents(prepared, "validation")
    assert recipe.data.corpus.kind == "arithmetic"
    expected = generate(recipe.data.corpus, recipe.seed, 0, 3000).documents()
    assert sorted(train + validation) == sorted(expected)
    assert not set(train) & set(validation)
    assert (prepared.train_documents, prepared.validation_documents) == (len(train), len(validation))
    assert 80 < len(validation) < 230
    assert prepared.bytes == sum(map(len, expected))
    assert prepared.tokens == prepared.bytes + prepared.documents
    assert prepared.bytes_per_token == pytest.approx(prepared.bytes / prepared.tokens)
    assert prepared.train.dtype == "uint8"


def test_second_time_is_reused_and_a_change_is_not(tmp_path: Path) -> None:
    first = prepare(arithmetic(), tmp_path)
    again = prepare(arithmetic("model.depth=4"), tmp_path)
    assert (first.reused, again.reused) == (False, True)
    assert again.checksum == first.checksum
    for change in ("seed=2", "data.corpus.digits=5", "data.validation=0.06", "data.corpus.documents=3001"):
        other = prepare(arithmetic(change), tmp_path)
        assert not other.reused
        assert other.fingerprint != first.fingerprint
        assert other.checksum != first.checksum
    assert prepare(arithmetic(), tmp_path).checksum == first.checksum


def test_text_is_made_again_when_its_content_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(paragraphs(500))
    first = prepare(text(str(path), r'data.corpus.separator="\n\n"'), tmp_path / "cache")
    os.utime(path)
    assert prepare(text(str(path), r'data.corpus.separator="\n\n"'), tmp_path / "cache").reused
    moved = shutil.copy(path, tmp_path / "b.txt")
    assert prepare(text(str(moved), r'data.corpus.separator="\n\n"'), tmp_path / "cache").reused
    path.write_text(paragraphs(499))
    changed = prepare(text(str(path), r'data.corpus.separator="\n\n"'), tmp_path / "cache")
    assert not changed.reused
    assert (first.documents, changed.documents) == (500, 499)


@pytest.mark.parametrize("damage", ["truncate", "flip", "meta", "missing", "tokenizer"])
def test_damage_is_found_and_repaired(tmp_path: Path, damage: str) -> None:
    first = prepare(arithmetic(), tmp_path)
    train, good = first.folder / "train.bin", (first.folder / "train.bin").read_bytes()
    if damage == "truncate":
        os.truncate(train, len(good) // 2)
    elif damage == "flip":
        train.write_bytes(good[:1000] + bytes([good[1000] ^ 1]) + good[1001:])
    elif damage == "meta":
        (first.folder / "meta.json").write_text('{"format": 1, ')
    elif damage == "missing":
        (first.folder / "validation.bin").unlink()
    else:
        (first.folder / "tokenizer.json").write_text("[]")
    repaired = prepare(arithmetic(), tmp_path)
    assert not repaired.reused
    assert repaired.checksum == first.checksum
    assert train.read_bytes() == good


SCRIPT = """
import sys
from windtunnel.data import prepare
from windtunnel.recipe import load_recipe
prepared = prepare(load_recipe("charlm", sys.argv[2:]), sys.argv[1], lambda share, what: print(f"{share:.2f} {what}", flush=True))
print(prepared.reused, prepared.checksum)
"""


def start(cache: Path, *sets: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(cache), *SMALL, *sets], stdout=subprocess.PIPE, text=True)


def test_processes_that_prepare_at_once_share_the_work(tmp_path: Path) -> None:
    processes = [start(tmp_path, "data.corpus.documents=1M") for _ in range(3)]
    outputs = [process.communicate(timeout=HANG)[0].strip().splitlines()[-1].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(reused for reused, _ in outputs) == ["False", "True", "True"]
    assert len({checksum for _, checksum in outputs}) == 1


def test_a_kill_in_the_middle_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    recipe = arithmetic("data.corpus.documents=3M")
    process = start(tmp_path, "data.corpus.documents=3M")
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline and not any(f.stat().st_size for f in tmp_path.glob(".tmp-*/train.bin")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(tmp_path.glob(".tmp-*"))
    assert not list(tmp_path.glob("*/meta.json"))
    prepared = prepare(recipe, tmp_path)
    assert not prepared.reused
    assert prepared.documents == 3_000_000
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_full_disk_is_a_clear_refusal(tmp_path: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n{SCRIPT}"
    command = [sys.executable, "-c", limited, str(tmp_path), "data.corpus.documents=200k"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert "UserError: no space left for prepared data" in result.stderr
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_missing_space_is_noticed_before_writing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs 2.* GB in .*, .* GB are free"):
        prepare(arithmetic("data.corpus.documents=10000B"), tmp_path)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_cache_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("WINDTUNNEL_CACHE", raising=False)
    assert prepare(arithmetic()).folder.parent == tmp_path / "xdg" / "windtunnel"
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "own"))
    assert prepare(arithmetic()).folder.parent == tmp_path / "own"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file cannot be written"):
        prepare(arithmetic(), tmp_path / "file")


def test_unknown_characters_are_refused_with_place_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("12+3\n4=5\n" + "1+1\n" * 3 + "2é=\n" + "7-1\n" * 50)
    sets = [r'data.corpus.separator="\n"', 'data.tokenizer.alphabet="0123456789+-"', "data.validation=0.3"]
    with pytest.raises(UserError) as caught:
        prepare(text(str(path), *sets), tmp_path / "cache")
    for part in ("a.txt", "character offset 6", "line 2", "'=' (U+003D)"):
        assert part in caught.value.message
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]
    prepared = prepare(text(str(path), *sets, "data.tokenizer.unknown=skip"), tmp_path / "cache")
    assert prepared.skipped == {"=": 2, "é": 1}
    assert prepared.documents == 56
    assert prepare(text(str(path), *sets, "data.tokenizer.unknown=skip"), tmp_path / "cache").skipped == prepared.skipped


def test_a_lone_file_is_cut_so_that_it_can_be_split(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(paragraphs(3000), encoding="utf-8")
    prepared = prepare(text(str(path)), tmp_path / "cache")
    train, validation = documents(prepared, "train"), documents(prepared, "validation")
    assert sum(map(len, train + validation)) == len(path.read_text(encoding="utf-8"))
    assert prepared.validation_documents >= 1
    assert all(d.startswith("paragraph") for d in train + validation)
    assert "cut into pieces" in prepared.notes[0]
    tokens = len(prepared.validation.array)
    said = f"{tokens:,} tokens are held out: their loss varies by some {tokens**-0.5:.1%}; raise data.validation"
    assert said in prepared.notes[-1]


def test_two_documents_are_enough_and_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two\nthree four\n")
    prepared = prepare(text(str(path), r'data.corpus.separator="\n"'), tmp_path / "cache")
    assert (prepared.train_documents, prepared.validation_documents) == (1, 1)
    for content in ("only one document", "same\nsame\nsame\n"):
        path.write_text(content)
        with pytest.raises(UserError, match="training and validation need at least one each"):
            prepare(text(str(path), r'data.corpus.separator="\n"'), tmp_path / "cache")
    path.write_text("\n\n\n")
    with pytest.raises(UserError, match="no text"):
        prepare(text(str(path), r'data.corpus.separator="\n"'), tmp_path / "cache")


def test_equal_documents_stay_in_one_split(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(f"line {i % 40}" for i in range(4000)))
    prepared = prepare(text(str(path), r'data.corpus.separator="\n"', "data.validation=0.3"), tmp_path / "cache")
    train, validation = set(documents(prepared, "train")), set(documents(prepared, "validation"))
    assert not train & validation
    assert len(train | validation) == 40


def test_bpe_is_trained_on_the_training_split_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(paragraphs(2000), encoding="utf-8")
    sets = [r'data.corpus.separator="\n\n"', "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"]
    recipe = load_recipe("charlm", ["data.corpus.kind=text", f"data.corpus.files=[{path}]", *sets])
    prepared = prepare(recipe, tmp_path / "cache")
    assert prepared.tokenizer.vocab == 300
    assert prepared.train.dtype == "uint16"
    assert sorted(documents(prepared, "train") + documents(prepared, "validation")) == sorted(paragraphs(2000).split("\n\n"))
    counts = prepared.tokenizer.token_bytes()
    assert sum(int(counts[s.array].sum()) for s in (prepared.train, prepared.validation)) == prepared.bytes
    assert prepare(recipe, tmp_path / "other").checksum == prepared.checksum


def test_progress_grows_and_ends_at_one(tmp_path: Path) -> None:
    shares: list[float] = []
    prepare(arithmetic("data.corpus.documents=300k"), tmp_path, lambda share, what: shares.append(share))
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_meta_is_plain_json(tmp_path: Path) -> None:
    meta = json.loads((prepare(arithmetic(), tmp_path).folder / "meta.json").read_text())
    assert meta["splits"]["train"]["tokens"] > 0
    assert meta["vocab"] == 18


def test_importing_data_does_not_import_torch() -> None:
    code = "import sys, windtunnel.data as d; d.prepare; d.BatchLoader; d.load_tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_hundred_megabytes_are_prepared(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    line = rng.choice(np.frombuffer(b"abcdefghij klmnop\n", dtype=np.uint8), 100_000_000)
    (tmp_path / "big.txt").write_bytes(line.tobytes())
    prepared = prepare(text(str(tmp_path / "big.txt")), tmp_path / "cache")
    assert prepared.bytes == 100_000_000


def test_the_tokenizer_learns_from_a_sample_of_a_large_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(paragraphs(20_000), encoding="utf-8")  # one document, which is more than the sample
    sets = ["data.corpus.kind=text", f"data.corpus.files=[{path}]", "data.tokenizer={kind: bpe, vocab_size: 300}"]
    whole = prepare(load_recipe("charlm", sets), tmp_path / "cache")
    said: list[str] = []
    small = load_recipe("charlm", [*sets, "data.tokenizer.sample_megabytes=0.2"])
    sampled = prepare(small, tmp_path / "cache", lambda share, what: said.append(what))
    assert not any("the tokenizer learned from" in note for note in whole.notes)
    assert any("the tokenizer learned from 2" in note and "sample_megabytes=0.2" in note for note in sampled.notes)
    assert any(what.startswith("training the tokenizer on 2") for what in said)
    assert sampled.bytes == whole.bytes
    assert sampled.tokenizer.vocab == 300
    assert prepare(small, tmp_path / "other").checksum == sampled.checksum
