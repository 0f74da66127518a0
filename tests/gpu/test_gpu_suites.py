# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Attacks and honest candidates through all stages on a GPU: what the interpreter cannot see must fall here."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent.parent / "verify"))

from attacks.suite import suite as attack_suite  # noqa: E402
from honest.suite import suite as honest_suite  # noqa: E402

from windtunnel.recipe import UserError  # noqa: E402
from windtunnel.verify import (  # noqa: E402
    GpuStages,
    KernelVerifier,
    Sandboxes,
    Task,
    compiler_sandbox,
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
AT_ONCE = min(16, os.cpu_count() or 1)


class Machine:
    """The workers, and one verifier for each task."""

    def __init__(self, opened: ExitStack) -> None:
        numbers = ((kernel_sandbox, AT_ONCE), (compiler_sandbox, AT_ONCE), (gpu_sandbox, AT_ONCE), (reference_sandbox, 4))
        self.pools = [opened.enter_context(Sandboxes(number, make)) for make, number in numbers]
        for pool in self.pools:
            pool.begin()
        self.verifiers: dict[str, KernelVerifier] = {}

    def verdicts(self, candidates: list[tuple[str, Task, str]]) -> dict[str, tuple[bool, str]]:
        """Name → (accepted, reason) after all stages."""
        tiny, compiler, gpu, trusted = self.pools
        for _, task, _ in candidates:
            if task.name not in self.verifiers:
                stages = GpuStages(task, gpu, trusted, baseline=())
                self.verifiers[task.name] = KernelVerifier(task, tiny, compiler=compiler, gpu=stages)

        def one(candidate: tuple[str, Task, str]) -> tuple[bool, str]:
            try:
                found = self.verifiers[candidate[1].name].verify(candidate[2])
            except UserError:
                return False, "flat-task"
            return found.accepted, found.reason

        with ThreadPoolExecutor(AT_ONCE) as threads:
            return dict(zip((name for name, _, _ in candidates), threads.map(one, candidates), strict=True))


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with ExitStack() as opened:
        yield Machine(opened)


def test_no_attack_is_accepted(machine: Machine) -> None:
    attacks = attack_suite()
    found = machine.verdicts([(attack.name, attack.task, attack.source) for attack in attacks])
    misses = {a.name: found[a.name] for a in attacks if found[a.name][0] or found[a.name][1] not in a.reasons}
    assert misses == {}


def test_no_honest_candidate_is_refused(machine: Machine) -> None:
    found = machine.verdicts([(candidate.name, find_task(candidate.task), candidate.source) for candidate in honest_suite()])
    assert {name: reason for name, (accepted, reason) in found.items() if not accepted} == {}
