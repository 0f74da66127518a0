"""The checks of model, optimizer, layout and checkpoint fail when the code under them is broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windtunnel.check import CheckFailed, Findings, Outcome, all_checks
from windtunnel.model.checks import whole_parameters
from windtunnel.plan import Layout
from windtunnel.rehearse import Context, run_checks, select
from windtunnel.rig import parse_rig

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def outcome(name: str, folder: Path, *sets: str, source: str = "charlm", on: str = "8xH100") -> Outcome:
    context = Context(source, sets, (on,), folder=folder)
    return {o.check: o for o in run_checks(select(all_checks(), [name]), context, isolate=False)}[name]


def test_a_model_whose_head_starts_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model.gpt import GPT

    true = GPT.initialise

    def loud(self: Any, seed: int) -> None:
        true(self, seed)
        with torch.no_grad():
            self.head.weight.normal_(std=1.0, generator=torch.Generator().manual_seed(1))

    monkeypatch.setattr(GPT, "initialise", loud)
    made = outcome("model", tmp_path)
    assert "of a model that knows nothing 2.8904 is expected" in made.evidence


def test_a_parameter_without_a_gradient_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model.gpt import MLP

    monkeypatch.setattr(MLP, "forward", lambda self, x, amax=None, gradient_amax=None: torch.zeros_like(x))
    made = outcome("model", tmp_path)
    assert "no gradient reaches" in made.evidence
    assert "mlp" in made.evidence


def test_a_model_of_another_size_than_planned_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model.shape import GPTShape

    true = GPTShape.parameters.fget
    monkeypatch.setattr(GPTShape, "parameters", property(lambda self: true(self) + 1))
    assert "the plan counts" in outcome("model", tmp_path).evidence


def test_the_models_size_is_counted_with_the_plans_vocabulary(tmp_path: Path) -> None:
    """Where the corpus is not read whole, the scale model's vocabulary is another than the one that is planned."""
    context = Context("trm", ("model.depth=2",), ("8xH100",), folder=tmp_path)
    plan = context.plan()
    assert whole_parameters(context) == (plan.params, plan.vocab)
    assert plan.vocab == context.recipe.data.tokenizer.vocab_size > context.scale.data.tokenizer.vocab_size


def test_attention_to_the_future_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import gpt

    def everywhere(q: Any, k: Any, v: Any, *_: Any) -> Any:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)

    monkeypatch.setattr(gpt, "attend", everywhere)
    assert "sees the future" in outcome("causality", tmp_path).evidence


