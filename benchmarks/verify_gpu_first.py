"""The first thing to run on a machine with a GPU: every layer and stage of `windtunnel verify`, and of each that fails, why.

    python benchmarks/verify_gpu_first.py --out build/measured/verify-gpu-first.json

Each step runs in a process of its own with a time limit, so that one that hangs or crashes hides none of the others; what it
printed is shown and written as it goes along. It takes two to four minutes. Steps by name: --only layers funnel.

Candidates see an empty /tmp: this checkout and all packages must lie elsewhere, packages in folders named site-packages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CUDA = """
import ctypes, os, time
def f():
    began = time.perf_counter()
    driver = ctypes.CDLL('libcuda.so.1')
    code = driver.cuInit(0)
    if code: raise RuntimeError(f'cuInit gives {code}')
    started = time.perf_counter()
    import torch
    torch.ones(8, device='cuda').sum().item()
    done = time.perf_counter()
    return [round(started - began, 3), round(done - started, 3)]
"""
KERNEL = """
import torch, triton, triton.language as tl
@triton.jit
def double(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
def f():
    x = torch.arange(1000, device='cuda', dtype=torch.float32)
    y = torch.empty_like(x)
    double[(4,)](x, y, 1000, B=256)
    return y.sum().item()
"""
CHILD = "windtunnel.verify.code.child"


def main() -> int:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=[*STEPS], help="these steps alone")
    parser.add_argument("--step", choices=[*STEPS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        STEPS[options.step][0]()
        return 0
    if shutil.which("nvidia-smi") is None:
        print("no GPU here: there is no nvidia-smi")
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in options.only or STEPS:
        found[name] = in_its_own_process(name, options.out)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    failed = [name for name, row in found.items() if not row["well"]]
    print(f"\n{len(found) - len(failed)} of {len(found)} steps went well; look at: {', '.join(failed) or 'nothing'}", flush=True)
    return 1 if failed else 0


def in_its_own_process(name: str, out: Path) -> dict[str, Any]:
    """How a step ended, and what it printed."""
    limit = STEPS[name][1]
    print(f"\n== {name} (at most {limit} s)", flush=True)
    began = time.monotonic()
    command = [sys.executable, "-X", "faulthandler", __file__, "--out", str(out), "--step", name]
    # A group of its own: what a step that hangs has started must not go on using the GPU, nor be waited for.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        data, _ = process.communicate(timeout=limit)
        code, text = process.returncode, data.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        code, text = -1, (error.stdout or b"").decode(errors="replace") + f"\nit did not end within {limit} s"
    print(text.strip(), flush=True)
    seconds = round(time.monotonic() - began, 1)
    code = code or int(any("FAILS" in line for line in text.splitlines() if "+ seccomp" in line))  # with all layers, none may
    print(f"-- {name}: {'well' if code == 0 else f'FAILED ({code})'}, {seconds} s", flush=True)
    return {"well": code == 0, "code": code, "seconds": seconds, "printed": text[-20_000:]}


def gpu_devices() -> tuple[str, ...]:
    """The files of all GPUs that are there."""
    from windtunnel.verify.sandbox import files_of_gpu, gpu_numbers

    return tuple(dict.fromkeys(path for number in gpu_numbers() for path in files_of_gpu(number) if Path(path).exists()))


def machine() -> None:
    """What there is."""
    import torch
    import triton

    from windtunnel.verify.sandbox import landlock
    from windtunnel.verify.sandbox.paths import readable_paths

    print(platform.platform(), f"{os.cpu_count()} cores, uid {os.getuid()}, python {platform.python_version()} in {sys.prefix}")
    print("torch", torch.__version__, torch.__file__, "triton", triton.__version__, "cuda", torch.version.cuda)
    print("Landlock version", landlock.version(), "devices", gpu_devices())
    for line in (
        "ls -l /dev/nvidia*; ls -ld /dev/shm /tmp",
        "nvidia-smi --query-gpu=name,driver_version,compute_mode,persistence_mode,memory.total,memory.used --format=csv,noheader",
        "/sbin/ldconfig -p | grep -E 'libcuda.so|libnvidia-ml'; echo LD_LIBRARY_PATH=$LD_LIBRARY_PATH",
        "which cc gcc clang ptxas nvcc; cc --version | head -1",
        "cat /proc/self/cgroup; grep cgroup /proc/self/mountinfo; grep -E 'Cap|Seccomp|NoNewPrivs' /proc/self/status",
        "head /proc/sys/user/max_user_namespaces /proc/sys/kernel/unprivileged_userns_clone 2>/dev/null; ulimit -a",
        "free -m; cat /proc/loadavg",
    ):
        print(f"$ {line}\n{subprocess.run(line, shell=True, capture_output=True, text=True, check=False).stdout.rstrip()}")
    print("candidates may read:", *readable_paths(gpu_devices()))


def layers() -> None:
    """CUDA and Triton in a child that has the first layer, the first two, and so on: the first that FAILS is the culprit."""
    for namespaces in (True, False):
        print(f"namespaces {'as the kernel gives them' if namespaces else 'switched off'}:")
        sys.stdout.flush()
        if os.fork() == 0:
            try:
                _layer_by_layer(namespaces)
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.wait()


def _layer_by_layer(namespaces: bool) -> None:
    import importlib
    import tempfile

    from windtunnel.verify.kernel.child.warm_gpu import warm
    from windtunnel.verify.kernel.gpu import LIMITS
    from windtunnel.verify.sandbox import outer
    from windtunnel.verify.sandbox.inner import Room, steps
    from windtunnel.verify.sandbox.paths import is_readable, readable_paths
    from windtunnel.verify.sandbox.watching import fork_alone, with_folder

    importlib.import_module("torch")
    if not is_readable(os.environ.get("CC", "cc")):
        os.environ.pop("CC", None)
    warm()
    scratch, devices, was_root = tempfile.mkdtemp(), gpu_devices(), os.geteuid() == 0
    os.dup2(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY), outer.PROC_FD)
    entered = outer.enter(scratch, devices, namespaces=namespaces)
    print("outer:", {name: fault or "active" for name, fault in entered.layers.items()})
    sys.stdout.flush()
    if entered.active("process namespace") and os.fork():
        os.wait()
        return
    mounts, alone = entered.active("mount namespace"), entered.active("process namespace")
    root, same = was_root and not entered.active("another user"), 3 if entered.active("user namespace") else None
    readable = ("/",) if mounts else readable_paths(devices)
    room = Room(readable, "/tmp" if mounts else scratch, devices, mounts, alone, root, same, outer.PROC_FD)
    names = list(steps(room, LIMITS))
    for number in range(len(names) + 1):
        inside = with_folder(room)
        child = fork_alone(inside)
        if child == 0:
            try:
                os.environ["TRITON_CACHE_DIR"] = os.environ["TMPDIR"] = inside.scratch
                tempfile.tempdir = None
                _with_layers(inside, names[:number], LIMITS)
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(child, 0)


def _with_layers(room: Any, names: list[str], limits: Any) -> None:
    from windtunnel.verify.sandbox.inner import steps

    built, said = steps(room, limits), f"  + {names[-1] if names else 'the outer layers alone'}: "
    try:
        for name in names:
            built[name]()
    except OSError as error:
        print(f"{said}cannot be built: {error}")
        return
    os.chdir(room.scratch)
    for what, source in (("CUDA", CUDA), ("Triton", KERNEL)):
        try:
            Path("probe.py").write_text(source)
            space: dict[str, Any] = {}
            sys.path.insert(0, room.scratch)
            exec("import importlib, sys; sys.modules.pop('probe', None); f = importlib.import_module('probe').f", space)
            said += f"{what} gives {space['f']()}; "
        except BaseException as error:
            said += f"{what} FAILS with {type(error).__name__}: {str(error)[:1500]}; "
    print(said)


def sandbox() -> None:
    """The two warm workers as they are used: their layers, what they printed, CUDA and a compiled kernel inside."""
    from windtunnel.verify import gpu_sandbox, reference_sandbox
    from windtunnel.verify.kernel.gpu import LIMITS
    from windtunnel.verify.sandbox import SandboxJob

    bad = []
    for make in (gpu_sandbox, reference_sandbox):
        began = time.perf_counter()
        with make() as box:
            found = box.start()
            print(f"{make.__name__} starts in {time.perf_counter() - began:.1f} s:", json.dumps(found.as_json()))
            worker = box._worker
            print("  they printed:", box._template._printed(), worker._printed() if worker else "")
            for name, source in (("CUDA", CUDA), ("CUDA", CUDA), ("Triton", KERNEL), ("Triton", KERNEL)):
                call = {"source": source, "function": "f", "args": [], "kwargs": {"dict": []}}
                outcome = box.run(SandboxJob(f"{CHILD}:call", call, (), LIMITS))
                print(f"  {name}: {_told(outcome)} gives {outcome.message.get('value')}", flush=True)
                bad += [name] if not outcome.finished else []
            bad += [] if found.hardened else ["not hardened"]
    assert not bad, bad


def _told(outcome: Any) -> str:
    used = f"wall {outcome.wall_seconds:.2f} s, CPU {outcome.cpu_seconds:.2f} s, {outcome.peak_bytes >> 20} MiB"
    text = f"{outcome.status} {outcome.detail} (phase {outcome.phase}; {used})"
    if not outcome.finished or "wrong" in outcome.message:
        text += f"\n    says: {json.dumps(outcome.message)[-1500:]}\n    printed: {outcome.log[-1500:]}"
    return text


class Telling:
    """A runner that says what became of each job."""

    def __init__(self, name: str, runner: Any) -> None:
        self.name, self.runner = name, runner

    def run(self, job: Any) -> Any:
        """Run it."""
        outcome = self.runner.run(job)
        print(f"    {self.name} {job.entry.rpartition(':')[0].rpartition('.')[2]}: {_told(outcome)}", flush=True)
        return outcome


def funnel() -> None:
    """Honest kernels and attacks of the kind that needs a GPU through all stages, with what each process said."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "verify"))
    from attacks.suite import suite as attack_suite
    from honest.suite import suite as honest_suite

    from windtunnel.verify import (
        GpuStages,
        KernelVerifier,
        compiler_sandbox,
        find_task,
        gpu_sandbox,
        kernel_sandbox,
        reference_sandbox,
    )

    wanted = (
        "relu/plain",
        "softmax/plain",
        "gemm_bias_relu/plain",
        "layernorm_gelu/plain",
        "accumulate_into/accumulate_in_place",
    )
    honest = [(h.name, find_task(h.task), h.source, None) for h in honest_suite() if h.name in wanted]
    attacks = [(a.name, a.task, a.source, a.reasons) for a in attack_suite() if a.where == "gpu"][:6]
    bad = []
    makers = (kernel_sandbox, compiler_sandbox, gpu_sandbox, reference_sandbox)
    boxes = [make() for make in makers]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda box: box.start(), boxes))
    tiny, compiler, gpu, trusted = boxes
    for number, (name, task, source, reasons) in enumerate([*honest[:1], *honest, *attacks]):
        clock = number != 0  # the first one once without
        stages = GpuStages(
            task,
            Telling("candidate", gpu),
            Telling("reference", trusted),
            clock=clock,
            baseline=("eager", "compiled")[: 2 * (number == 1)],
        )
        began = time.perf_counter()
        verdict = KernelVerifier(task, tiny, compiler=compiler, gpu=stages).verify(source)
        right = verdict.accepted if reasons is None else verdict.reason in reasons
        print(f"{'right' if right else 'WRONG'} {name}: {verdict.stage} {verdict.reason}, {time.perf_counter() - began:.2f} s")
        print(
            f"    {verdict.message}\n    {json.dumps(verdict.times)}\n    {json.dumps(verdict.evidence.get('gpu'))[:900]}",
            flush=True,
        )
        bad += [] if right else [name]
    for box in boxes:
        box.close()
    assert not bad, bad


