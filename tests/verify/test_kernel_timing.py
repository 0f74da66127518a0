"""What is believed of measured times; and the GPU stages' motions, gone through on the interpreter at tiny sizes."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import HANG
from warm import compiler_box, eager_box, kernel_box, wait_long

from windtunnel.verify import Task, find_task
from windtunnel.verify.kernel import GpuStages, KernelVerifier, gpu_sandbox
from windtunnel.verify.kernel.gpu import LIMITS, PlanOf
from windtunnel.verify.kernel.gpu_lock import GpuLock, opened
from windtunnel.verify.kernel.record import file_forms, read_recorded, record_job
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.kernel.timing import Samples, Work, doubt, floor_seconds, median_with_interval, read_samples, speedup
from windtunnel.verify.sandbox import Sandbox

MIB = 1 << 20
ADD = Work(output_bytes=64 * MIB, input_bytes=128 * MIB, flops=0, dtype="float32")
GPU = "NVIDIA H200"


def samples(event: float, probe: float = 1e-5, count: int = 40) -> Samples:
    dice = random.Random(0)
    return Samples([event * dice.uniform(0.98, 1.02) for _ in range(count)], [probe] * 4)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=200))
def test_the_interval_holds_the_median(seconds: list[float]) -> None:
    found = median_with_interval(seconds)
    assert min(seconds) <= found.low <= found.median <= found.high <= max(seconds)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    dice = random.Random(3)
    hits = sum(
        found.low <= 2**0.5 <= found.high  # median of 2 ** uniform(0, 1)
        for found in (median_with_interval([2 ** dice.random() for _ in range(60)]) for _ in range(400))
    )
    assert hits / 400 > 0.93


def test_the_floor_follows_memory_and_products() -> None:
    assert floor_seconds(ADD, GPU) == pytest.approx(0.8 * 192 * MIB / 4.8e12)
    product = Work(2 * 4096**2, 4 * 4096**2, 2 * 4096**3, "float16")
    assert floor_seconds(product, GPU) == pytest.approx(0.8 * 2 * 4096**3 / 989e12)
    lookup = Work(output_bytes=1024, input_bytes=1 << 30, flops=0, dtype="float32", indexed=True)
    assert floor_seconds(lookup, GPU) < 1e-9
    assert floor_seconds(ADD, "an unknown device") == 0


def test_speed_is_in_relation_to_the_probe() -> None:
    """A GPU that clocks down by half between baseline and candidate does not make the candidate slower."""
    assert speedup(samples(2e-4, probe=2e-5), samples(2e-4, probe=1e-5)) == pytest.approx(2.0)


def test_kernels_of_the_gpu_worker_are_compiled_not_interpreted() -> None:
    """Triton asks the environment when a kernel is defined: a module of the tiny stage would turn the GPU's stages into it."""
    pytest.importorskip("triton")
    code = f"""
import importlib, os
for name in {gpu_sandbox()._template.preload!r}:
    importlib.import_module(name.partition(":")[0])
from triton import knobs
assert not knobs.runtime.interpret, "interpreted"
from windtunnel.verify.kernel.child.warm_kernel import sum_of_product
print(type(sum_of_product).__name__)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "JITFunction", done.stderr[-2000:]


@pytest.mark.parametrize(("seconds", "believed"), [(60e-6, True), (5e-6, False)])
def test_a_time_below_the_roofline_is_doubted(seconds: float, believed: bool) -> None:
    found = doubt(samples(seconds), ADD, GPU)  # 192 MiB
    assert (found is None) is believed
    assert found is None or found.reason == "impossible-speed"


@pytest.mark.parametrize("events", [None, [1.0] * 3, [-1.0] * 20, [float("nan")] * 20, ["1"] * 20])
def test_what_is_no_time_is_not_read(events: object) -> None:
    assert read_samples({"events": [1.0] * 20, "probe": [1.0]}) is not None
    assert read_samples({"events": events, "probe": [1.0]}) is None
    assert read_samples({"events": [1.0] * 20, "probe": []}) is None


SIZES = "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}, 'tiny_ragged': {'ROWS': 3, 'COLS': 19}}, 'dtypes': ['float32']}"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_long(monkeypatch)


@pytest.fixture(scope="module")
def bias() -> Task:
    from test_kernel_funnel import REFERENCE

    return task_from_source(REFERENCE + SIZES, name="bias_relu")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    pytest.importorskip("triton")
    with kernel_box() as sandbox:
        yield sandbox


def plans_of(box: Sandbox, source: str, task: Task) -> PlanOf:
    forms = file_forms(task, box, ["tiny", "tiny_ragged"])
    plans, found = read_recorded(box.run(record_job(source, forms)), forms, task)
    assert found is None, found
    return {(form.size, form.dtype): plan for form, plan in zip(forms, plans, strict=True)}


def test_full_and_timing_go_through_their_motions_on_the_interpreter(bias: Task, box: Sandbox) -> None:
    from test_kernel_funnel import KERNEL

    # Compiling the reference for a CPU takes a C++ compiler half a minute; a GPU's test does it.
    with eager_box() as reference:
        stages = GpuStages(bias, box, reference, device="cpu", size="tiny", index=None, calls=10)
        right = stages.judge(plans_of(box, KERNEL, bias))
        assert right.finding is None, right.finding
        assert right.evidence["cold"]["median"] > 0
        assert set(right.evidence["speedup"]) == {"eager", "compiled"}
        without = GpuStages(bias, box, box, clock=False, device="cpu", size="tiny", index=None)
        unclocked = KernelVerifier(bias, box, gpu=without).verify(KERNEL)
        assert (unclocked.accepted, unclocked.stage) == (True, "full"), unclocked.message
        assert unclocked.evidence["left"] == ["timing"]
        for old, new, reason in [
            ("x + b, 0.0", "x, 0.0", "wrong-values"),
            ("return y", "return y.view(1, *x.shape)", "wrong-shape"),
            ("triton.cdiv(n, 64)", "n // 64", "non-finite"),
            ("y_ptr + at,", "x_ptr + at,", "input-changed"),
        ]:
            found = without.judge(plans_of(box, KERNEL.replace(old, new), bias)).finding
            assert found is not None, new
            assert found.reason == reason, found.message


def test_a_plan_that_never_ends_at_full_size_is_refused(bias: Task, box: Sandbox) -> None:
    from test_kernel_funnel import KERNEL

    task = replace(bias, sizes={"tiny": {"ROWS": 4, "COLS": 24}, "full": {"ROWS": 8, "COLS": 48}})
    source = KERNEL.replace("    tl.store", "    while n > 200:\n        n = n + 0\n    tl.store", 1)
    limits = replace(LIMITS, wall_seconds=HANG, phases=(("full", 1.0),))
    stages = GpuStages(task, box, box, device="cpu", index=None, baseline=(), clock=False, limits=limits)
    verdict = KernelVerifier(task, box, gpu=stages).verify(source)
    assert (verdict.stage, verdict.reason, verdict.reward) == ("full", "timeout", 0.0), verdict


def test_the_clock_ends_early_when_the_median_is_known_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from windtunnel.verify.kernel.child import clock as child_clock

    pauses: list[float] = []

    def timed(work, cuda, pause=0.0):
        work()
        pauses.append(pause)
        return 1e-4, 2e-4

    monkeypatch.setattr(child_clock, "timed", timed)
    called: list[int] = []

    def measured(calls: int) -> dict[str, list[float]]:
        pauses.clear()
        called.clear()
        return child_clock.measure(called.append, 2, calls, cold=False, dice=random.Random(0), device="cpu")

    monkeypatch.setattr(child_clock, "MOST_SECONDS", HANG)
    found = measured(1000)
    assert child_clock.LEAST_CALLS <= len(found["events"]) < child_clock.LEAST_CALLS + 5
    assert len(called) == len(found["events"]) + child_clock.WARM_UPS
    longer = child_clock.PAUSE_SECONDS[0] + child_clock.PAUSE_OVER_HOST * 2e-4
    assert pauses.count(longer) >= len(found["events"]), "longer than the host takes"
    assert read_samples(found) is not None
    monkeypatch.setattr(child_clock, "MOST_SECONDS", 0.0)
    assert 10 <= len(measured(1000)["events"]) <= 12
    assert read_samples(measured(10)) is not None, "as few as may be asked for"


def test_a_plan_waits_while_another_is_timed_and_is_timed_alone(bias: Task, box: Sandbox, tmp_path: Path) -> None:
    """Held from outside, the lock holds up all work while somebody is alone, and the clock while anybody is there."""
    from test_kernel_funnel import KERNEL

    plans = plans_of(box, KERNEL, bias)
    with kernel_box() as trusted, ThreadPoolExecutor(1) as threads, opened(tmp_path / "use") as fds:
        timed, untimed = (
            GpuStages(bias, box, trusted, clock=clock, baseline=(), device="cpu", size="tiny", index=None, calls=10)
            for clock in (True, False)
        )
        timed.use = untimed.use = tmp_path / "use"
        for stages, alone in ((untimed, True), (timed, False)):
            with GpuLock(fds).alone() if alone else GpuLock(fds).shared():
                waiting = threads.submit(stages.judge, plans)
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=1.0)
            assert waiting.result(timeout=HANG).finding is None
        with GpuLock(fds).shared():  # the comparison shares too
            assert threads.submit(untimed.judge, plans).result(timeout=HANG).finding is None
        untimed.limits = replace(untimed.limits, phases=(("waiting", 0.5),))
        with GpuLock(fds).alone():
            found = untimed.judge(plans).finding
        assert found is not None
        assert found.reason == "infrastructure", "who waited in vain is neither right nor wrong"


@pytest.mark.parametrize("wanted", [("eager",), ("eager", "compiled")])
def test_the_reference_is_timed_as_it_was_asked_for(bias: Task, box: Sandbox, wanted: tuple[str, ...]) -> None:
    from test_kernel_funnel import KERNEL

    with eager_box() as trusted:
        stages = GpuStages(bias, box, trusted, baseline=wanted, device="cpu", size="tiny", index=None, calls=10)
        result = stages.judge(plans_of(box, KERNEL, bias))
    assert result.finding is None, result.finding
    assert set(result.evidence["speedup"]) == set(wanted)


def test_a_kernel_that_overwrites_its_input_is_timed_on_fresh_ones(box: Sandbox) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from honest.suite import suite

    source = next(candidate.source for candidate in suite() if candidate.name == "accumulate_into/accumulate_in_place")
    task = replace(find_task("accumulate_into"), dtypes=("float32",))
    stages = GpuStages(task, box, box, baseline=(), device="cpu", size="tiny", index=None, calls=10)
    result = stages.judge(plans_of(box, source, task))
    assert result.finding is None, result.finding


def test_of_a_large_output_every_block_counts_and_some_are_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from windtunnel.verify.kernel.child import compare
    from windtunnel.verify.kernel.child.timed import Right

    monkeypatch.setattr(compare, "LARGE_BYTES", 1000)
    monkeypatch.setattr(compare, "BLOCK", 64)
    right = torch.randn(100, 37)

    def differ(given: torch.Tensor) -> str | None:
        found = compare.sums_differ(compare.sums(given), right, right.double(), "The output", 1e-4)
        return None if found is None else found.reason

    unwritten = right.clone()
    unwritten[50, 20] = float("nan")
    assert [differ(right), differ(right * 1.01), differ(unwritten)] == [None, "wrong-values", "non-finite"]
    assert torch.equal(compare.drawn_part(right, 7).double(), compare.drawn_part(right.double(), 7))
    assert compare.drawn_part(right, 7)[-52:].equal(right.reshape(-1)[-52:]), "what fills no block"
    before = Right(right)
    assert before.masked is None
    assert [before.matches(right), before.matches(right * 1.1)] == [True, False]


def test_what_is_wrong_at_once_is_compiled_in_its_first_form_alone(
    bias: Task, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the interpreter in place of a GPU."""
    from test_kernel_autotune import Spy
    from test_kernel_funnel import KERNEL

    monkeypatch.setattr("windtunnel.verify.kernel.stages.GLANCE_SECONDS", HANG)
    numbers = {"tiny": {"ROWS": 4, "COLS": 24}, "full": {"ROWS": 8, "COLS": 48}, "full_ragged": {"ROWS": 7, "COLS": 45}}
    task = replace(bias, sizes=numbers, dtypes=("float32", "float16"))
    stages = GpuStages(task, box, box, device="cpu", index=None, baseline=(), clock=False)
    stages.quick = True
    made_for_full = KERNEL.replace("x + b, 0.0", "x + b * (n >= 300), 0.0")
    made_for_one = KERNEL.replace("x + b, 0.0", "x + b * (n == 384), 0.0")
    with compiler_box() as compiler_of_kernels:
        for source, stage, accepted, forms in [
            (KERNEL, "full", True, 4),
            (made_for_full, "full", True, 4),
            (made_for_one, "full", False, 4),
            (KERNEL.replace("x + b, 0.0", "x - b, 0.0"), "full", False, 1),
            (KERNEL.replace("y_ptr + at,", "y_ptr + at % 64,"), "tiny", False, 1),
        ]:
            spy = Spy(compiler_of_kernels)
            found = KernelVerifier(task, box, compiler=spy, gpu=stages).verify(source)
            assert (found.stage, found.accepted, len(spy.wanted)) == (stage, accepted, forms), found


