"""Measurements that correct plans: what they change, how the error shrinks, and files that are damaged."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from windtunnel.launch import observe_run
from windtunnel.plan import (
    GPTConstants,
    Plan,
    load_constants,
    load_hf_constants,
    make_plan,
    observe,
    shipped_constants,
    user_path,
)
from windtunnel.plan.calibration import KEPT, MOST_SAVED, Observation, corrected, correction
from windtunnel.recipe import Recipe, UserError, load_recipe
from windtunnel.rig import parse_rig
from windtunnel.run import Metrics, RunFolder

GOOD = {
    "family": "gpt", "recipe": "r", "model": "m", "layout": "l", "gpus": 1, "planned_gib": 10.0, "measured_gib": 10.2,
    "planned_seconds": 1.0, "measured_seconds": 1.01, "steps": 10, "when": "now", "versions": {},
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WINDTUNNEL_CALIBRATION", raising=False)
    return tmp_path / "windtunnel" / "calibration"


def charlm(*overrides: str) -> Recipe:
    return load_recipe("charlm", ("model.depth=24", "stages.pretrain.micro_batch=16", *overrides))


def plan_of(*overrides: str, rig: str = "H200") -> Plan:
    return make_plan(charlm(*overrides), parse_rig(rig))


def measure(plan: Plan, memory: float, time: float) -> None:
    """As if a trial had needed so many GiB more and so many times the time."""
    observe(plan.to_json(), "H200", memory_gib=plan.reserved_gib + memory, step_seconds=plan.step_seconds * time, steps=10)


def test_one_measurement_makes_the_same_plan_right_and_its_error_smaller(folder: Path) -> None:
    before = plan_of()
    measure(before, 1.5, 1.1)
    after = plan_of()
    assert after.reserved_gib == pytest.approx(before.reserved_gib + 1.5)
    assert after.step_seconds == pytest.approx(before.step_seconds * 1.1)
    assert sum(after.step_terms.values()) - after.hidden_seconds == pytest.approx(after.step_seconds)
    assert sum(after.components.values()) == pytest.approx(after.peak_gib)
    assert after.error["memory"] < before.error["memory"]
    assert after.error["time"] < before.error["time"]
    assert after.correction == pytest.approx({"memory_gib": 1.5, "time_factor": 1.1})
    assert before.correction == {}
    assert "calibration/H200.json" in after.sources["peak_gib"]
    assert "1 measurement on H200" in after.sources["step_seconds"]


def test_measuring_again_under_a_corrected_plan_adds_nothing(folder: Path) -> None:
    truth = plan_of()
    memory, seconds = truth.reserved_gib + 2.0, truth.step_seconds * 0.9
    for _ in range(3):
        observe(plan_of().to_json(), "H200", memory_gib=memory, step_seconds=seconds, steps=10)
    assert plan_of().reserved_gib == pytest.approx(memory)
    assert plan_of().step_seconds == pytest.approx(seconds)
    assert len(json.loads((folder / "H200.json").read_text())["observations"]) == 1, "the newest of each configuration"


def test_several_configurations_give_the_median_and_the_error_covers_what_they_still_miss() -> None:
    before = [plan_of(f"model.depth={depth}") for depth in (12, 20, 24)]
    for plan, memory, time in zip(before, (0.5, 1.0, 6.0), (1.0, 1.05, 1.3), strict=True):
        measure(plan, memory, time)
    after = [plan_of(f"model.depth={depth}") for depth in (12, 20, 24)]
    assert after[0].correction == pytest.approx({"memory_gib": 1.0, "time_factor": 1.05})
    for old, new, memory, time in zip(before, after, (0.5, 1.0, 6.0), (1.0, 1.05, 1.3), strict=True):
        measured = old.reserved_gib + memory
        assert abs(new.reserved_gib - measured) / measured <= new.error["memory"] + 1e-9
        assert abs(new.step_seconds / (old.step_seconds * time) - 1) <= new.error["time"] + 1e-9


def test_the_error_shrinks_with_their_number() -> None:
    same = Observation(**GOOD)
    errors = [correction([same] * n, 0.12, 0.2) for n in (1, 4, 1000)]
    assert errors[0].memory_error > errors[1].memory_error > errors[2].memory_error > 0
    assert errors[0].time_error > errors[1].time_error > errors[2].time_error > 0


def test_only_that_gpu_and_that_family_are_corrected() -> None:
    h100 = plan_of(rig="H100")
    measure(plan_of(), 1.5, 1.1)
    assert plan_of(rig="H100") == h100
    assert plan_of(rig="8xH200").correction, "the same GPU in another rig"
    assert corrected(GPTConstants(), "H200", "hf") == GPTConstants()
    assert corrected(GPTConstants(), "H200", "gpt") != GPTConstants()


def test_memory_taken_away_is_bounded() -> None:
    before = plan_of()
    measure(before, -0.9 * before.reserved_gib, 1.0)
    assert plan_of().peak_gib == pytest.approx((1 - MOST_SAVED) * before.peak_gib)


def test_the_correction_decides_whether_a_plan_fits() -> None:
    before = plan_of()
    assert before.fits
    measure(before, before.limit_gib, 1.0)
    after = plan_of()
    assert not after.fits
    assert "correction" in after.reasons[0]


def test_none_switches_it_off_and_a_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = plan_of()
    measure(before, 1.5, 1.1)
    monkeypatch.setenv("WINDTUNNEL_CALIBRATION", "none")
    assert plan_of() == before
    assert observe(before.to_json(), "H200", memory_gib=1.0, step_seconds=1.0, steps=10) is None
    monkeypatch.setenv("WINDTUNNEL_CALIBRATION", str(tmp_path / "elsewhere"))
    assert plan_of() == before
    measure(before, 3.0, 1.0)
    assert (tmp_path / "elsewhere" / "H200.json").is_file()
    assert plan_of().correction["memory_gib"] == pytest.approx(3.0)


def test_the_newest_are_kept(folder: Path) -> None:
    plan = plan_of().to_json()
    for number in range(KEPT + 5):
        observe(plan | {"model": f"model {number}"}, "H200", memory_gib=10.0, step_seconds=1.0, steps=10)
    models = [o["model"] for o in json.loads((folder / "H200.json").read_text())["observations"]]
    assert models == [f"model {number}" for number in range(5, KEPT + 5)]


@pytest.mark.parametrize("figure", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_measurement_is_refused(figure: float, folder: Path) -> None:
    plan = plan_of().to_json()
    with pytest.raises(UserError, match="measured_gib"):
        observe(plan, "H200", memory_gib=figure, step_seconds=1.0, steps=10)
    with pytest.raises(UserError, match="measured_seconds"):
        observe(plan, "H200", memory_gib=10.0, step_seconds=figure, steps=10)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "format"),
        ("null", "format"),
        ('{"format": 99}', "format"),
        ('{"format": 1, "observations": {}}', "observations"),
        ('{"format": 1, "constants": []}', "constants"),
        ('{"format": 1, "constants": {"gpt": {"matmul_eficiency": 0.8}}}', "matmul_eficiency"),
        ('{"format": 1, "constants": {"gpt": {"matmul_efficiency": "fast"}}}', "matmul_efficiency"),
        ('{"format": 1, "constants": {"gpt": {"matmul_efficiency": NaN}}}', "matmul_efficiency"),
        ('{"format": 1, "constants": {"gpt": 3}}', "mapping"),
        ('{"format": 1, "observations": [3]}', r"observations\[0\]"),
        ('{"format": 1, "observations": [{"family": "gpt"}]}', r"observations\[0\]"),
        (json.dumps({"format": 1, "observations": [GOOD | {"planned_gib": 0}]}), "planned_gib"),
        (json.dumps({"format": 1, "observations": [GOOD | {"measured_seconds": "1"}]}), "measured_seconds"),
        (json.dumps({"format": 1, "observations": [GOOD, GOOD | {"family": "trm"}]}), r"observations\[1\]: family"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(content: str, named: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "H200.json").write_text(content)
    with pytest.raises(UserError, match=named) as caught:
        plan_of()
    assert "H200.json" in caught.value.message
    assert caught.value.fix
    plan_of(rig="H100")  # nobody else's plans suffer


def test_constants_in_the_file_override_the_shipped_ones(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "H200.json").write_text('{"format": 1, "gpu": "H200", "constants": {"gpt": {"context_gib": 9.5}}}')
    assert load_constants("H200").context_gib == 9.5
    assert load_constants("H100").context_gib != 9.5


def test_the_file_of_an_odd_gpu_name_stays_in_its_folder(folder: Path) -> None:
    path = user_path("../../etc/NVIDIA Weird/GPU")
    assert path is not None
    assert path.parent == folder


@pytest.mark.parametrize("family", ["gpt", "hf"])
def test_shipped_constants_are_by_family(family: str) -> None:
    assert isinstance(shipped_constants("H200", family), dict)
    assert shipped_constants("no such GPU", family) == {}


def finished_run(tmp_path: Path, rig: str, steps: int, seconds: float = 8.4) -> tuple[Path, Plan]:
    """A run folder as training leaves it: slow first steps, then 1.2 s and 40 GiB."""
    recipe = charlm()
    plan = make_plan(recipe, parse_rig(rig))
    with RunFolder.create(tmp_path / "runs", recipe, rig=asdict(parse_rig(rig)), plan=plan.to_json()) as run:
        with Metrics(run.metrics_path) as metrics:
            for step in range(1, steps + 1):
                metrics.log(step, {"step_seconds": 60.0 if step < 5 else seconds + 0.001 * (step % 3 - 1), "memory_gib": 40.0})
        return run.path, plan


def test_a_finished_run_on_a_gpu_is_a_measurement(tmp_path: Path) -> None:
    path, before = finished_run(tmp_path, "H200", 60)
    assert observe_run(path) == user_path("H200")
    after = make_plan(charlm(), parse_rig("H200"))
    assert after.reserved_gib == pytest.approx(40.0)
    assert after.step_seconds == pytest.approx(8.4, rel=0.001)
    assert after.reserved_gib != before.reserved_gib


@pytest.mark.parametrize(("rig", "steps"), [("H200", 25), ("cpu", 60)])
def test_a_short_run_or_one_on_a_cpu_is_none(rig: str, steps: int, tmp_path: Path, folder: Path) -> None:
    path, _ = finished_run(tmp_path, rig, steps)
    assert observe_run(path) is None
    assert not folder.exists()


def test_a_run_far_from_its_plan_tells_nothing_about_the_gpu(tmp_path: Path, folder: Path) -> None:
    path, before = finished_run(tmp_path, "H200", 60, seconds=20.0)
    assert before.step_seconds < 10.0
    assert observe_run(path) is None
    assert not folder.exists()


def test_files_of_earlier_versions_are_read(folder: Path) -> None:
    folder.mkdir(parents=True)
    old = {"format": 1, "constants": {"causal": {"half_dim": 1.0}}, "observations": [GOOD | {"family": "causal"}]}
    (folder / "H200.json").write_text(json.dumps(old))
    constants = load_hf_constants("H200")
    assert constants.half_dim == 1.0
    assert constants.extra_gib == pytest.approx(0.2)