def harm() -> None:
    """A crash, a hang and a grab for the GPU's memory cost their own child alone, and give the memory back."""
    from windtunnel.verify import gpu_sandbox
    from windtunnel.verify.sandbox import Limits, MiB, SandboxJob

    limits = Limits(wall_seconds=8, cpu_seconds=30, memory_bytes=8192 * MiB, processes=16, threads=128)
    sources = {
        "illegal address": KERNEL.replace("tl.store(y + at", "tl.store(y + at * 100000000"),
        "hang": "import torch\ndef f():\n torch.cuda._sleep(10**13)\n torch.cuda.synchronize()",
        "all memory": "import torch\ndef f():\n x = []\n while True: x.append(torch.zeros(1 << 30, device='cuda'))",
    }
    query = "nvidia-smi --query-gpu=memory.used --format=csv,noheader"
    with gpu_sandbox() as box:
        for name, source in (*sources.items(), ("afterwards", CUDA)):
            call = {"source": source, "function": "f", "args": [], "kwargs": {"dict": []}}
            print(f"{name}: {_told(box.run(SandboxJob(f'{CHILD}:call', call, (), limits)))}")
            print(
                "  memory in use:", subprocess.run(query, shell=True, capture_output=True, text=True, check=False).stdout.strip()
            )
        assert box.restarts == 0


# name → what to do, and within how many seconds
STEPS: dict[str, tuple[Callable[[], None], int]] = {
    "machine": (machine, 60),
    "layers": (layers, 120),
    "sandbox": (sandbox, 90),
    "funnel": (funnel, 180),
    "harm": (harm, 60),
}


if __name__ == "__main__":
    sys.exit(main())
