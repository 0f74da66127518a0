"""What is believed of measured times; and the GPU stages' motions, gone through on the interpreter at tiny sizes."""

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import HANG
from warm import eager_box, kernel_box

from windtunnel.verify import Sandboxes, find_task
from windtunnel.verify.kernel import GpuStages, KernelVerifier, gpu_sandbox, kernel_sandbox
from windtunnel.verify.kernel.gpu import LIMITS, Plan
from windtunnel.verify.kernel.roofline import Work, floor_seconds
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.kernel.timing import Samples, doubt, median_with_interval, read_samples, speedup
from windtunnel.verify.sandbox import Job, Outcome

MIB = 1 << 20
ADD = Work(output_bytes=64 * MIB, input_bytes=128 * MIB, flops=0, dtype="float32")
GPU = "NVIDIA H200"


def samples(
    event: float,
    wall: float | None = None,
    plain: float | None = None,
    host: float = 20e-6,
    probe: float = 1e-5,
    count: int = 40,
) -> Samples:
    dice = random.Random(0)

    def about(seconds: float, number: int) -> list[float]:
        return [seconds * dice.uniform(0.98, 1.02) for _ in range(number)]

    few = count // 2
    return Samples(about(event, count), about(plain or event, few), about(wall or event, few), about(host, few), [probe] * 4)


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


@pytest.mark.parametrize(
    "taken",
    [
        samples(60e-6, 75e-6),
        samples(60e-6, 140e-6, plain=120e-6, host=90e-6),  # the host takes longer than the GPU
        samples(60e-6, 600e-6, plain=580e-6, host=540e-6),  # ten launches
    ],
)
def test_an_honest_time_is_believed(taken: Samples) -> None:
    assert doubt(taken, ADD, GPU, 5.0) is None


@pytest.mark.parametrize(
    ("taken", "lived", "reason"),
    [
        (samples(5e-6, 6e-6), 5.0, "impossible-speed"),  # 192 MiB in 5 us
        (samples(60e-6, 400e-6), 5.0, "clock-disagrees"),  # work on another stream
        (samples(400e-6, 60e-6), 5.0, "clock-disagrees"),
        (samples(60e-3, 60e-3), 1.0, "clock-disagrees"),  # 60 calls of 60 ms in one second
        (samples(60e-6, 420e-6, plain=400e-6), 5.0, "clock-disagrees"),  # on a stream of its own, waited for
        (samples(40e-6, 250e-6, plain=240e-6, host=100e-6), 5.0, "clock-disagrees"),
        (samples(5e-6, 130e-6, plain=120e-6, host=100e-6), 5.0, "impossible-speed"),  # the host hides it on an idle GPU
    ],
)
def test_times_that_cannot_be_are_doubted(taken: Samples, lived: float, reason: str) -> None:
    found = doubt(taken, ADD, GPU, lived)
    assert found is not None
    assert found.reason == reason


def test_what_no_neighbour_causes_is_not_said_to_be_theirs() -> None:
    """Events that say more than the wall clock, of calls that were queued or were not: an excuse needs the reverse."""
    for taken in (samples(400e-6, 75e-6, plain=60e-6), samples(60e-6, 75e-6, plain=400e-6)):
        found = doubt(taken, ADD, GPU, 5.0)
        assert found is not None
        assert found.evidence["events"] > found.evidence["wall"]


def test_choices_of_configurations_are_forgotten_behind_heuristics_and_in_classes_too() -> None:
    triton = pytest.importorskip("triton")
    from windtunnel.verify.kernel.child.autotune import forget_tuning, tuners

    def kernel(x, BLOCK):
        pass

    tuned = triton.autotune(configs=[triton.Config({})], key=[])(triton.JITFunction(kernel))
    module = ModuleType("candidate")
    module.plain, module.hidden = triton.JITFunction(kernel), triton.heuristics({"BLOCK": len})(tuned)
    held = triton.autotune(configs=[triton.Config({})], key=[])(triton.JITFunction(kernel))
    module.Kernels = type("Kernels", (), {"__module__": "candidate", "kernel": staticmethod(held)})
    for tuner in (tuned, held):
        tuner.cache[()] = tuner.configs[0]
    assert list(tuners(module)) == [tuned, held]
    forget_tuning(module)
    assert not tuned.cache
    assert not held.cache


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


