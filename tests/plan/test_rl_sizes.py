"""The page on sizes of GRPO says what plans say."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from windtunnel.plan import make_plan
from windtunnel.plan.judging import (
    CORE_SECONDS,
    GENERATED_KERNELS,
    MOST_WORKERS,
    REPLAYED_KERNELS,
    TIMED_KERNELS,
    Asked,
    asked_of,
    judge_answers,
)
from windtunnel.recipe import load_recipe, stage_recipe
from windtunnel.rig import parse_rig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WINDTUNNEL_RIGS", "WINDTUNNEL_PRICE", "WINDTUNNEL_CALIBRATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import rl_sizes

    return rl_sizes


def test_the_page_is_what_plans_say_today(sizes: ModuleType) -> None:
    assert sizes.DOC.read_text() == sizes.document(), "python benchmarks/rl_sizes.py"


def test_every_verifiers_time_is_the_measured_one() -> None:
    results = BENCHMARKS / "results"
    one = json.loads((results / "verify-speed-cpu.json").read_text())["scaling"][0]
    assert one["workers"] == 1
    assert CORE_SECONDS["kernel"] == pytest.approx(1 / one["kernel_per_second"])
    assert CORE_SECONDS["code"] == pytest.approx(1 / one["code_per_second"])
    assert CORE_SECONDS["math"] == pytest.approx(1 / json.loads((results / "verify-math-cpu.json").read_text())["per_second"])


def test_kernels_are_judged_at_a_speed_that_was_measured_and_the_plan_says_at_which() -> None:
    for speed in (TIMED_KERNELS, REPLAYED_KERNELS, GENERATED_KERNELS):
        found = json.loads((BENCHMARKS / "results" / speed.file).read_text())
        for key in speed.entry:
            found = found[key]
        assert found == speed.per_second
    stage = load_recipe("rl", ["stages.rl.rewards=[{kind: kernel, key: task}]"]).rl
    assert stage is not None
    used, _, other = judge_answers(stage, parse_rig("8xH100"), 1).source.partition("not counted with")
    assert f"3.6 kernels a second and machine, {REPLAYED_KERNELS.what}" in used
    assert REPLAYED_KERNELS.file in used
    assert "3.5 kernels a second" in other
    assert TIMED_KERNELS.file in other


def test_generated_tasks_are_judged_at_their_own_speed_unless_they_are_timed() -> None:
    right = "stages.rl.rewards=[{kind: kernel, key: task}]"

    def seconds(rig: str, *sets: str) -> float:
        recipe = stage_recipe(load_recipe("kernels", [*sets, "stages.rl.cross_check=0"]), "rl")
        assert recipe.rl is not None
        return judge_answers(recipe.rl, parse_rig(rig), 1, 1000, asked_of(recipe)).seconds

    assert seconds("H100") == pytest.approx(1000 / REPLAYED_KERNELS.per_second), "the recipe rewards speed"
    assert seconds("8xH100", right) == pytest.approx(1000 / GENERATED_KERNELS.per_second)
    few = parse_rig("g5.xlarge").cpu_cores
    assert few < (GENERATED_KERNELS.cores or 0)
    assert seconds("g5.xlarge", right) == pytest.approx(
        1000 / GENERATED_KERNELS.per_second * (GENERATED_KERNELS.cores or 0) / few
    )
    mine = "stages.rl.set={data.corpus: {kind: prompts, kernels: {tasks: 100, problems: [mine.py]}}}"
    assert seconds("8xH100", right, mine) == pytest.approx(1000 / REPLAYED_KERNELS.per_second)


def test_a_round_waits_for_its_judges() -> None:
    rewards = "stages.rl.rewards=[{kind: math}, {kind: code}, {kind: format, task: {tags: [think]}}]"
    stage, rig = load_recipe("rl", [rewards, "stages.rl.cross_check=0"]).rl, parse_rig("8xH100")
    assert stage is not None
    one = judge_answers(stage, rig, 1)
    core_seconds = stage.prompts * stage.samples * (CORE_SECONDS["math"] + CORE_SECONDS["code"])
    assert one.seconds == pytest.approx(core_seconds / MOST_WORKERS)
    assert judge_answers(stage, rig, 2).seconds == pytest.approx(one.seconds / 2), "every learner judges its own"
    assert judge_answers(stage, rig, 64).seconds == pytest.approx(core_seconds / rig.cpu_cores), "with the cores that there are"
    assert "format is not counted" in one.source


def test_a_judge_of_one_subject_judges_its_share_of_the_prompts() -> None:
    recipe, rig = load_recipe("grpo", ["stages.sft=null", "stages.rl.cross_check=0"]), parse_rig("8xH100")
    stage = recipe.rl
    assert stage is not None
    answers = stage.prompts * stage.samples / 3
    third = pytest.approx(answers * (CORE_SECONDS["math"] + CORE_SECONDS["code"]) / MOST_WORKERS)
    assert judge_answers(stage, rig, 1).seconds == third
    assert judge_answers(stage, rig, 1, asked=Asked(("mathematics", "general", "code"))).seconds == third
    assert judge_answers(stage, rig, 1, asked=Asked(("code",))).seconds == pytest.approx(
        3 * answers * CORE_SECONDS["code"] / MOST_WORKERS
    )


def test_a_cpu_is_planned_for_by_either_of_its_names() -> None:
    plans = [make_plan(stage_recipe(load_recipe("grpo"), "rl"), parse_rig(name)) for name in ("cpu", "here@$1/h")]
    assert plans[0].step_seconds == plans[1].step_seconds
