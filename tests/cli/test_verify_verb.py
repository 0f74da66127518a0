"""`windtunnel verify` as it is called: verdicts, exit codes, JSON, and what is told about bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANG
from zygote import windtunnel


def verify(*arguments: str, text: str = "", cwd: Path, columns: str = "") -> subprocess.CompletedProcess[str]:
    return windtunnel("verify", *arguments, cwd=cwd, env={**os.environ, "COLUMNS": columns}, input=text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    (folder / "square.json").write_text(json.dumps({"cases": [{"function": "f", "args": [3], "expected": 9}]}))
    (folder / "named.json").write_text(json.dumps({"kind": "exact", "task": {"answer": "42", "where": "last-line"}}))
    (folder / "bad.json").write_text("{")
    (folder / "twice.json").write_text('{"asserts": "assert f(1) == 1", "asserts": "assert f(2) == 2"}')
    (folder / "list.json").write_text("[1]")
    (folder / "typo.json").write_text(json.dumps({"casse": []}))
    (folder / "flag.json").write_text(json.dumps({"asserts": "assert f(1) == 1", "partial": "no"}))
    (folder / "long.json").write_text(json.dumps({"asserts": "assert f(1) == 1", "seconds": 1e8}))
    (folder / "gold.json").write_text(json.dumps({"answer": "}{"}))
    (folder / "deep.json").write_text(json.dumps({"asserts": "assert " + "-" * 100_000 + "1"}))
    (folder / "schema.json").write_text(json.dumps({"schema": {"enum": 5}}))
    (folder / "marked.py").write_bytes(b"\xef\xbb\xbfdef f(x): return x * x")
    (folder / "right.py").write_text("def f(x): return x * x")
    (folder / "binary").write_bytes(b"\xff\xfe")
    return folder


def test_right_and_wrong_code(folder: Path) -> None:
    right = verify("code", "--task", "square.json", "--answer", "right.py", cwd=folder)
    assert right.returncode == 0, right.stderr
    assert "accepted" in right.stdout
    assert max(map(len, right.stdout.splitlines())) <= 100
    assert verify("code", "--task", "square.json", "--answer", "marked.py", cwd=folder).returncode == 0
    wrong = verify("code", "--task", "square.json", "--json", text="def f(x): return x", cwd=folder)
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["reason"] == "wrong-result"


def test_exact_text_from_a_task_file_with_its_kind(folder: Path) -> None:
    assert verify("exact", "--task", "named.json", text="so\n42", cwd=folder).returncode == 0
    assert verify("exact", "--task", "named.json", text="41", cwd=folder).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("code", "--task", "none.json"), "none.json"),
        (("code", "--task", "bad.json"), "not JSON"),
        (("code", "--task", "typo.json"), "casse"),
        (("code", "--task", "named.json"), "named.json is of kind exact, not code"),
        (("code", "--task", "twice.json"), "the key 'asserts' comes twice"),
        (("code", "--task", "list.json"), "list.json holds no task"),
        (("code", "--task", "square.json", "--answer", "none.py"), "none.py"),
        (("code", "--task", "square.json", "--answer", "binary"), "UTF-8"),
        (("code", "--task", "square.json", "--answer", "/dev/zero"), "/dev/zero is a device"),
        (("code", "--task", "/dev/zero"), "/dev/zero is a device"),
        (("code", "--task", "flag.json"), "partial is 'no'"),
        (("code", "--task", "long.json"), "seconds is 100000000.0"),
        (("math", "--task", "gold.json"), "'answer' is '}{'"),
        (("code", "--task", "deep.json"), "nested too deeply"),
        (("format", "--task", "schema.json"), "schema.enum is 5"),
        (("kernel", "--task", "relu", "--candidate", "/dev/zero"), "/dev/zero is a device"),
        (("kernel", "--task", "relu", "--candidate", "."), "is a folder"),
        (("kernel", "--task", ".", "--candidate", "right.py"), "--task . is a folder"),
        (("code", "--task", "."), "is a folder"),
        (("--serve", "--host", "0.0.0.0"), "no token"),
        (("--serve", "--tasks", "none"), "no such folder"),
    ],
)
def test_bad_input_is_named(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = verify(*arguments, cwd=folder)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_task_is_shown_as_text_or_as_json(folder: Path) -> None:
    text = verify("kernel", "--show", "--task", "relu", cwd=folder).stdout
    shown = json.loads(verify("kernel", "--show", "--task", "relu", "--json", cwd=folder).stdout)
    assert shown["name"] == "relu"
    assert shown["source"].strip() == text.strip()


@pytest.mark.parametrize("arguments", [("kernel", "--list"), ("kernel", "--list", "--json"), ("kernel", "--help")])
def test_a_reader_that_goes_away_ends_it_quietly(folder: Path, arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "windtunnel", "verify", *arguments]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=HANG, cwd=folder, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("columns", "most"), [("100", 100), ("60", 60), ("", 200), ("0", 200), ("wide", 200)])
def test_a_pipe_is_as_wide_as_columns_says(folder: Path, columns: str, most: int) -> None:
    done = verify("kernel", "--list", cwd=folder, columns=columns)
    assert done.returncode == 0
    widest = max(map(len, done.stdout.splitlines()))
    assert widest <= most
    assert widest > 100 or most < 200, "without a width nothing is folded at 80"


def test_what_an_answer_says_gives_no_orders_to_the_terminal(folder: Path) -> None:
    source = "def f(x): raise type('\\x1b[31mred\\x07', (Exception,), {})"
    done = verify("code", "--task", "square.json", text=source, cwd=folder)
    assert done.returncode == 1
    assert "red" in done.stdout
    assert not {"\x1b", "\x07"} & set(done.stdout)


def test_layers_are_shown_and_judged(folder: Path) -> None:
    done = verify("layers", "--json", cwd=folder)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["hardened"] else 1)
    assert found["layers"]["seccomp"] == "active"
    text = verify("--layers", cwd=folder).stdout
    assert "hardened" in text
    assert max(map(len, text.splitlines())) <= 100


def test_how_fast_a_kernel_is_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from windtunnel.cli.verify_kernel import _print
    from windtunnel.verify import find_task
    from windtunnel.verify.types import accept

    def timing(median: float) -> dict[str, float]:
        return {"median": median, "low": 0.99 * median, "high": 1.01 * median, "count": 40}

    gpu = {"cold": timing(35.7e-6), "warm": timing(34.6e-6), "alone": timing(75e-6), "speedup": {"eager": 0.99, "compiled": 1.5}}
    _print(find_task("relu"), accept("timing", "Right.", times={"gpu": 1.0}, evidence={"gpu": gpu}), None)
    shown = " ".join(capsys.readouterr().out.split())
    assert "35.7 us with cold L2 (95%: 35.3-36.1), 34.6 us with warm L2" in shown
    assert "75.0 us called on an idle GPU" in shown
    del gpu["alone"]
    _print(find_task("relu"), accept("timing", "Right.", times={"gpu": 1.0}, evidence={"gpu": gpu}), None)
    assert "34.6 us with warm L2" in " ".join(capsys.readouterr().out.split())
    assert "0.99 x as fast as PyTorch, eager, 1.50 x as fast as PyTorch, compiled" in shown


@pytest.mark.parametrize("columns", ["80", "100"])
def test_the_self_test_fits_the_terminal_and_says_how_it_went(tmp_path: Path, columns: str) -> None:
    done = verify("selftest", "--kind", "code", "--unhardened", cwd=tmp_path, columns=columns)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verifiers work here" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    assert verify("selftest", "--kind", "kernels", cwd=tmp_path).returncode == 2
