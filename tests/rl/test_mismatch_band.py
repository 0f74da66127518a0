"""The band on what sampler and learner make of the same tokens: older weights are meant to differ, and no more than that."""

from __future__ import annotations

import pytest

from windtunnel.rl.health import findings

WELL = {
    "reward": 1.0, "mismatch": 0.01, "mismatch_outside": 0.01, "staleness": 0.0, "equal_rewards": 0.0, "unknown": 0.0,
    "truncated": 0.0,
}  # fmt: skip


def words(**metrics: float) -> str | None:
    return next(one.message for one in findings(WELL | metrics) if one.band == "mismatch")


def test_weights_of_the_same_version_may_hardly_differ() -> None:
    assert words() is None
    assert "0.060 nats on average" in str(words(mismatch=0.06))
    assert "6.0% outside" in str(words(mismatch_outside=0.06))


@pytest.mark.parametrize("updates", [1.0, 4.0])
def test_each_update_between_them_allows_as_much_again(updates: float) -> None:
    allowed = 0.05 * (1 + updates)
    assert words(mismatch=0.99 * allowed, mismatch_outside=0.99 * allowed, staleness=updates) is None
    assert f"with {updates:g} updates between them" in str(words(mismatch=1.01 * allowed, staleness=updates))
    assert words(mismatch_outside=1.01 * allowed, staleness=updates) is not None
