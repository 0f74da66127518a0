"""A run goes on with fewer learners and engines than it had, or says with how many it would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import new_run, series

from windtunnel.actors import Wanted
from windtunnel.actors.placement import Node
from windtunnel.launch import Options, placed_rank
from windtunnel.launch.placed import most_of
from windtunnel.launch.prepare import plan_again, prepare_run
from windtunnel.launch.ranks import run_ranks
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rl import train_policy
from windtunnel.run import RunFolder

BESIDE = ("stages.rl.engine=transformers", "stages.rl.answers=null")


@pytest.mark.end_to_end
def test_a_run_of_two_learners_and_engines_goes_on_with_one_of_each(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = new_run(tmp_path, *BESIDE, "stages.rl.learners=2", "stages.rl.engines=2", "budget.steps=2")
    assert RunFolder.open(folder).manifest["plan"]["layout"]["ranks"] == 2
    with (tmp_path / "output").open("w") as output:
        run_ranks(folder, 2, as_json=False, output=output)
    assert sorted(series(folder, "loss")) == [1, 2], (tmp_path / "output").read_text()
    fewer = load_recipe(
        tmp_path / "tiny-rl.yaml", [*BESIDE, "stages.rl.learners=1", "stages.rl.engines=1", "budget.steps=4"]
    )  # fmt: skip
    said: list[str] = []
    prepare_run(fewer, Options(run=folder, resume=True, root=tmp_path / "runs", yes=True), said.append).close()
    assert RunFolder.open(folder).manifest["plan"]["layout"]["ranks"] == 1
    assert any("stages.rl.learners: 2 -> 1" in line for line in said)
    assert train_policy(folder) == 0
    assert sorted(series(folder, "loss")) == [1, 2, 3, 4]
    assert set(series(folder, "learned").values()) == {16.0}, "a round is as many answers as before"


def test_learners_that_cannot_share_a_rounds_prompts_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3 cannot share the 4 prompts of a round evenly") as caught:
        new_run(tmp_path, *BESIDE, "stages.rl.learners=3")
    assert caught.value.fix == "--set stages.rl.learners=2, or --set stages.rl.prompts=6"


def test_a_run_is_planned_again_where_it_stands(tmp_path: Path) -> None:
    folder = new_run(tmp_path, *BESIDE, "stages.rl.learners=2", "stages.rl.engines=2")
    said: list[str] = []
    assert plan_again(folder, Options(root=tmp_path / "runs"), (0, 0), said.append) == 2
    assert any("layout: " in line for line in said)
    RunFolder.open(folder).lock()  # it is free again


@pytest.mark.parametrize(
    ("wanted", "nodes", "prompts", "found"),
    [
        (Wanted(2, 2, 0), [(2, 0)], 32, Wanted(1, 1, 0)),
        (Wanted(2, 2, 0), [(1, 0)], 32, None),
        (Wanted(4, 4, 1), [(16, 4)], 32, Wanted(2, 2, 1)),
        (Wanted(4, 12, 1), [(64, 8)], 32, Wanted(4, 4, 1)),
        (Wanted(4, 4, 2), [(16, 4), (16, 4)], 32, Wanted(2, 2, 2)),
        (Wanted(6, 0, 1), [(8, 5)], 32, Wanted(4, 0, 1)),
        (Wanted(3, 3, 1), [(8, 4)], 9, Wanted(1, 3, 1)),
    ],
)
def test_the_most_that_what_is_left_of_a_cluster_holds(
    wanted: Wanted, nodes: list[tuple[int, int]], prompts: int, found: Wanted | None
) -> None:
    left = [Node(str(i), f"n{i}", "", cpus, gpus) for i, (cpus, gpus) in enumerate(nodes)]
    assert most_of(wanted, left, prompts) == found


def test_a_node_that_is_missed_is_told_once_it_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node("0", "n0", "", 2, 0), Node("1", "n1", "", 2, 0)]
    monkeypatch.setattr(placed_rank, "nodes_of", lambda: list(nodes))
    monkeypatch.setattr(placed_rank, "NODES_SECONDS", 0.0)
    both, one = placed_rank.Missed(Wanted(2, 2, 0), 2), placed_rank.Missed(Wanted(1, 1, 0), 2)
    assert both.why() == ""
    gone = nodes.pop()
    assert both.why() == "", "it may come back"
    nodes.append(gone)
    assert both.why() == ""
    nodes.pop()
    monkeypatch.setattr(placed_rank, "BACK_SECONDS", 0.0)
    assert both.why() == "stopped: 1 of 2 nodes are lost, and 4 CPU cores are needed and there are 2: 2 are missing"
    assert one.why() == "", "nothing of it was needed"
