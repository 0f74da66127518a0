"""The verifiers' self-test: it passes here, and names the cause where a verifier accepts or refuses what it should not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.check import CheckFailed
from windtunnel.recipe import GRPO, UserError
from windtunnel.rehearse import Context
from windtunnel.rl import Rewards
from windtunnel.verify import Sandbox, Verifiers, accept, require_working, self_test
from windtunnel.verify.checks import works
from windtunnel.verify.kernel import stages
from windtunnel.verify.kernel.tiny import Finding
from windtunnel.verify.probes import PROBES, Probe
from windtunnel.verify.selftest import TESTED, SelfTest, Trial, _fault

pytestmark = pytest.mark.end_to_end

pytest.importorskip("triton")
pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def verifiers() -> Iterator[Verifiers]:
    with Verifiers(2, gpu=False) as made:
        yield made


def faults(found: SelfTest) -> dict[str, str]:
    return {trial.probe.name: trial.fault for trial in found.trials if trial.fault}


def test_it_passes_here_for_every_kind(verifiers: Verifiers) -> None:
    found = self_test(verifiers)
    assert faults(found) == {}
    assert found.fault == ""
    assert {trial.probe.kind for trial in found.trials} == set(TESTED)
    for kind in TESTED:
        assert {trial.probe.right for trial in found.trials if trial.probe.kind == kind} == {True, False}
    require_working(verifiers, {"kernel": "stages.rl.rewards.0"})


def test_a_verifier_that_accepts_what_is_wrong_is_named(verifiers: Verifiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "judge_tiny", lambda *_: None)
    found = faults(self_test(verifiers, ["kernel"]))
    assert found["a kernel with wrong values"] == "a kernel with wrong values is wrong, and accepted"
    assert "a kernel that writes outside" in found
    assert "PyTorch in place of a kernel" not in found
    with pytest.raises(UserError, match=r"stages\.rl\.rewards\.0: verifiers of kind kernel do not work .* wrong, and accepted"):
        require_working(verifiers, {"kernel": "stages.rl.rewards.0", "exact": "stages.rl.rewards.1"})


def test_a_verifier_that_refuses_everything_is_named(verifiers: Verifiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "judge_compile", lambda *_: Finding("compile", "does-not-compile", "ptxas is not there."))
    found = faults(self_test(verifiers, ["kernel"]))
    assert "is right, and refused (stage compile, does-not-compile: ptxas is not there.)" in found["an element-wise kernel"]
    assert "for another reason" in found["a kernel with wrong values"]


def no_triton(kind: str, gpu: int) -> type[Sandbox]:
    return lambda: Sandbox(preload=("triton_that_is_not_installed",))  # type: ignore[return-value]


def test_without_workers_nothing_is_known_and_no_training_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.verify.kinds._maker", no_triton)
    with pytest.raises(UserError, match=r"stages\.rl\.rewards\.1: verifiers of kind kernel .*triton_that_is_not_installed"):
        Rewards(GRPO(name="rl", rewards=[{"kind": "exact"}, {"kind": "kernel"}]))  # type: ignore[list-item]


def test_the_check_judges_the_kinds_of_the_recipes_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context("rl", ("stages.rl.rewards=[{kind: code}, {kind: exact}]",), folder=tmp_path)
    assert works(context, lambda _: None).facts["answers"] == 3
    monkeypatch.setattr("windtunnel.verify.kinds._maker", no_triton)
    with pytest.raises(CheckFailed, match="nothing is known about a function that passes its tests"):
        works(context, lambda _: None)


def test_a_clock_that_is_not_steady_is_named() -> None:
    probe = next(probe for probe in PROBES if probe.right)
    timed = accept("timing", "Right.", evidence={"gpu": {"cold": {"median": 1e-5, "low": 0.99e-5, "high": 1.01e-5}}})
    assert _fault(probe, timed) == ""
    unsteady = replace(timed, evidence={"gpu": {"cold": {"median": 1e-5, "low": 0.8e-5, "high": 1.2e-5}}})
    assert "the clock is not steady: the median time of an element-wise kernel is known to within 40%" in _fault(probe, unsteady)


def test_trials_are_plain_json() -> None:
    trial = Trial(Probe("code", "it", {}, "x"), accept("tests", "Right."), "")
    assert json.loads(json.dumps(trial.as_json()))["ok"] is True