def test_attention_to_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import checks as model
    from windtunnel.model import gpt

    monkeypatch.setattr(gpt, "attend", lambda q, k, v, *_: v.repeat_interleave(q.shape[2] // v.shape[2], dim=2))
    with pytest.raises(CheckFailed, match="attention passes nothing on"):
        model.causality(Context("charlm", folder=tmp_path), print)


def test_products_that_lose_precision_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import checks as model

    true = Context.network

    def coarse(context: Context, compute: str = "float32", device: str = "cpu") -> Any:
        gpt = true(context, compute, device)
        if compute == "bfloat16":
            for parameter in gpt.parameters():
                parameter.data = parameter.data + 0.5 * torch.randn_like(parameter)
        return gpt

    monkeypatch.setattr(Context, "network", coarse)
    with pytest.raises(CheckFailed, match="bf16"):
        model.precision(Context("charlm", folder=tmp_path), print)


def test_an_optimizer_that_forgets_weights_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.train.groups import VectorGroup

    monkeypatch.setattr(VectorGroup, "update", lambda self, scalars: None)
    made = outcome("optimizer", tmp_path)
    assert "leave" in made.evidence
    assert "embedding" in made.evidence


def test_a_parameter_in_two_groups_is_named() -> None:
    from windtunnel.train.checks import _one_group_each

    class Model:
        def named_parameters(self) -> Iterator[tuple[str, None]]:
            yield from (("a", None), ("b", None))

    _one_group_each(Model(), ["b", "a"])  # type: ignore[arg-type]
    for grouped in (["a"], ["a", "b", "b"], ["a", "b", "c"]):
        with pytest.raises(CheckFailed, match="exactly one group"):
            _one_group_each(Model(), grouped)  # type: ignore[arg-type]


def a_layout(**changes: Any) -> Layout:
    given: dict[str, Any] = {
        "ranks": 8,
        "micro_batch": 1,
        "accumulation": 1,
        "sequence": 2048,
        "precision": "bf16",
        "compile": True,
    }
    return Layout(device="cuda", **given | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranks": 6}, "2 of 8 GPUs stand idle"),
        ({"ranks": 16}, "16 ranks for 8 GPUs"),
        ({"tensor": 3}, "cannot be 3 tensor"),
        ({"ranks": 8, "expert": 16}, "cannot share experts over 16"),
    ],
)
def test_ranks_that_do_not_come_out_are_named(changes: dict[str, Any], words: str) -> None:
    from windtunnel.plan.checks import _judge_ranks

    found = Findings()
    _judge_ranks("here", a_layout(**changes), 8, parse_rig("8xH100"), found)
    try:
        said = " ".join(found.evidence("").warnings)
    except CheckFailed as error:
        said = error.what
    assert words in said


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        ("qwen2.5-7b", {"tensor": 8}, "8 tensor ranks cannot share 28 heads"),
        ("qwen2.5-7b", {"expert": 2}, "2 expert ranks cannot share 0 experts"),
        ("mixtral-8x7b", {"expert": 3}, "3 expert ranks cannot share 8 experts"),
        ("qwen2.5-7b", {"pipeline": 32}, "32 pipeline ranks cannot share 28 layers"),
        ("qwen2.5-7b", {"pipeline": 12}, "the one with 3 holds up the others"),
        ("qwen2.5-7b", {"tensor": 4, "pipeline": 4}, ""),
        ("deepseek-v3", {"expert": 8, "pipeline": 4}, ""),
    ],
)
def test_a_model_that_cannot_be_cut_is_named(config: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    from windtunnel.plan.checks import _judge_model

    context, found = Context("sft", (f"model.config={config}",), folder=tmp_path), Findings()
    _judge_model(context, "here", a_layout(ranks=96, **changes), found)
    try:
        said = " ".join(found.evidence("").warnings)
    except CheckFailed as error:
        said = error.what
    assert words in said
    assert bool(words) == bool(said)


def test_prompts_that_learners_cannot_share_evenly_are_named(tmp_path: Path) -> None:
    asked = ("stages.rl.prompts=63", "stages.rl.samples=7")
    made = outcome("plan", tmp_path, *asked, "stages.rl.learners=4", source="rl")
    assert "4 cannot share the 63 prompts of a round evenly" in made.evidence
    assert "7 data-parallel ranks" in outcome("layout", tmp_path, *asked, source="rl").evidence


def test_a_plan_that_train_cannot_run_is_not_ready(tmp_path: Path) -> None:
    made = outcome("layout", tmp_path, "layout.pipeline=2", source="finetune")
    assert made.status == "fail"
    assert "`windtunnel train` cannot run this plan: it is for megatron-bridge" in made.evidence
    assert "windtunnel launch" in (made.fix or "")
    assert outcome("layout", tmp_path, source="finetune").status == "ok"


def test_ranks_that_compute_something_else_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel import launch
    from windtunnel.launch import Trial
    from windtunnel.launch import checks as layout_ranks

    def trial(recipe: Any, layout: Layout, **more: Any) -> Trial:
        return Trial({}, losses=(2.0, 1.9 if layout.ranks == 1 else 1.8))

    monkeypatch.setattr(launch, "try_steps", trial)
    context = Context("charlm", folder=tmp_path)
    with pytest.raises(CheckFailed, match="is allowed for another order of sums"):
        layout_ranks.ranks(context, print)
    monkeypatch.setattr(launch, "try_steps", lambda *given, **more: Trial({}, failure="no port"))
    with pytest.raises(CheckFailed, match="no port"):
        layout_ranks.ranks(context, print)


def a_run(folder: Path, loss: float, weight: float) -> Path:
    import torch

    from windtunnel.checkpoint import CheckpointStore, Facts, save_now
    from windtunnel.rehearse.checks import STEPS
    from windtunnel.run import Metrics

    folder.mkdir(parents=True)
    with Metrics(folder / "metrics.sqlite", None) as metrics:
        for step in range(1, 4):
            metrics.log(step, {"loss": loss if step == 3 else 1.0, "gradient_norm": 1.0, "learning_rate": 0.1})
    save_now(CheckpointStore(folder / "checkpoints"), {"model": {"w": torch.full((8,), weight)}}, Facts(STEPS))
    return folder


def test_a_resumed_run_that_differs_is_named(tmp_path: Path) -> None:
    from windtunnel.rehearse.checks import _compare

    ours = a_run(tmp_path / "ours", 0.5, 1.0)
    assert _compare(ours, a_run(tmp_path / "same", 0.5, 1.0)) == 9
    with pytest.raises(CheckFailed, match="loss at step 3"):
        _compare(ours, a_run(tmp_path / "loss", 0.5000001, 1.0))
    with pytest.raises(CheckFailed, match="weights differ"):
        _compare(ours, a_run(tmp_path / "weights", 0.5, 1.0000001))


def test_a_wrong_answer_in_the_corpus_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel import data

    monkeypatch.setattr(data, "solve", lambda expression: "7")
    assert "the answer should be 7" in outcome("data-answers", tmp_path).evidence


def test_every_known_model_has_a_small_one() -> None:
    from windtunnel.model import hf_shape, known_models
    from windtunnel.model.hf_blocks import shape_from_config
    from windtunnel.rehearse.scale import small_config

    for name in known_models():
        whole = hf_shape(name)
        small = shape_from_config(name, small_config(whole.raw), name)
        assert small.parameters < 1_000_000, name
        assert (small.tied, small.experts is None, small.mla is None) == (whole.tied, whole.experts is None, whole.mla is None)
        assert {block.experts is None for block in small.blocks} == {block.experts is None for block in whole.blocks}


@pytest.mark.parametrize("source", ["charlm", "trm", "trm-sudoku", "finetune", "sft", "rl"])
def test_what_is_ready_can_be_trained(source: str, tmp_path: Path) -> None:
    """The check and `windtunnel train` ask the same function, before anything else."""
    from windtunnel.launch import Options
    from windtunnel.launch.prepare import prepare_run
    from windtunnel.recipe import UserError, load_recipe

    made = outcome("training", tmp_path, source=source)
    if made.status == "ok":
        return
    with pytest.raises(UserError) as refused:
        prepare_run(load_recipe(source), Options(root=tmp_path / "runs"), print)
    assert made.evidence == refused.value.message
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("source", "on"), [("charlm", "8xH100"), ("sft", "8xH100"), ("rl", "8xH100")])
def test_what_ships_is_ready_for_its_rig(source: str, on: str, tmp_path: Path) -> None:
    context = Context(source, (), (on,), folder=tmp_path, root=tmp_path / "runs")
    outcomes = run_checks(all_checks(), context)
    refused = {"training"} if source != "charlm" else set()  # templates name no data
    assert not [f"{o.check}: {o.evidence}" for o in outcomes if (o.status == "fail" and o.check not in refused) or o.cause]
    if source == "charlm":
        assert sum(o.seconds for o in outcomes) < 180


@pytest.mark.parametrize("on", ["8xH100", "8xH100-PCIe", "8xH200", "H200", "4xA100-80", "g5.xlarge", "RTX4090"])
def test_charlm_is_ready_for_other_rigs(on: str, tmp_path: Path) -> None:
    for name in ("layout", "schedule", "data-amount"):
        assert outcome(name, tmp_path, on=on).status == "ok"