ONES = [1.0] * 20
READ = {"events": ONES, "plain": ONES, "wall": ONES, "host": ONES, "probe": [1.0]}
FORGED = [
    None,
    {},
    READ | {"wall": ONES[1:]},
    READ | {"host": []},
    READ | {"plain": None},
    READ | {"events": [-1.0] * 20},
    READ | {"events": [float("nan")] * 20},
    READ | {"events": [1.0] * 3},
    READ | {"plain": [1.0] * 3, "wall": [1.0] * 3, "host": [1.0] * 3},
    READ | {"probe": []},
]


@pytest.mark.parametrize("forged", FORGED)
def test_forged_samples_are_not_read(forged: object) -> None:
    assert read_samples(READ) is not None
    assert read_samples(forged) is None


def test_full_and_timing_go_through_their_motions_on_the_interpreter() -> None:
    pytest.importorskip("triton")
    from test_kernel_funnel import KERNEL, REFERENCE

    sizes = "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}, 'tiny_ragged': {'ROWS': 3, 'COLS': 19}}, 'dtypes': ['float32']}"
    task = task_from_source(REFERENCE + sizes, name="bias_relu")
    # Compiling the reference for a CPU takes a C++ compiler half a minute; a GPU's test does it.
    eager = eager_box()
    with kernel_box() as box, eager as reference:
        stages = GpuStages(task, box, reference, device="cpu", size="tiny", index=None)

        def judge(source: str):
            plan = stages.plan()
            return stages.judge(source, Plan(plan.cases, plan.seed, plan.timed, calls=10))

        right = judge(KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2"))
        assert right.finding is None, right.finding
        assert right.evidence["cold"]["median"] > 0
        assert set(right.evidence["speedup"]) == {"eager", "compiled"}
        without = GpuStages(task, box, box, clock=False, device="cpu", size="tiny", index=None)
        unclocked = KernelVerifier(task, box, gpu=without).verify(KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2"))
        assert (unclocked.accepted, unclocked.stage) == (True, "full"), unclocked.message
        assert unclocked.evidence["left"] == ["timing"]
        for old, new, reason in [
            ("x + b, 0.0", "x, 0.0", "wrong-values"),
            ("return y", "return y.view(1, *x.shape)", "wrong-shape"),
            ("triton.cdiv(n, 64)", "n // 64", "non-finite"),
            ("y = torch.empty_like(x)", "x = x * 1\n        y = torch.empty_like(x)", "host-compute"),
        ]:
            found = judge(KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2").replace(old, new)).finding
            assert found is not None
            assert found.reason == reason, found.message


def test_the_clock_ends_early_when_the_median_is_known_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from windtunnel.verify.kernel.child import clock as child_clock

    pauses: list[float] = []

    def timed(work, cuda, pause=0.0):
        work()
        pauses.append(pause)
        return child_clock.Call(2e-4, 1e-4, 1e-4)

    monkeypatch.setattr(child_clock, "timed", timed)
    called: list[int] = []

    def measured(calls: int) -> dict[str, list[float]]:
        pauses.clear()
        called.clear()
        return child_clock.measure(called.append, [[1], [2]], calls, cold=False, dice=random.Random(0), device="cpu")

    found = measured(1000)
    assert child_clock.LEAST_CALLS <= len(found["events"]) < child_clock.LEAST_CALLS + 5
    assert len(called) >= len(found["events"]) + len(found["plain"]) + child_clock.WARM_UPS[0]
    assert pauses.count(child_clock.PAUSE_SECONDS[0] + child_clock.PAUSE_OVER_HOST * 2e-4) == len(found["events"]), (
        "longer than the host takes"
    )
    assert read_samples(found) is not None
    monkeypatch.setattr(child_clock, "MOST_SECONDS", 0.0)
    assert 10 <= len(measured(1000)["events"]) <= 12
    assert len(called) <= 1 + 18, "one call to warm up, since the time is over"
    assert read_samples(measured(10)) is not None, "as few as may be asked for"
    monkeypatch.undo()


def test_nobody_can_count_which_calls_are_queued() -> None:
    pytest.importorskip("torch")
    from windtunnel.verify.kernel.child.clock import _kinds

    orders = {tuple(queued for number, queued in _kinds(60, random.Random(seed)) if number >= 0) for seed in range(20)}
    assert len(orders) == 20
    for order in orders:
        assert (len(order), sum(order)) == (90, 60)


def test_a_candidate_waits_while_another_is_timed_and_is_timed_alone(tmp_path: Path) -> None:
    """Held from outside, the lock holds up all work while somebody is alone, and the clock while anybody is there."""
    pytest.importorskip("triton")
    from test_kernel_funnel import KERNEL, REFERENCE

    from windtunnel.verify.kernel.gpu_lock import GpuLock, opened

    task = task_from_source(REFERENCE + "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}}, 'dtypes': ['float32']}", name="bias")
    source = KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2")
    with Sandboxes(2, kernel_sandbox) as boxes, ThreadPoolExecutor(1) as threads, opened(tmp_path / "use") as fds:
        timed, untimed = (
            GpuStages(task, boxes, boxes, clock=clock, baseline=False, device="cpu", size="tiny", index=None)
            for clock in (True, False)
        )
        timed.use = untimed.use = tmp_path / "use"
        plans = {stages: replace(stages.plan(), calls=10) for stages in (timed, untimed)}
        assert timed.judge(source, plans[timed]).finding is None
        for stages, alone in ((untimed, True), (timed, False)):
            with GpuLock(fds).alone() if alone else GpuLock(fds).shared():
                waiting = threads.submit(stages.judge, source, plans[stages])
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=1.0)
            assert waiting.result(timeout=HANG).finding is None
        with GpuLock(fds).shared():  # the comparison shares too
            assert threads.submit(untimed.judge, source, plans[untimed]).result(timeout=HANG).finding is None


STOPPED = """
import os, signal, sys
from windtunnel.verify.kernel.gpu_lock import GpuLock, opened
from pathlib import Path
with opened(Path(sys.argv[1])) as fds, (GpuLock(fds).alone() if sys.argv[2] == "alone" else GpuLock(fds).shared()):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_waiting_in_vain_is_neither_right_nor_wrong_and_says_what_for(tmp_path: Path) -> None:
    """Each lock is held from outside: nothing is known of the candidate then, and it is not waited for a second time."""
    pytest.importorskip("triton")
    from test_kernel_funnel import KERNEL, REFERENCE

    from windtunnel.verify.kernel.gpu_lock import GpuLock, opened, places

    task = task_from_source(REFERENCE + "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}}, 'dtypes': ['float32']}", name="bias")
    source = KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2")
    short = replace(LIMITS, phases=(("waiting", 0.5), *LIMITS.phases[1:]))
    with kernel_box() as box, opened(tmp_path / "use") as use, places(tmp_path / "contexts") as free:
        stages = GpuStages(task, box, box, clock=False, baseline=False, device="cpu", size="tiny", index=None)
        stages.use, stages.contexts, stages.candidates = (tmp_path / name for name in ("use", "contexts", "candidates"))
        verifier = KernelVerifier(task, box, gpu=stages)

        def kept_waiting(file: str) -> None:
            stages.limits = short
            verdict = verifier.verify(source)
            stages.limits = LIMITS
            assert verdict.infrastructure, verdict
            assert verdict.reward is None
            assert "within 0.5 s" in verdict.message
            assert str(tmp_path / file) in verdict.message

        assert stages.judge(source).finding is None
        with GpuLock(use).alone():
            kept_waiting("use")
        for fd in free:
            fcntl.flock(fd, fcntl.LOCK_EX)
        kept_waiting("contexts")
        for fd in free:
            fcntl.flock(fd, fcntl.LOCK_UN)
        with _another(tmp_path / "candidates", "shared") as judge:
            assert os.WIFSTOPPED(os.waitpid(judge.pid, os.WUNTRACED)[1])
            assert stages.judge(source).finding is None, "one that was stopped holds up only those who want to be alone"
            with _another(tmp_path / "candidates", "alone"):
                _somebody_holds_the_gate(tmp_path / "candidates")
                kept_waiting("candidates.gate")
        assert stages.judge(source).finding is None


def test_who_is_killed_from_outside_while_it_waits_to_begin_is_not_refused(tmp_path: Path) -> None:
    """As the kernel does where memory runs out: nothing of the candidate was loaded."""
    pytest.importorskip("triton")
    from test_kernel_funnel import KERNEL, REFERENCE

    from windtunnel.verify.kernel.gpu_lock import GpuLock, opened

    task = task_from_source(REFERENCE + "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}}, 'dtypes': ['float32']}", name="bias")
    source = KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2")
    with kernel_box() as box, kernel_box() as trusted, opened(tmp_path / "use") as use:
        stages = GpuStages(task, box, trusted, clock=False, baseline=False, device="cpu", size="tiny", index=None)
        stages.use, stages.candidates = tmp_path / "use", tmp_path / "candidates"
        assert stages.judge(source).finding is None
        trusted.start()
        there = _below(os.getpid())
        with ThreadPoolExecutor(1) as threads, GpuLock(use).alone():
            judged = threads.submit(stages.judge, source)
            while not judged.done():
                young = _below(os.getpid()) - there
                time.sleep(0.5)  # it waits by then
                for pid in young & _below(os.getpid()):
                    os.kill(pid, signal.SIGKILL)
            finding = judged.result().finding
        assert finding is not None
        assert finding.reason == "infrastructure", finding
        assert "nothing of the candidate had run" in finding.message
        assert stages.judge(source).finding is None


def _below(pid: int) -> set[int]:
    """The processes that came from one, and from those."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for word in path.read_text().split():
                found |= {int(word), *_below(int(word))}
    return found


@contextlib.contextmanager
def _another(path: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes a turn and is stopped then."""
    with subprocess.Popen([sys.executable, "-c", STOPPED, str(path), how]) as process:
        try:
            yield process
        finally:
            process.kill()


def _somebody_holds_the_gate(path: Path) -> None:
    """Returns when somebody waits there to be alone."""
    until = time.monotonic() + HANG
    with open(f"{path}.gate") as gate:
        while time.monotonic() < until:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(gate, fcntl.LOCK_UN)
            time.sleep(0.01)
    raise AssertionError("nobody came to be alone")


def test_a_reference_that_waits_in_vain_costs_the_speedup_and_refuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from test_kernel_funnel import KERNEL, REFERENCE

    from windtunnel.verify.kernel import gpu
    from windtunnel.verify.kernel.gpu_lock import GpuLock, opened

    task = task_from_source(REFERENCE + "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}}, 'dtypes': ['float32']}", name="bias")
    source = KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2")
    monkeypatch.setattr(gpu, "BASELINE_LIMITS", replace(gpu.BASELINE_LIMITS, phases=(("waiting", 0.5), ("timing", 60.0))))
    eager = eager_box()
    ended: list[tuple[str, str]] = []

    class Reference:
        def run(self, job: Job) -> Outcome:
            outcome = reference.run(job)
            ended.append((outcome.status, outcome.phase))
            return outcome

    with kernel_box() as box, eager as reference, opened(tmp_path / "candidates") as fds, GpuLock(fds).shared():
        stages = GpuStages(task, box, Reference(), device="cpu", size="tiny", index=None, calls=10)
        stages.use, stages.candidates = tmp_path / "use", tmp_path / "candidates"
        result = stages.judge(source)
    assert ended[0] == ("timeout", "waiting")
    assert result.finding is None, result.finding
    assert result.evidence["speedup"] == {}


def test_a_kernel_that_overwrites_its_input_is_timed_on_fresh_ones() -> None:
    pytest.importorskip("triton")
    sys.path.insert(0, str(Path(__file__).parent))
    from honest.suite import suite

    source = next(candidate.source for candidate in suite() if candidate.name == "accumulate_into/accumulate_in_place")
    with kernel_box() as box:
        stages = GpuStages(find_task("accumulate_into"), box, box, baseline=False, device="cpu", size="tiny", index=None)
        result = stages.judge(source, replace(stages.plan(), calls=10))
        assert result.finding is None, result.finding


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
