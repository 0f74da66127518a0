"""windtunnel plan as a user meets it: ladders, pictures, documented JSON, calibration, bad input, speed."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG
from zygote import windtunnel

from windtunnel.plan import Alternative, Layout, Moment, Option, Plan, Role, Step
from windtunnel.rig import load_catalog

DOCS = Path(__file__).parents[2] / "docs" / "plan-json.md"
LADDER = ("--on", "cpu", "--on", "g5.xlarge", "--on", "8xH100")


@pytest.fixture(autouse=True)
def no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("WINDTUNNEL_RIGS", "WINDTUNNEL_PRICE", "WINDTUNNEL_CALIBRATION"):
        monkeypatch.delenv(name, raising=False)


def plan(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return windtunnel("plan", *arguments, env=os.environ | environment)


def planned(*arguments: str) -> list[dict[str, Any]]:
    done = plan(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_several_rigs_are_one_ladder_with_a_total() -> None:
    done = plan("charlm", *LADDER)
    assert done.returncode == 0, done.stderr
    ladder, _, beside = done.stdout.partition("the whole job on each rig")
    assert all(f" {rig} " in beside for rig in ("g5.xlarge", "8xH100"))
    lines = ladder.splitlines()
    assert "to 8xH100" in lines[0]
    assert [line.split()[0] for line in lines if line.strip().startswith(("cpu ", "gpu ", "node ", "total "))] == [
        "cpu", "gpu", "node", "total",
    ]  # fmt: skip
    table = lines[: next(i for i, line in enumerate(lines) if line.strip().startswith("total")) + 1]
    assert max(map(len, table)) <= 100
    assert "kill and resume" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_machine_at_hand_is_the_first_rung_where_it_was_not_named() -> None:
    done = plan("charlm", "--on", "g5.xlarge", "--on", "8xH100", CUDA_VISIBLE_DEVICES="")
    assert re.search(r"^ *\w+ +here ", done.stdout, re.M)
    assert [entry["rig"] for entry in planned("charlm", "--on", "g5.xlarge", "--on", "8xH100")] == ["g5.xlarge", "8xH100"]


@pytest.mark.parametrize(
    ("rigs", "code"),
    [(("g5.xlarge", "8xH200"), 0), (("8xH200", "g5.xlarge"), 1), (("g5.xlarge",), 1), (("8xH200",), 0)],
)
def test_only_the_target_decides_the_exit_code(rigs: tuple[str, ...], code: int) -> None:
    on = [part for rig in rigs for part in ("--on", rig)]
    done = plan("charlm", "--set", "model.depth=48", *on)
    assert done.returncode == code, done.stderr
    assert ("does not fit" in done.stdout) == (code == 1)


def documented() -> dict[str, set[str]]:
    """Keys of each table in the documentation, by its heading."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in DOCS.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif match := re.match(r"\| `(\w+)` \|", line):
            found.setdefault(heading, set()).add(match[1])
    return found


def test_every_key_is_documented_and_every_documented_key_is_there() -> None:
    tables = documented()
    entries = planned("charlm", "--set", "model.depth=48", *LADDER)
    assert set(planned("sft", "--on", "8xH100")[0]) == set(entries[0])
    grpo = planned("rl", "--on", "8xH100")[0]
    assert set(grpo) == set(entries[0])
    assert set(grpo["roles"]["engine"]) == tables["`roles.*`"]
    assert set(entries[0]) == tables["The plan"]
    assert {f.name for f in fields(Plan)} <= tables["The plan"]
    assert set(entries[0]["layout"]) == tables["`layout`, also of `roles.*` and `options[]`"] >= {f.name for f in fields(Layout)}
    assert {f.name for f in fields(Option)} == tables["`options[]`"]
    assert {f.name for f in fields(Role)} == tables["`roles.*`"]
    assert {f.name for f in fields(Moment)} == tables["`timeline[]`"]
    assert {f.name for f in fields(Alternative)} == tables["`alternatives[]`"]
    assert set(entries[0]["rung"]) == tables["`rung`"]
    job = planned("finetune", "--on", "8xH100")[0]["job"]
    assert set(job) == tables["`job`: every step of fine-tuning"]
    assert {f.name for f in fields(Step)} == tables["`job.steps[]`"] == set(job["steps"][0])
    assert set(entries[1]["rung"]["stand_ins"][0]) == tables["`rung.stand_ins[]`"]


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def test_no_number_is_nan_or_infinite_on_any_gpu() -> None:
    on = [part for gpu in load_catalog().gpus for part in ("--on", f"2x(4x{gpu})")]
    for overrides in ((), ("--set", "model.depth=64"), ("--set", "model.depth=1")):
        done = plan("charlm", *overrides, *on, "--json")
        assert "NaN" not in done.stdout
        assert "Infinity" not in done.stdout
        assert all(math.isfinite(number) for number in numbers(json.loads(done.stdout)))


def test_pictures_are_written_and_named(tmp_path: Path) -> None:
    files = [tmp_path / "a.png", tmp_path / "b.html"]
    done = plan("charlm", "--on", "8xH100", *(part for file in files for part in ("--plot", str(file))))
    assert done.returncode == 0, done.stderr
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()
    assert all(f"wrote {file}" in done.stdout for file in files)
    done = plan("charlm", "--on", "8xH100", "--json", "--plot", str(files[0]))
    json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("charlm", "--on", "8xH10"), ("H100", "8xH10")),
        (("charlm", "--on", "g5.xlrge"), ("g5.xlarge",)),
        (("charlm", "--on", "8xH100@-3"), ("price",)),
        (("charlm", "--on", "8xH100@$-3/h"), ("price",)),
        (("charlm", "--on", "0xH100"), ("at least 1",)),
        (("charlm", "--on", ""), ("empty",)),
        (("charlm", "--on", "64xH100"), ("at most 8", "8x(8xH100)")),
        (("sft", "--set", "model.config=qwen2.5-7", "--on", "H100"), ("qwen2.5-7b",)),
        (("sft", "--set", "model.config=lama-3.1-8b", "--on", "H100"), ("llama-3.1-8b",)),
        (("sft", "--set", "layout.tensor=3", "--on", "8xH100"), ("layout.tensor", "8 GPUs")),
        (("sft", "--set", "layout.expert=4", "--on", "8xH100"), ("layout.expert", "dense")),
        (("charlm", "--set", "layout.tensor=2", "--on", "8xH100"), ("layout.tensor",)),
        (("charlm", "--plot", "a.pdf"), (".png", ".html")),
        (("charlm", "--plot", "/nosuch/a.png"), ("/nosuch",)),
        (("charlm", "--calibration", __file__), ("--calibration", "is a file")),
        (("charlm", "--on", os.devnull + ".yaml"), ("/dev/null.yaml",)),
        (("nosuch.yaml",), ("nosuch.yaml", "check the path")),
        (("charlm", "--calibrate", "--on", "8xH100"), ("this machine",)),
        (("charlm", "--calibrate", "--on", "here", "--on", "8xH100"), ("this machine",)),
        (("charlm", "--set", "stages.pretrain.micro_batch=3", "--on", "8xH100"), ("micro_batch",)),
    ],
)
def test_bad_input_exits_2_with_what_and_the_fix(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = plan(*arguments)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    refused = plan(*arguments, "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stderr)["fix"]


def test_calibrate_without_a_gpu_says_so() -> None:
    done = plan("charlm", "--calibrate", CUDA_VISIBLE_DEVICES="", NVIDIA_VISIBLE_DEVICES="")
    if "GPU" not in done.stderr:
        pytest.skip("this machine has a GPU that cannot be hidden")
    assert done.returncode == 2
    assert "has none" in done.stderr


def test_corrections_are_used_and_can_be_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "windtunnel" / "calibration"
    folder.mkdir(parents=True)
    seen = {
        "family": "gpt", "recipe": "charlm", "model": "m", "layout": "l", "gpus": 1, "planned_gib": 10.0, "measured_gib": 11.0,
        "planned_seconds": 1.0, "measured_seconds": 1.5, "steps": 10, "when": "now", "versions": {},
    }  # fmt: skip
    (folder / "H100.json").write_text(json.dumps({"format": 1, "gpu": "H100", "constants": {}, "observations": [seen]}))
    arguments = ("charlm", "--set", "model.depth=12", "--on", "8xH100")
    with_it, without = planned(*arguments)[0], planned(*arguments, "--calibration", "none")[0]
    assert with_it["correction"] == {"memory_gib": 1.0, "time_factor": 1.5}
    assert without["correction"] == {}
    assert with_it["components"]["correction"] == 1.0
    (folder / "H100.json").write_text("{")
    broken = plan(*arguments)
    assert broken.returncode == 2
    assert "H100.json" in broken.stderr
    assert plan(*arguments, "--calibration", "none").returncode == 0


def test_planning_imports_neither_torch_nor_matplotlib() -> None:
    code = "import sys; from windtunnel.cli import main\ntry: main(['plan', 'charlm', '--on', 'g5.xlarge', '--on', '8xH100'])\n"
    code += "except SystemExit: pass\nprint([m for m in ('torch', 'matplotlib', 'transformers', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.stdout.splitlines()[-1] == "[]"
