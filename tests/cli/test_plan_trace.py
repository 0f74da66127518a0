"""`windtunnel plan --trace`: a second opinion on memory without a GPU, and what it cannot follow."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from zygote import windtunnel

from windtunnel.plan import Opinion

pytestmark = pytest.mark.end_to_end

DOCS = Path(__file__).parents[2] / "docs" / "plan-json.md"
SMALL = ("--set", "model.depth=4", "--set", "model.sequence=512")


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return windtunnel("plan", *arguments, env=os.environ | {"WINDTUNNEL_CALIBRATION": "none"})


def test_the_json_holds_the_trace_of_the_last_rig() -> None:
    done = plan("charlm", *SMALL, "--on", "H200", "--on", "2xH200", "--trace", "--json")
    assert done.returncode == 0, done.stderr
    first, last = json.loads(done.stdout)
    assert first["trace"] is None
    trace = last["trace"]
    described = DOCS.read_text().partition("### `trace`")[2].partition("\n## ")[0]
    assert {f.name for f in fields(Opinion)} == set(trace) == set(re.findall(r"^\| `(\w+)` \|", described, re.M))
    assert trace["planned_gib"] + trace["untraced_gib"] == pytest.approx(last["peak_gib"])
    weights = next(part for part in trace["parts"] if part["name"] == "weights")
    assert weights["traced_gib"] == pytest.approx(weights["planned_gib"], abs=0.001)  # the tables of rotary positions
    assert trace["agrees"] == (abs(trace["difference"]) <= 0.05)
    assert bool(trace["why"]) != trace["agrees"]
    assert "tracing all 4 blocks" in done.stderr


def test_the_text_sets_plan_and_trace_side_by_side_on_a_cpu_too() -> None:
    done = plan("charlm", *SMALL, "--on", "cpu", "--trace")
    assert done.returncode == 0, done.stderr
    assert re.search(r"weights +0\.\d+ GiB +0\.\d+ GiB", done.stdout)
    assert re.search(r"trace +(agrees|differs): the plan says", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rl", "--on", "8xH100"), "reinforcement learning"),
        (("sft", "--set", "layout.tensor=2", "--on", "8xH100"), "megatron-bridge"),
        (("sft", "--set", "model.weights=int4", "--on", "H100"), "int4"),
        (("sft", "--set", "model.adapter=null", "--set", "layout.offload=optimizer", "--on", "8xH100"), "CPU memory"),
    ],
)
def test_what_cannot_be_traced_is_named_with_a_way_out(arguments: tuple[str, ...], message: str) -> None:
    done = plan(*arguments, "--trace")
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr
