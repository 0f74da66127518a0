"""Attacks and honest candidates through all stages on a GPU: what the interpreter cannot see must fall here."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent.parent / "verify"))

from attacks.suite import suite as attack_suite  # noqa: E402
from honest.suite import suite as honest_suite  # noqa: E402

from windtunnel.recipe import UserError  # noqa: E402
from windtunnel.verify import (  # noqa: E402  # noqa: E402
    GpuStages,
    KernelVerifier,
    Sandbox,
    Sandboxes,
    Task,
    find_task,
    gpu_sandbox,
    kernel_sandbox,
    reference_sandbox,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def boxes() -> Iterator[tuple[Sandboxes, Sandbox, Sandbox]]:
    with Sandboxes(2, kernel_sandbox) as tiny, gpu_sandbox() as gpu, reference_sandbox() as trusted:
        yield tiny, gpu, trusted


def verdict(task: Task, source: str, boxes: tuple[Sandboxes, Sandbox, Sandbox]) -> tuple[bool, str]:
    """(accepted, reason) after all stages."""
    tiny, gpu, trusted = boxes
    try:
        found = KernelVerifier(task, tiny, gpu=GpuStages(task, gpu, trusted)).verify(source)
    except UserError:
        return False, "flat-task"
    return found.accepted, found.reason


def test_no_attack_is_accepted(boxes: tuple[Sandboxes, Sandbox, Sandbox]) -> None:
    misses = {}
    for attack in attack_suite():
        accepted, reason = verdict(attack.task, attack.source, boxes)
        if accepted or reason not in attack.reasons:
            misses[attack.name] = reason
    assert misses == {}


def test_no_honest_candidate_is_refused(boxes: tuple[Sandboxes, Sandbox, Sandbox]) -> None:
    refused = {}
    for candidate in honest_suite():
        accepted, reason = verdict(find_task(candidate.task), candidate.source, boxes)
        if not accepted:
            refused[candidate.name] = reason
    assert refused == {}
