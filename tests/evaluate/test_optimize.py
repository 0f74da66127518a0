"""`windtunnel optimize`: of candidates for a user's module the right one comes back with its proof, and a bad model's none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zygote import windtunnel

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny_hf import tiny_llama

from windtunnel.cli import main
from windtunnel.evaluate import Candidate, Optimized, Sampling, ask, optimize_module, read_candidates
from windtunnel.evaluate.optimize import Judged
from windtunnel.generate import load_source
from windtunnel.recipe import UserError
from windtunnel.verify import Verdict, Verifiers, accept, broken, judge_recording, refuse, tasks_of_module

pytestmark = pytest.mark.end_to_end

pytest.importorskip("triton")

MODULE = """\
import torch
from torch import nn


class BiasGelu(nn.Module):
    def __init__(self, width, scale=1.0):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = scale

    def forward(self, x):
        return nn.functional.gelu(x * self.scale + self.bias)


model = BiasGelu(256, scale=0.5)
example_inputs = (torch.randn(64, 256),)
"""
RIGHT = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_gelu(x_ptr, bias_ptr, y_ptr, n, cols, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) * scale
    x += tl.load(bias_ptr + at % cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width, scale=1.0):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        bias_gelu[(triton.cdiv(x.numel(), 256),)](x, self.bias, y, x.numel(), x.shape[-1], self.scale, BLOCK=256)
        return y
"""
WRONG = RIGHT.replace(" * scale", "")
PYTORCH = MODULE[: MODULE.index("\n\nmodel")].replace("BiasGelu", "ModelNew")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module, and answers of which one is right (twice), one wrong and one PyTorch."""
    folder = tmp_path_factory.mktemp("optimize")
    (folder / "module.py").write_text(MODULE)
    (folder / "answers").mkdir()
    (folder / "answers" / "a-wrong.py").write_text(WRONG)
    (folder / "answers" / "b-right.md").write_text(f"One kernel.\n```python\n{RIGHT}```\n")
    (folder / "answers" / "c-again.md").write_text(f"The same.\n```python\n{RIGHT}```\n")
    (folder / "answers" / "d-torch.py").write_text(PYTORCH)
    return folder


@pytest.fixture(scope="module")
def verifiers() -> Iterator[Verifiers]:
    with Verifiers(1, gpu=False) as made:
        yield made


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["optimize", *map(str, arguments)])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_right_one_comes_back_with_its_proof(folder: Path, tmp_path: Path) -> None:
    command = ["optimize", "module.py", "--candidates", "answers", "--no-gpu", "--out", str(tmp_path / "out")]
    done = windtunnel(*command, cwd=folder, env={**os.environ, "COLUMNS": "80"}, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 4 answers are right" in done.stdout
    assert "nothing was timed: there is no GPU here" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    out = tmp_path / "out"
    assert (out / "kernel.py").read_text() == RIGHT
    proof = json.loads((out / "proof.json").read_text())
    assert proof["candidate"] == "b-right"
    assert any("ragged" in case for case in proof["cases"])
    assert 0 < proof["errors"]["float32"]["share_of_allowed"] <= 1
    assert proof["times"] == {}
    assert "read its host code" in proof["host_code"]
    verdicts = {one["name"]: one for one in json.loads((out / "verdicts.json").read_text())["candidates"]}
    assert verdicts["b-right"]["twins"] == ["c-again"]
    assert verdicts["a-wrong"]["verdict"]["reason"] == "wrong-values"
    assert verdicts["d-torch"]["verdict"]["reason"] == "never-launched"


def test_its_plan_is_judged_right_again_and_wrong_ones_are_explained(folder: Path, verifiers: Verifiers) -> None:
    tasks = tasks_of_module(MODULE, "module", "module.py")
    found = optimize_module(verifiers, tasks, lambda _: (read_candidates(folder / "answers"), ["asked of nobody"]))
    assert found.best is not None
    assert found.plans is not None
    sizes = {one["form"]["size"] for one in json.loads(found.plans)["plans"]}
    assert {size for size in sizes if "long" not in size} == {"tiny", "tiny_ragged", "full"}
    again = verifiers.of_task(found.task)
    again.prepare()
    assert judge_recording(found.plans, again).accepted
    none = optimize_module(verifiers, tasks, lambda _: ([Candidate("a", WRONG), Candidate("b", "no code")], []))
    assert (found.right, found.answers, found.remarks[0]) == (2, 4, "asked of nobody")
    assert none.best is None
    assert none.proof() is None
    assert {reason for reason, _, _ in none.reasons()} == {"wrong-values", "import-failed"}


def test_a_random_model_is_asked_and_none_is_right(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_llama(tmp_path / "model", max_position_embeddings=2048)
    options = ["--model", model, "--samples", "3", "--tokens", "12", "--no-gpu", "--json", "--device", "cpu"]
    code, out, _ = call(capsys, folder / "module.py", *options)
    found = json.loads(out)
    assert code == 1
    assert (found["answers"], found["right"], found["best"]) == (3, 0, None)
    assert sum(reason["answers"] for reason in found["reasons"]) == 3


def test_the_same_seed_gives_the_same_answers_and_a_context_has_to_hold_the_prompt(tmp_path: Path) -> None:
    source = load_source(tiny_llama(tmp_path / "model", max_position_embeddings=2048), device="cpu")
    sampling = Sampling(samples=3, tokens=4000, seed=5)
    first, remarks = ask(source.generator, "x = 1" + " #" * 800, sampling)
    assert "answers have at most" in remarks[0]
    assert [one.text for one in first] == [one.text for one in ask(source.generator, "x = 1" + " #" * 800, sampling)[0]]
    assert len({one.text for one in first}) == 3
    with pytest.raises(UserError, match="the model's context 2,048"):
        ask(source.generator, MODULE * 10, sampling)
    source.generator.close()
    plain = load_source(tiny_llama(tmp_path / "plain", template=False, max_position_embeddings=2048), device="cpu")
    assert "no chat template" in ask(plain.generator, MODULE, Sampling(samples=1, tokens=2))[1][0]
    plain.generator.close()


def verdict(launches: int = 1, median: float | None = None) -> Verdict:
    evidence: dict[str, Any] = {"kernels": {"launches": {"k": launches}}}
    if median is not None:
        evidence["gpu"] = {"cold": {"median": median, "low": median, "high": median}, "speedup": {"eager": 1e-4 / median}}
    return accept("timing", "Right.", evidence=evidence)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, verifiers: Verifiers) -> Any:
    """Choose among candidates whose verdicts are given."""

    def choose(verdicts: dict[str, Verdict]) -> Optimized:
        monkeypatch.setattr("windtunnel.verify.kernel.KernelVerifier.verify", lambda _, source: verdicts[source])
        given = [Candidate(name, name) for name in verdicts]
        return optimize_module(verifiers, tasks_of_module(MODULE, "module", "module.py"), lambda _: (given, []))

    return choose


def test_the_fastest_of_those_that_are_right_is_chosen(chosen: Any) -> None:
    found = chosen({"wrong": refuse("tiny", "wrong-values", "No."), "slow": verdict(1, 2e-5), "fast": verdict(3, 1e-5)})
    assert found.best.candidate.name == "fast"
    assert found.to_json()["timed"] is True
    found = chosen({"three": verdict(3), "one": verdict(1)})
    assert found.best.candidate.name == "one"
    assert "this one has the fewest launches" in " ".join(found.remarks)
    found = chosen({"lost": broken("tiny", "The worker died.")})
    assert (found.best, found.unknown) == (None, 1)


def test_what_cannot_be_used_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, words in [
        ([folder / "module.py"], "give either --model or --candidates"),
        ([folder / "missing.py", "--candidates", folder / "answers"], "missing.py"),
        ([folder / "module.py", "--candidates", tmp_path / "empty"], "holds no .py, .md or .txt file"),
        ([folder / "module.py", "--candidates", tmp_path / "nowhere"], "there is no such folder"),
        ([folder / "module.py", "--model", tmp_path / "nowhere"], "no run folder"),
    ]:
        code, _, err = call(capsys, *arguments)
        assert code == 2
        assert words in err
    with pytest.raises(UserError, match="cannot be written"):
        Optimized(tasks_of_module(MODULE, "m", "m.py")[0], (Judged(Candidate("a", "b"), verdict()),), None).write(
            folder / "module.py"
        )
