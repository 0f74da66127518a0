"""Each fault is planted; the check that should name it does, and says nothing of it where it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogue import ALL, BAR, LATER, PLANTED
from planting import Fault, attempt, caught, falsely, said

from windtunnel.check import Outcome, all_checks

DOCUMENT = Path(__file__).parents[3] / "docs" / "faults.md"
STAGES = {"one gpu", "node"}
"""Of a rehearsal, on rungs above this machine's."""

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def healthy() -> dict[tuple[Any, str], Outcome | None]:
    """Outcomes without a fault, by base and check."""
    return {}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("fault", [pytest.param(f, id=f.name, marks=pytest.mark.slow if f.slow else ()) for f in PLANTED])
def test_a_planted_fault_is_named(fault: Fault, healthy: dict[tuple[Any, str], Outcome | None], tmp_path: Path) -> None:
    key = fault.base, fault.check
    if key not in healthy:
        healthy[key] = attempt(tmp_path / "healthy", fault.check, fault.base)[0]
    without = healthy[key]
    assert without is not None
    assert not falsely(fault, without), f"without the fault: {without.status}: {said(without)}"
    outcome, _ = attempt(tmp_path / "faulty", fault.check, fault.base, fault.plant)
    assert outcome is not None
    assert caught(fault, outcome), f"{outcome.status}: {said(outcome)}"
    assert outcome.fix or outcome.warnings, "it must say what to do"


def test_the_catalogue_is_large_varied_and_mostly_caught_without_a_gpu() -> None:
    assert len(PLANTED) >= 60
    assert not [name for name, times in Counter(fault.name for fault in ALL).items() if times > 1]
    assert {fault.kind for fault in PLANTED} == {"recipe", "data", "environment", "plug-in", "rig", "weights"}
    assert len(PLANTED) / len(ALL) >= BAR
    names = {check.name for check in all_checks()} | STAGES
    assert {fault.check for fault in ALL} <= names
    assert all(fault.rung != "cpu" for fault in LATER)


def test_every_fault_stands_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert not [fault.name for fault in ALL if f"| {fault.name} |" not in text]
