"""Programs that are forked: they are as those that the interpreter starts, and end with whoever forked them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import HANG, until

from windtunnel.launch import Forker
from windtunnel.rehearse.processes import Child

PROGRAMS = {
    "telling": """
        import os, sys, threading
        print(sys.argv, os.environ["OF_ITS_OWN"], os.getcwd(), os.getsid(0) == os.getpid(), sys.stdin.read(), flush=True)
        print("to standard error", file=sys.stderr)
        def main():
            threading.Timer(0.1, lambda: print("from a thread")).start()
            return int(sys.argv[1])
    """,
    "raising": """
        def main():
            raise ValueError("as it is")
    """,
    "leaving": """
        import sys
        def main():
            sys.exit("for a reason")
    """,
    "sleeping": """
        import time
        def main():
            print("waits", flush=True)
            time.sleep(600)
    """,
}  # fmt: skip


@pytest.fixture
def forker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forker]:
    """One that ends with the test; its programs are modules of a folder."""
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    made = Forker()
    yield made
    made.close()


def test_a_program_is_as_the_interpreter_starts_it(forker: Forker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = forker.start(["-m", "telling", "7", "x y"], {"OF_ITS_OWN": "value"}, log)
    assert process.wait() == 7
    assert process.poll() == 7
    said = f"['telling', '7', 'x y'] value {tmp_path} True \n"
    assert log.read_text() == f"{said}to standard error\nfrom a thread\n"
    assert forker.start(["-m", "telling", "0"], {"OF_ITS_OWN": "other"}, log).wait() == 0
    assert log.read_text().count("from a thread") == 2
    assert os.environ.get("OF_ITS_OWN") is None


def test_streams_that_close_their_numbers_close_none_of_the_program(tmp_path: Path) -> None:
    """As a check's own do, which lead into its log."""
    (tmp_path / "printing.py").write_text(
        "import gc, os\ndef main():\n    gc.collect()\n    os.write(1, b'out ')\n    os.write(2, b'err')\n"
    )
    code = """
        import os, sys
        from pathlib import Path
        from windtunnel.launch import Forker
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        forker = Forker()
        sys.exit(forker.start(["-m", "printing"], os.environ, Path("log")).wait())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=HANG, check=True)
    assert (tmp_path / "log").read_text() == "out err"


@pytest.mark.parametrize(
    ("name", "words"), [("raising", "ValueError: as it is"), ("leaving", "for a reason"), ("missing", "No module")]
)
def test_what_goes_wrong_is_said_and_the_code_is_the_interpreters(name: str, words: str, forker: Forker, tmp_path: Path) -> None:
    assert forker.start(["-m", name], {}, tmp_path / "log").wait() == 1
    assert words in (tmp_path / "log").read_text()


def test_it_can_be_stopped_frozen_and_killed(forker: Forker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Child(["-m", "sleeping"], log, forker=forker) as child:
        until(lambda: "waits" in log.read_text(), "it does not start")
        child.freeze()
        assert psutil.Process(child.process.pid).status() == psutil.STATUS_STOPPED
        child.thaw()
        child.terminate()
        assert child.wait(lambda: None) == -signal.SIGTERM
    with Child(["-m", "sleeping"], log, forker=forker) as child:
        assert child.running
    assert child.process.poll() == -signal.SIGKILL
    assert not psutil.pid_exists(child.process.pid)


def test_programs_end_with_what_forked_them(forker: Forker, tmp_path: Path) -> None:
    process = forker.start(["-m", "sleeping"], {}, tmp_path / "log")
    forker.close()
    assert process.wait() == -signal.SIGKILL
    until(
        lambda: not psutil.pid_exists(process.pid) or psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "it runs on"
    )
    with pytest.raises(OSError, match="gone"):
        forker.start(["-m", "sleeping"], {}, tmp_path / "log")


def test_torch_counts_its_threads_anew(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text("import torch\ndef main():\n    print(torch.get_num_threads())\n")
    code = """
        from pathlib import Path
        import os, torch
        from windtunnel.launch import Forker
        forker = Forker()
        for count in ("1", "3"):
            assert forker.start(["-m", "counting"], os.environ | {"OMP_NUM_THREADS": count}, Path("log")).wait() == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=HANG, check=True)
    assert (tmp_path / "log").read_text() == "1\n3\n"


def test_ranks_that_are_forked_work_together(tmp_path: Path) -> None:
    code = """
        from dataclasses import replace
        from windtunnel.launch import Forker, try_steps
        from windtunnel.plan import Layout
        from windtunnel.recipe import load_recipe, scale_model

        forker, recipe = Forker(), scale_model(load_recipe("charlm", ["model.depth=2"]), steps=4)
        layout = Layout(ranks=1, micro_batch=2, accumulation=2, sequence=recipe.gpt.sequence, precision="fp32", compile=False,
                        device="cpu", shard="optimizer", recompute="none", expert=1)
        layouts = (layout, replace(layout, ranks=2, accumulation=1))
        one, two = (try_steps(recipe, each, steps=1, warm_up=1, vocab=32, forker=forker) for each in layouts)
        assert not (one.failure or two.failure), (one, two)
        assert all(abs(b / a - 1) < 2e-3 for a, b in zip(one.losses, two.losses, strict=True)), (one.losses, two.losses)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=HANG, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
