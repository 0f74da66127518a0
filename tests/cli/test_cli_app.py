"""The command line as a user meets it: real processes, exit codes, speed, no tracebacks, no torch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from waiting import HANG

from windtunnel.recipe import load_recipe
from windtunnel.run import RunFolder

VERBS = ["plan", "check", "rehearse", "train", "evaluate", "serve", "watch", "runs", "export", "convert"]
# What help and refusals must not wait for: benchmarks/quick.py measures how long they take.
HEAVY = {
    "fastapi", "httpx", "jinja2", "matplotlib", "numpy", "peft", "rich", "safetensors", "tensorboard", "tokenizers", "torch",
    "transformers", "uvicorn",
}  # fmt: skip


def windtunnel(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "windtunnel", *arguments]
    environment = os.environ | (env or {})
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, cwd=cwd, check=False, env=environment)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("train", "--help"),
        ("train", "charlm", "--set", "model.deth=3"),
        ("plan", "nosuch"),
        ("train", "/etc/hostname"),
    ],
)
def test_help_and_refusals_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        f"import sys; from windtunnel.cli import main\ntry: main({list(arguments)!r})\nexcept SystemExit: pass\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    assert "windtunnel" in (imported := done.stdout.splitlines()[-1].split())
    assert HEAVY.isdisjoint(imported)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = windtunnel(verb, "--help")
    assert done.returncode == 0
    assert f"windtunnel {verb}" in done.stdout


def test_top_level_help_lists_verbs_and_exit_codes() -> None:
    done = windtunnel("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert verb in done.stdout
    assert "Exit codes" in done.stdout


def test_the_list_of_verbs_is_wrapped_and_nothing_of_it_is_cut() -> None:
    shown = windtunnel("--help", env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "kill, resume, evaluate and serve its scale model." in " ".join(shown.split())
    assert "..." not in shown.partition("Commands:")[2]


def test_version() -> None:
    assert windtunnel("--version").stdout.startswith("windtunnel 0.")


@pytest.mark.parametrize("verb", ["plan", "train", "rehearse"])
def test_a_refused_recipe_exits_2_and_names_the_key(verb: str) -> None:
    done = windtunnel(verb, "charlm", "--set", "model.deth=3")
    assert done.returncode == 2
    assert done.stderr == "error: --set model.deth=3: model.deth: unknown key; nearest: depth\n"
    assert done.stdout == ""


def test_a_refusal_with_json_is_json_on_standard_error() -> None:
    done = windtunnel("train", "charml", "--json")
    assert done.returncode == 2
    assert json.loads(done.stderr) == {"error": "no recipe named 'charml'", "fix": "did you mean charlm?", "exit_code": 2}
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("fly",),
        ("train", "charlm", "--no-such-flag"),
        ("serve", "x", "--port", "70000"),
        ("train", "charlm", "--gpus", "0"),
    ],
)
def test_usage_errors_exit_2_without_traceback(arguments: tuple[str, ...]) -> None:
    done = windtunnel(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage: windtunnel" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (("serve", "x", "--port", "http"), "'--port'"),
        (("serve", "x", "--port=70000"), "'--port'"),
        (("evaluate", "x", "--problems", "many"), "'--problems'"),
        (("logs", "x", "-n", "all"), "'--lines'"),
        (("verify", "--serve", "--port", "http"), "'--port'"),
        (("plan", "charlm", "--hour-value", "inf"), "'--hour-value'"),
        (("train", "charlm", "--price=inf"), "'--price'"),
    ],
)
def test_a_wrong_value_of_an_option_is_repeated(arguments: tuple[str, ...], got: str) -> None:
    shown = windtunnel(*arguments).stderr
    assert got in shown
    assert "expected " in shown
    assert f"(got {arguments[-1].rpartition('=')[2]!r})" in shown


@pytest.mark.parametrize("last", [("--plot", "b.png"), ("--plot=b.png",)])
def test_a_second_file_for_an_option_that_takes_one_is_refused(last: tuple[str, ...], tmp_path: Path) -> None:
    done = windtunnel("backtest", "predictions.csv", "--plot", "a.png", *last, cwd=tmp_path)
    assert done.returncode == 2
    assert "'--plot': it takes one file (got 'a.png' and 'b.png')" in done.stderr


@pytest.mark.parametrize("verb", ["serve", "evaluate", "watch", "export"])
def test_a_missing_run_names_the_nearest(verb: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "charlm-20260101-120000").mkdir(parents=True)
    done = windtunnel(verb, "charlm-20260101", cwd=tmp_path)
    assert done.returncode == 2
    assert "nearest: runs/charlm-20260101-120000" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["serve", "evaluate", "watch", "logs", "stop", "export", "compare"])
def test_a_file_in_a_runs_place_is_called_a_file(verb: str, tmp_path: Path) -> None:
    (tmp_path / "run.txt").touch()
    done = windtunnel(verb, "run.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: run.txt is a file, not a run's folder\n  fix: ")


@pytest.mark.parametrize("verb", ["runs", "train", "rehearse"])
def test_a_file_in_the_place_of_all_runs_is_refused_before_anything_is_prepared(verb: str, tmp_path: Path) -> None:
    (tmp_path / "runs.txt").touch()
    done = windtunnel(verb, *(["charlm"] if verb != "runs" else []), "--root", "runs.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: --root runs.txt: is a file")


def test_a_runs_empty_recipe_is_not_to_be_written_anew(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={}) as run:
        (run.path / "recipe.yaml").write_text("")
    done = windtunnel("watch", run.path.name, "--once", cwd=tmp_path)
    assert done.returncode == 2
    assert "recipe.yaml is empty" in done.stderr
    assert "bring recipe.yaml back from a copy" in done.stderr


def test_a_path_below_a_folder_that_may_not_be_entered_is_named(tmp_path: Path) -> None:
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may enter every folder, and there is no setpriv")
    (tmp_path / "closed").mkdir(mode=0)
    done = windtunnel("plan", "charlm", "--plot", "closed/a.png", cwd=tmp_path, before=without if os.geteuid() == 0 else [])
    assert done.returncode == 2, done.stderr
    assert "closed/a.png: Permission denied\n  fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_that_is_missing_is_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "without" / "safetensors").mkdir(parents=True)
    refusal = "raise ModuleNotFoundError(\"No module named 'safetensors'\", name='safetensors')"
    (tmp_path / "without" / "safetensors" / "__init__.py").write_text(refusal)
    paths = os.pathsep.join(filter(None, (str(tmp_path / "without"), os.environ.get("PYTHONPATH"))))
    (tmp_path / "model").mkdir()
    result = windtunnel("convert", "model", "converted", cwd=tmp_path, env={"PYTHONPATH": paths})
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "error: the Python package safetensors is not installed" in result.stderr
    assert "-m pip install windtunnel" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("verb", ["prepare", "train", "evaluate", "serve"])
def test_a_shell_that_allows_too_few_addresses_is_refused_before_torch_is_loaded(verb: str, tmp_path: Path) -> None:
    done = windtunnel(verb, "charlm", cwd=tmp_path, before=["prlimit", f"--as={700 * 2**20}"])
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: this shell allows a process 700 MiB of addresses")
    assert "fix: ulimit -v unlimited" in done.stderr
    assert "Traceback" not in done.stderr


def test_addresses_that_are_used_up_are_told_without_a_traceback(tmp_path: Path) -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "import windtunnel.recipe\n"
        "windtunnel.recipe.load_recipe = lambda *a, **k: bytearray(2**31)\n"
        "from windtunnel.cli import main; main(['recipe', 'charlm'])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: the 2,048 MiB of addresses that the shell's limit allows were used up (MemoryError)")
    assert "Traceback" not in done.stderr


def test_runs_of_an_empty_folder(tmp_path: Path) -> None:
    pytest.importorskip("windtunnel.run", exc_type=ImportError)
    done = windtunnel("runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no runs under runs/" in done.stdout
    assert json.loads(windtunnel("runs", "--json", cwd=tmp_path).stdout) == []


def test_runs_says_why_a_run_failed(tmp_path: Path) -> None:
    for status, reason in (("done", "budget.steps: 5 steps done"), ("failed", "budget.steps: 5 steps done; not saved")):
        with RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={}) as run:
            run.finish(status, reason)  # type: ignore[arg-type]
    shown = windtunnel("runs", cwd=tmp_path).stdout
    assert shown.count("5 steps done") == 1
    assert "5 steps done; not saved" in shown


def test_interrupt_exits_130_without_traceback() -> None:
    """A pipe holds 64 kB: that more of them were taken shows that the command is reading, and it reads on to the end."""
    command = [sys.executable, "-m", "windtunnel", "train", "/dev/stdin"]
    # A shell starts what it puts into the background with SIGINT ignored, and these tests may run there.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed)
    assert process.stdin is not None
    process.stdin.write(b"# a comment\n" * 25_000)
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert b"Traceback" not in errors


TORCH_FREE = {
    "recipe": "import windtunnel.recipe as r; r.scale_model(r.load_recipe('charlm'))",
    "rig": "import windtunnel.rig as r; r.parse_rig('8xH100')",
    "model arithmetic": (
        "import windtunnel.model as m, windtunnel.recipe as r; m.derive(r.load_recipe('charlm', ['model.depth=12']), vocab=18)"
    ),
    "plan": (
        "import windtunnel.plan as p, windtunnel.rig as g, windtunnel.recipe as r;"
        "p.make_plan(r.load_recipe('charlm'), g.parse_rig('8xH100'))"
    ),
    "cli": "import windtunnel.cli",
    "run": "import windtunnel.run",
    "watch": "import windtunnel.watch",
}


@pytest.mark.parametrize("room", TORCH_FREE)
def test_rooms_that_promise_it_do_not_import_torch(room: str) -> None:
    code = (
        TORCH_FREE[room]
        + "\nimport sys; heavy = {'torch', 'transformers', 'matplotlib'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "exact", "--task", "a.json", "--answer", "a.txt"), "--task a.json: exact task: "),
        (("recipe", "charlm", "--markdown"), "--markdown is how --keys"),
        (("convert", "a.txt", "out"), "a.txt is a file; expected a model's folder"),
        (("fetch", "smollm2-135m", "--to", "a.txt"), "fetch: --to a.txt: is a file"),
        (("fetch", "smolm2"), "fetch: 'smolm2' is neither a built-in model nor an id on the hub\n  fix: give OWNER/NAME"),
        (("prices", "--update", "a.txt"), "a.txt: expected a mapping with date"),
        (("backtest", "p.csv", "--prices", "p.csv", "--weight", "-1"), "--weight -1.0: expected more than 0"),
    ],
)
def test_what_is_wrong_is_named_with_a_fix(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "p.csv").write_text("date,ticker,close\n2020-01-01,A,1\n")
    done = windtunnel(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert "\n  fix: " in done.stderr


def test_a_picture_in_a_folder_that_is_not_there_is_refused_with_a_fix(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={}) as run:
        (run.path / "curves.jsonl").write_text("")
    done = windtunnel("compare", run.path.name, "--plot", "gone/a.html", cwd=tmp_path)
    assert done.returncode == 2
    assert "gone/a.html cannot be written: No such file or directory\n  fix: " in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_on_a_full_disk_is_told_in_two_lines(unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "windtunnel", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG, check=False, env=environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("No space left on device\n  fix: make room") == 1
