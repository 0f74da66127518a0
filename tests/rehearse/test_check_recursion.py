"""The checks of recursion fail when the code under them is broken, and pass when it is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windtunnel.check import Outcome, all_checks
from windtunnel.rehearse import Context, run_checks, select

pytestmark = pytest.mark.end_to_end

torch = pytest.importorskip("torch")

SUMS = ("data.corpus={kind: arithmetic}", "data.tokenizer={kind: character}", "trm.preset=aggressive")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def outcomes(names: list[str], folder: Path, *sets: str, source: str = "trm") -> dict[str, Outcome]:
    context = Context(source, SUMS + sets if source == "trm" else sets, ("8xH100",), folder=folder)
    return {o.check: o for o in run_checks(select(all_checks(), names), context, isolate=False)}


def outcome(name: str, folder: Path, *sets: str, source: str = "trm") -> Outcome:
    return outcomes([name], folder, *sets, source=source)[name]


def training(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Training goes by another objective than it is told."""
    from windtunnel.model import supervision

    true = supervision.train_supervised

    def other(model: Any, batches: Any, objective: Any, **options: Any) -> Any:
        return true(model, batches, replace(objective, **changes), **options)

    monkeypatch.setattr(supervision, "train_supervised", other)


@pytest.mark.parametrize(
    ("source", "sets"),
    [
        ("trm", ()),
        ("trm", ("trm.scheme=two_latent", "trm.cycles=2", "trm.gradient_cycles=last")),
        ("trm", ("trm.scheme=looped", "trm.preset=honest")),
        ("trm-sudoku", ()),
    ],
)
def test_all_pass_on_every_scheme(source: str, sets: tuple[str, ...], tmp_path: Path) -> None:
    names = ["recursion", "detach", "causality", *(["cache"] if source == "trm" else [])]
    made = outcomes(names, tmp_path, *sets, source=source)
    assert {name: made[name].status for name in names} == dict.fromkeys(names, "ok"), [made[n].evidence for n in names]


def test_attention_to_the_future_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import gpt

    def everywhere(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    monkeypatch.setattr(gpt, "attend", everywhere)
    assert "sees the future" in outcome("causality", tmp_path).evidence


def test_a_puzzle_read_from_left_to_right_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import gpt

    def back(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    monkeypatch.setattr(gpt, "attend", back)
    assert "do not see the last one" in outcome("causality", tmp_path, source="trm-sudoku").evidence


def test_states_that_are_not_detached_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training(monkeypatch, detach_from=64)
    made = outcome("detach", tmp_path)
    assert made.status == "fail"
    assert "it is not done" in made.evidence


def test_states_that_are_always_detached_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training(monkeypatch, detach_from=0)
    assert outcome("detach", tmp_path).status == "fail"


def test_weights_that_do_not_sum_to_one_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import supervision

    true = supervision.objective_of

    def heavy(*given: Any) -> Any:
        objective = true(*given)
        return replace(objective, weights=tuple(2 * weight for weight in objective.weights))

    monkeypatch.setattr(supervision, "objective_of", heavy)
    assert "do not sum to 1" in outcome("recursion", tmp_path).evidence


def test_an_objective_without_its_reward_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training(monkeypatch, improvement_reward=0.0)
    assert "put together from the losses" in outcome("recursion", tmp_path).evidence


def test_a_supervision_step_that_starts_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import RecursiveGPT

    true = RecursiveGPT.step_losses

    def spoiled(self: Any, *given: Any) -> Any:
        losses = true(self, *given)
        losses[0] += 1
        return losses

    monkeypatch.setattr(RecursiveGPT, "step_losses", spoiled)
    assert "of a model that knows nothing" in outcome("recursion", tmp_path).evidence


def test_a_cache_that_mixes_applications_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import KVCache

    true = KVCache.__init__

    def shared(self: Any, *given: Any, **options: Any) -> None:
        true(self, *given, **options)
        self.keys = self.keys[:1].expand_as(self.keys)

    monkeypatch.setattr(KVCache, "__init__", shared)
    assert "differ from those of a whole forward pass" in outcome("cache", tmp_path).evidence


def test_the_plan_of_every_stage_is_checked_and_added_up(tmp_path: Path) -> None:
    made = outcome("plan", tmp_path, "data.corpus={kind: counted, tokens: 5B}")
    assert made.status == "ok"
    assert "stage validation: depth 12" in made.evidence
    assert "all 2 stages" in made.evidence
    too_big = ("trm.supervision=32", "trm.detach_from=64", "layout.recompute=none")
    big = "stages.quality.micro_batch=32"
    refused = outcome("plan", tmp_path, big, *(f"stages.quality.set.{key}" for key in too_big))
    assert refused.status == "fail"
    assert "does not fit 8xH100, stage quality" in refused.evidence
    assert "layout.recompute=step" in refused.fix


def test_gates_are_listed_with_their_limits(tmp_path: Path) -> None:
    made = outcome("gates", tmp_path)
    assert made.facts["gates"]["validation"]["refinement"] == "at least 1 %"
    guide = outcome("gates", tmp_path, "stages.validation.gates.refinement=preset")
    assert guide.facts["gates"]["validation"]["refinement"] == "at least 15 %"
    assert {"order", "decreasing", "gradient_norm", "utilisation"} < set(made.facts["gates"]["validation"])


def test_resuming_a_run_of_a_stage_compares_it_with_that_stage(tmp_path: Path) -> None:
    context = Context("trm", SUMS, folder=tmp_path)
    assert [recipe.stage for recipe in context.stages] == ["validation", "quality"]
    assert context.recipe is context.stages[-1]
    assert context.scale.stage is None
    assert not context.scale.staged


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["trm", "trm-sudoku"])
def test_a_whole_rehearsal_ends_ready(name: str, tmp_path: Path) -> None:
    from windtunnel.recipe import load_recipe
    from windtunnel.rehearse import Options, rehearse
    from windtunnel.rehearse.runner import Silent

    sets = SUMS if name == "trm" else ()
    report = rehearse(load_recipe(name, sets), Options(root=tmp_path, steps=30), Silent())
    found = {outcome.check: outcome for outcome in report.outcomes}
    assert report.ready, [o.evidence for o in report.outcomes if o.status == "fail"]
    assert ("serve" in found) == (name == "trm")
    page = (report.context.folder / "report.html").read_text(encoding="utf-8")
    if name == "trm":
        assert "shown and not obeyed" in found["stages"].evidence
        assert "shown and not obeyed" in page
    else:
        assert "puzzles solved exactly" in found["evaluate"].evidence


@pytest.mark.parametrize("recompute", ["none", "step"])
def test_a_recursive_models_steps_are_tried_as_planned(recompute: str, tmp_path: Path) -> None:
    from windtunnel.launch import try_steps
    from windtunnel.plan import make_plan
    from windtunnel.rig import parse_rig

    small = Context("trm", SUMS, folder=tmp_path).scale
    small = small.model_copy(update={"layout": small.layout.model_copy(update={"recompute": recompute})})
    plan = make_plan(small, parse_rig("cpu"))
    assert plan.layout.recompute == recompute
    trial = try_steps(small, plan.layout, steps=2, warm_up=1, vocab=plan.vocab)
    assert trial.failure is None, trial.log
    assert set(trial.phases) == {"forward", "backward", "optimizer"}
    assert len(trial.losses) == 3
    assert trial.losses[-1] < trial.losses[0]