def test_where_a_gpu_judges_values_a_kernel_may_be_made_for_the_files_own_sizes(
    bias: Task, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the interpreter in place of a GPU: what is wrong at tiny sizes alone is left to full ones, races are not."""
    from test_kernel_funnel import KERNEL

    from windtunnel.verify.kernel import stages as judged

    for name in ("GLANCE_SECONDS", "GLANCE_AT_MOST"):
        monkeypatch.setattr(judged, name, HANG)
    task = replace(bias, sizes={"tiny": {"ROWS": 4, "COLS": 24}, "full": {"ROWS": 8, "COLS": 48}})
    stages = GpuStages(task, box, box, device="cpu", index=None, baseline=(), clock=False)
    made_for_full = KERNEL.replace("x + b, 0.0", "x + b * (n == 384), 0.0")
    found = KernelVerifier(task, box, gpu=stages).verify(made_for_full)
    assert (found.stage, found.reason) == ("tiny", "wrong-values"), found
    stages.quick = True
    verifier = KernelVerifier(task, box, gpu=stages)
    endless_at_tiny = KERNEL.replace("    tl.store", "    while n < 200:\n        n = n + 0\n    tl.store", 1)
    asserts_full = KERNEL.replace("        n = x.numel()", "        n = x.numel()\n        assert n == 384")
    for source in (made_for_full, endless_at_tiny, asserts_full):
        with monkeypatch.context() as less:
            if source == endless_at_tiny:
                less.setattr(judged, "GLANCE_AT_MOST", 1.0)
            found = verifier.verify(source)
        assert (found.accepted, found.stage) == (True, "full"), found
        assert found.evidence["tiny"]
    for old, new, stage, reason in [
        ("x + b, 0.0", "x + b * (n < 200), 0.0", "full", "wrong-values"),
        ("        n = x.numel()", "        n = x.numel()\n        assert n < 9", "record", "raised"),
        ("x + b, 0.0", "x * (tl.max(tl.abs(x), 0) > 0.1) + b, 0.0", "tiny", "wrong-values"),
        ("y_ptr + at,", "y_ptr + at % 64,", "tiny", "race"),
    ]:
        found = verifier.verify(KERNEL.replace(old, new))
        assert (found.stage, found.reason) == (stage, reason), found
