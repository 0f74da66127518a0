"""Honest solutions of every task, in many styles: none may be refused."""

from collections.abc import Iterator

import pytest
from honest.suite import STYLES, suite
from warm import compiler_box, kernel_box

from windtunnel.verify.kernel import KernelVerifier
from windtunnel.verify.sandbox import Sandbox
from windtunnel.verify.tasks import catalogue

pytestmark = pytest.mark.end_to_end

SUITE = suite()
TASKS = catalogue()
WRITTEN = [candidate for candidate in SUITE if not candidate.name.split("/")[1].startswith(("plain", "block", "helper", "tile"))]
SOME = [*SUITE[5::48], *WRITTEN[-33::16]]


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def compiler() -> Iterator[Sandbox]:
    with compiler_box() as sandbox:
        yield sandbox


def test_every_task_is_solved_and_every_style_used():
    assert len(SUITE) >= 200
    assert {candidate.task for candidate in SUITE} == set(TASKS)
    for style in STYLES:
        assert sum(candidate.name.endswith(f"-{style.name}") for candidate in SUITE) >= 5, style.name
    assert len({candidate.source for candidate in SUITE}) >= 0.95 * len(SUITE)


def refusals(candidates, box: Sandbox, compiler: Sandbox | None) -> dict[str, str]:
    """Name → what was said, of those not accepted."""
    said = {}
    for candidate in candidates:
        verdict = KernelVerifier(TASKS[candidate.task], box, compiler=compiler).verify(candidate.source)
        if not verdict.accepted:
            said[candidate.name] = f"{verdict.stage} {verdict.reason}: {verdict.message}"
    return said


def test_some_of_each_kind_are_accepted(box):
    assert refusals(SOME, box, None) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_are_accepted(box, compiler):
    assert refusals(SUITE, box, compiler) == {}
