"""The scaling law over runs: found again where it is known, tested on runs left out, and refused where nothing can be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from windtunnel.plan import TrainedPoint, fit_law, what_budget_buys
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rig import parse_rig


def runs(count: int, noise: float = 0.0, alpha: float = 0.3, beta: float = 0.4, seed: int = 0) -> list[TrainedPoint]:
    """Return runs of a known law: E = 1.5, and each part 0.5 at 10 M parameters and 200 M tokens."""
    random = np.random.default_rng(seed)
    points = []
    for i in range(count):
        n, d = 10 ** random.uniform(6, 8), 10 ** random.uniform(7.5, 9.5)
        loss = 1.5 + 0.5 * (1e7 / n) ** alpha + 0.5 * (2e8 / d) ** beta
        points.append(TrainedPoint(str(i), n, d, loss * float(np.exp(noise * random.normal()))))
    return points


def test_a_known_law_is_found_again_and_predicts_beyond_the_runs() -> None:
    law = fit_law(runs(12))
    assert law.form == "all five numbers fitted"
    assert (law.floor, law.alpha, law.beta) == pytest.approx((1.5, 0.3, 0.4), rel=0.02)
    assert law.loss(1e10, 1e11) == pytest.approx(1.5 + 0.5 * 1e-3**0.3 + 0.5 * (2e8 / 1e11) ** 0.4, rel=0.005)
    assert law.error is not None
    assert law.error < 0.01


def test_noise_is_seen_in_the_stated_error() -> None:
    quiet, loud = fit_law(runs(10, 0.001)), fit_law(runs(10, 0.03))
    assert quiet.error is not None
    assert loud.error is not None
    assert quiet.error < 0.02 < loud.error


def test_few_runs_fix_few_numbers_and_two_leave_none_to_test() -> None:
    two = fit_law(runs(2, alpha=0.3478, beta=0.3658))
    assert (two.fixed, two.error, two.largest) == (2, None, None)
    five = fit_law(runs(5, alpha=0.3478, beta=0.3658))
    assert five.fixed <= 3
    assert five.error is not None


def test_one_run_or_the_same_twice_is_refused() -> None:
    [point] = runs(1)
    for points in ([point], [point, point]):
        with pytest.raises(UserError, match="needs 2 runs"):
            fit_law(points)


def test_a_budget_buys_the_depth_with_the_least_expected_loss() -> None:
    recipe = load_recipe("charlm", ["budget.dollars=40", "data.corpus.documents=2B"])
    bought = what_budget_buys(fit_law(runs(12)), recipe, parse_rig("8xH100@$4"))
    losses = [item.loss for item in bought]
    assert losses == sorted(losses)
    assert len({item.depth for item in bought}) == len(bought) > 10
    assert 2 < (bought[0].depth or 0) < 64, "neither the smallest nor the largest is best for the money"
    assert all(item.dollars is not None and item.dollars <= 40.01 for item in bought)


def test_of_losses_that_are_written_alike_the_cheapest_comes_first_and_what_ends_it_is_said() -> None:
    recipe = load_recipe("charlm", ["budget.steps=100", "stages.pretrain.batch_tokens=65536"])
    law = fit_law([replace(run, loss=run.loss / 100) for run in runs(12)])
    bought = what_budget_buys(law, recipe, parse_rig("8xH100@$4"))
    written = [(f"{item.loss:.4f}", item.flops) for item in bought]
    assert written == sorted(written)
    assert len({loss for loss, _ in written}) < len(written), "some are alike"
    assert all(item.ends == "at budget.steps (100)" for item in bought)


def test_repeated_data_are_worth_less_than_new_ones() -> None:
    law, rig = fit_law(runs(12)), parse_rig("8xH100@$4")

    def first(documents: str) -> float:
        return what_budget_buys(law, load_recipe("charlm", ["budget.dollars=40", f"data.corpus.documents={documents}"]), rig)[
            0
        ].loss

    assert first("1M") > first("20M") > first("2B")
