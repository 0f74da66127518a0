"""What a run begins with: the weights of a run before it, and nothing else of that run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import prepared_run

from windtunnel.checkpoint import CheckpointStore
from windtunnel.launch import Options
from windtunnel.recipe import UserError
from windtunnel.run import MetricsReader, RunFolder
from windtunnel.train import train

SCHEDULE = ("stages.pretrain.schedule.warmup_steps=0", "budget.steps=30")


def losses(run: Path) -> list[float]:
    with MetricsReader(run / "metrics.sqlite") as metrics:
        return [point.value for point in metrics.series("loss")]


def test_a_run_begins_with_the_best_weights_of_another(new_run: Callable[..., Path]) -> None:
    first = new_run(*SCHEDULE)
    assert train(first) == 0
    twice = []
    for root in ("second", "third"):
        run = new_run(*SCHEDULE, f"stages.pretrain.init_from={first}", root=root)
        best = CheckpointStore(RunFolder.open(first).checkpoints_dir).best()
        assert best is not None
        assert RunFolder.open(run).manifest["init"] == {"run": str(first.resolve()), "step": best.step}
        assert train(run) == 0
        twice.append(losses(run))
    assert twice[0] == twice[1]
    # The first batch is that of the first run, scored by trained weights; the steps begin at 1 again.
    assert len(twice[0]) == len(losses(first))
    assert twice[0][0] < losses(first)[0] - 0.2


@pytest.mark.parametrize(
    ("init", "says"),
    [("previous", "no stage"), ("nowhere", "no run or folder nowhere")],
)
def test_what_is_not_there_is_refused(new_run: Callable[..., Path], init: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        new_run(f"stages.pretrain.init_from={init}")
    assert says in caught.value.message


def test_weights_of_another_model_are_refused_before_a_step(new_run: Callable[..., Path]) -> None:
    first = new_run("budget.steps=8")
    assert train(first) == 0
    other = new_run("budget.steps=8", "model.depth=3", f"stages.pretrain.init_from={first}", root="other")
    with pytest.raises(UserError) as caught:
        train(other)
    assert "of another model" in caught.value.message


def test_a_run_goes_on_without_the_one_that_it_began_with(new_run: Callable[..., Path], tiny: Path) -> None:
    first = new_run("budget.steps=8")
    assert train(first) == 0
    sets = ("budget.steps=8", f"stages.pretrain.init_from={first}")
    saved, unsaved = (new_run(*sets, root=root) for root in ("saved", "unsaved"))
    assert train(saved) == 0
    first.rename(first.with_name("moved"))
    options = Options(root=saved.parent, run=saved, resume=True)
    assert train(prepared_run(tiny, (*sets, "budget.steps=16"), None, options)) == 0
    assert len(losses(saved)) == 16
    with pytest.raises(UserError, match="which is not there any more"):
        train(unsaved)
