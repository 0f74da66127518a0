"""All stages on a GPU: honest kernels to the end of the clock, and attacks that only full sizes or the clock show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack

import pytest
from attacks.suite import suite as attacks
from honest.suite import suite as honest

from windtunnel.verify import (
    GpuStages,
    KernelVerifier,
    Task,
    Verdict,
    compiler_sandbox,
    find_task,
    gpu_sandbox,
    kernel_sandbox,
    reference_sandbox,
)
from windtunnel.verify.kernel.gpu import BASELINES
from windtunnel.verify.sandbox import Sandbox

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
HONEST = ("relu/plain", "softmax/plain", "gemm_bias_relu/plain", "layernorm_gelu/plain", "transpose/plain")


@pytest.fixture(scope="module")
def boxes() -> Iterator[list[Sandbox]]:
    with ExitStack() as opened:
        yield [opened.enter_context(make()) for make in (kernel_sandbox, compiler_sandbox, gpu_sandbox, reference_sandbox)]


def verdict(boxes: list[Sandbox], task: Task, source: str, *, baseline: Collection[str] = ()) -> Verdict:
    tiny, compiler, gpu, trusted = boxes
    stages = GpuStages(task, gpu, trusted, baseline=baseline)
    return KernelVerifier(task, tiny, compiler=compiler, gpu=stages).verify(source)


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_reach_the_end(boxes: list[Sandbox], name: str) -> None:
    source = next(candidate.source for candidate in honest() if candidate.name == name)
    found = verdict(boxes, find_task(name.split("/")[0]), source, baseline=BASELINES if name == HONEST[0] else ())
    assert found.accepted, found
    assert found.stage == "timing"
    assert found.evidence["gpu"]["cold"]["median"] >= found.evidence["gpu"]["warm"]["median"] / 2
    if name == HONEST[0]:
        assert set(found.evidence["gpu"]["speedup"]) == {"eager", "compiled"}
    assert found.evidence["left"] == []


@pytest.mark.parametrize("attack", [a for a in attacks() if a.where == "gpu"], ids=lambda attack: attack.name)
def test_what_only_a_gpu_shows_is_refused(boxes: list[Sandbox], attack) -> None:
    found = verdict(boxes, attack.task, attack.source)
    assert not found.accepted
    assert found.reason in attack.reasons, found
