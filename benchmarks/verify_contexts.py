"""How many fresh CUDA contexts a second a GPU gives, what they spend their time on, and what makes them cheaper.

    python benchmarks/verify_contexts.py --out build/measured/verify-contexts.json

Each candidate of the GPU stages has a process of its own and so a context of its own. The driver makes and takes down one at a
time, which bounds the candidates a second. It takes about a minute (--seconds), what is worth most first, and says what it had no
time for. Every row is shown and written as soon as it is there. Each context is made in a process of its own: one that crashes,
hangs or is refused says so in its row and costs no other.

A row: contexts a second; medians of the parts in ms, of which 'exit' is from the process's last word until it is gone; the CPU's
ms for each, its own and the kernel's; the GPU's memory in use, of all processes together.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import verify_contexts_child as child

ROW_SECONDS = 0.6  # processes are started for so long; then those that run are waited for
CHILD_SECONDS = 10.0  # then one hangs
SCRIPT_SECONDS = 30.0  # the same of one that starts its own Python
ROW = "ROW "
# What NVIDIA's documentation offers, one at a time and all together.
ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1"}
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "1 connection": ONE_CONNECTION,
    "1 copy connection": {"CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1"},
    "short queues": {"CUDA_SCALE_LAUNCH_QUEUES": "0.25x"},
    "no boost": {"CUDA_DISABLE_PERF_BOOST": "1"},
    "no cache": {"CUDA_CACHE_DISABLE": "1"},
    "bus order": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"},
    "no JIT": {"CUDA_DISABLE_PTX_JIT": "1"},
}
TOGETHER = "together"
SETTINGS[TOGETHER] = {name: value for setting in SETTINGS.values() for name, value in setting.items()}


@dataclass(frozen=True)
class Measurement:
    """kind, ending: of verify_contexts_child. setting: a key of SETTINGS. held: another process has a context meanwhile."""

    kind: str
    at_once: int
    setting: str = "as it is"
    ending: str = "exit"
    held: bool = False


def _both(kind: str, counts: tuple[int, ...]) -> list[Measurement]:
    return [Measurement(kind, number, setting) for number in counts for setting in ("as it is", TOGETHER)]


PLANS: dict[str, list[Measurement]] = {
    "driver": [
        *_both("bare", (4, 1)),
        *[Measurement("bare", 4, name) for name in ("1 connection", "1 copy connection", "short queues", "no boost")],
        *[Measurement("bare", number, held=True) for number in (1, 4)],
        *[Measurement("bare", 4, ending=ending) for ending in ("reset", "kill")],
        *[Measurement("init", number) for number in (1, 4)],
        *[Measurement("again", number) for number in (1, 4)],
        Measurement("again", 4, TOGETHER),
        *_both("bare", (8, 16)),
        Measurement("bare", 4, TOGETHER, held=True),
        *[Measurement("bare", 4, name) for name in ("no cache", "bus order", "no JIT")],
    ],
    "torch": [*_both("torch", (8, 1, 4)), *_both("full", (8,)), Measurement("full", 1), *_both("torch", (16,))],
}
SHARES = {"driver": 0.52, "torch": 0.40, "calls": 0.08}  # of all seconds; what one leaves is the next one's


@dataclass
class Ended:
    """What became of the processes of a row."""

    found: list[dict[str, Any]] = field(default_factory=list)
    cpu: list[tuple[float, float]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Run the phases and keep what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all phases together")
    parser.add_argument("--only", nargs="*", choices=[*SHARES], help="these phases alone")
    parser.add_argument("--driver", default=child.DRIVER, help="the driver's library, or one that stands in for it")
    parser.add_argument("--device", default="cuda", help="cpu goes through the motions of PyTorch's part without a GPU")
    parser.add_argument("--phase", choices=[*SHARES], help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=child.KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(child.work(options.one, "exit", vars(options))), flush=True)
        os._exit(0)
    if options.phase:
        return _calls(options) if options.phase == "calls" else _phase(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    machine = {"machine": platform.platform(), "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}
    deadline, codes = time.monotonic() + options.seconds, {}
    wanted = options.only or [*SHARES]
    for number, name in enumerate(wanted):
        left = max(1.0, deadline - time.monotonic())
        share = left * SHARES[name] / sum(SHARES[other] for other in wanted[number:])
        codes[name] = _run_phase(name, share, options, rows, machine)
    print("phases that did not end well:", [name for name, code in codes.items() if code] or "none", flush=True)
    return 1 if any(codes.values()) or not rows or any(row.get("failures") for row in rows) else 0


def _run_phase(name: str, seconds: float, options: Any, rows: list[dict[str, Any]], machine: Mapping[str, Any]) -> int:
    """A phase in a process group of its own, which is ended when its time is over; each line is shown, each row kept."""
    print(f"\n== {name} ({seconds:.0f} s)", flush=True)
    command = [sys.executable, "-u", "-X", "faulthandler", __file__, "--out", str(options.out), "--phase", name]
    command += ["--seconds", str(seconds), "--driver", options.driver, "--device", options.device]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout is not None
    last = time.monotonic() + seconds + SCRIPT_SECONDS + 5
    waiting = b""
    while (left := last - time.monotonic()) > 0 and select.select([process.stdout], [], [], left)[0]:
        data = os.read(process.stdout.fileno(), 1 << 16)
        if not data:
            break
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith(ROW):
                rows.append(json.loads(text.removeprefix(ROW)))
                options.out.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")
                text = _shown(rows[-1])
            print(text, flush=True)
    if waiting:
        print(waiting.decode(errors="replace"), flush=True)
    if time.monotonic() >= last:
        print(f"-- {name} did not end in time", flush=True)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _shown(row: Mapping[str, Any]) -> str:
    """A row for people."""
    failed = "".join(f"\n   FAILED {number}: {text}" for text, number in row.get("failures", {}).items())
    if "calls" in row:
        return "\n   ".join([f"{row['at_once']} at once, {row['setting']}:", *row["calls"]]) + failed
    name = f"{row['kind']:5} {row['at_once']:2} at once, {row['setting']}, {row['ending']}{', another held' * row['held']}"
    parts = " ".join(f"{part} {ms}" for part, ms in row["ms"].items())
    cpu = "+".join(map(str, row["cpu_ms"]))
    return f"{name:52} {row['per_second']:6.2f}/s  ms: {parts}; CPU {cpu}; {row['gpu_mib']} MiB{failed}"


def _phase(options: Any) -> int:
    """Measure a plan, in order, while there is time."""
    deadline = time.monotonic() + options.seconds
    chosen = {"driver": options.driver, "device": options.device}
    if options.phase == "torch":
        import torch

        torch.set_num_threads(1)
        maps = Path("/proc/self/maps").read_text()
        print("torch", torch.__version__, "importing it loads the driver's library:", "libcuda.so" in maps, flush=True)
    left_out = []
    for number, measurement in enumerate(PLANS[options.phase]):
        if number and time.monotonic() > deadline:
            left_out.append(measurement)
            continue
        row = _measured(measurement, chosen)
        print(ROW + json.dumps({"phase": options.phase, **asdict(measurement), **row}), flush=True)
    for measurement in left_out:
        print("no time for", measurement, flush=True)
    return 0


def _measured(measurement: Measurement, options: Mapping[str, Any]) -> dict[str, Any]:
    """A row of figures."""
    with _held(options) if measurement.held else nullcontext("") as problem:
        began = time.monotonic()
        ended = _processes(measurement, options)
        seconds = time.monotonic() - began
    contexts = sum(found["contexts"] for found in ended.found)
    names = [name for name in (ended.found[0]["parts"] if ended.found else ())]
    parts = {name: statistics.median(found["parts"][name] for found in ended.found) for name in names}
    if ended.found:
        parts["exit"] = statistics.median(found["exit"] for found in ended.found)
    row: dict[str, Any] = {
        "per_second": round(contexts / seconds, 2),
        "contexts": contexts,
        "ms": {name: round(1e3 * value, 1) for name, value in parts.items()},
        "cpu_ms": [round(1e3 * statistics.mean(values), 1) for values in zip(*ended.cpu, strict=True)],  # user, kernel
        "gpu_mib": max((found.get("gpu_mib", 0) for found in ended.found), default=0),
    }
    if problem:
        row["failures"] = {f"the process that holds a context: {problem}": 1}
    if ended.failures:
        row["failures"] = row.get("failures", {}) | dict(ended.failures)
    return row


def _processes(measurement: Measurement, options: Mapping[str, Any]) -> Ended:
    """Keep so many under way for a while, then wait for the last ones."""
    ended, alive = Ended(), dict[int, tuple[int, int, float]]()  # by the number of a pidfd
    began, started, poll = time.monotonic(), 0, select.poll()
    while True:
        # After a failure none is started: what is refused ends at once, thousands a second.
        while len(alive) < measurement.at_once and not ended.failures:
            if started >= measurement.at_once and time.monotonic() - began > ROW_SECONDS:
                break
            pid, pipe = _started(measurement, options)
            started += 1
            watch = os.pidfd_open(pid)
            alive[watch] = (pid, pipe, time.monotonic())
            poll.register(watch, select.POLLIN)
        if not alive:
            return ended
        ready = {fd for fd, _ in poll.poll(100)}
        for watch in [fd for fd in alive if fd in ready or time.monotonic() - alive[fd][2] > CHILD_SECONDS]:
            pid, pipe, _ = alive.pop(watch)
            poll.unregister(watch)
            hung = watch not in ready
            if hung:
                signal.pidfd_send_signal(watch, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            gone = time.perf_counter()
            os.close(watch)
            _keep(ended, measurement, "hangs" if hung else "", status, pipe, gone, (usage.ru_utime, usage.ru_stime))


def _keep(
    ended: Ended, measurement: Measurement, problem: str, status: int, pipe: int, gone: float, cpu: tuple[float, float]
) -> None:
    with os.fdopen(pipe, "rb") as file:
        told = json.loads(file.read() or b"{}")
    code = os.waitstatus_to_exitcode(status)
    expected = -signal.SIGKILL if measurement.ending == "kill" else 0
    if problem or "error" in told or code != expected or "parts" not in told:
        ended.failures[problem or told.get("error") or f"ended with {code}"] += 1
        return
    ended.found.append(told | {"exit": gone - told["at"]})
    ended.cpu.append(cpu)


def _started(measurement: Measurement, options: Mapping[str, Any]) -> tuple[int, int]:
    """A process that does it, and the pipe on which it tells."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 1
    try:
        os.environ |= SETTINGS[measurement.setting]
        try:
            told = child.work(measurement.kind, measurement.ending, options)
            code = 0
        except BaseException as error:
            told = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        os.write(write, json.dumps(told).encode())
        if measurement.ending == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(code)


@contextmanager
def _held(options: Mapping[str, Any]) -> Iterator[str]:
    """While this lasts another process has a context. Gives what is wrong with it, or nothing."""
    (ready, told), (released, release) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(release)
            os.close(ready)
            child.hold(options, told, released)
        finally:
            os._exit(0)
    for fd in (told, released):
        os.close(fd)
    try:
        well = select.select([ready], [], [], CHILD_SECONDS)[0] and os.read(ready, 1)
        yield "" if well else "it did not get one"
    finally:
        os.close(ready)
        os.close(release)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _calls(options: Any) -> int:
    """What the driver's library asks of the kernel: the dearest calls of one process alone, of one among others."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "calls.c"), Path(folder, "calls.so")
        source.write_text(child.CALLS)
        made = subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], capture_output=True, text=True, check=False
        )
        if made.returncode:
            print("the C compiler says:", made.stderr[:2000])
            return 1
        for setting, at_once in (("as it is", 1), ("as it is", 8), (TOGETHER, 1)):
            table, failures = _reports(folder, str(library), setting, at_once, options)
            row = {"phase": "calls", "setting": setting, "at_once": at_once, "calls": table}
            print(ROW + json.dumps(row | ({"failures": failures} if failures else {})), flush=True)
    return 0


def _reports(folder: str, library: str, setting: str, at_once: int, options: Any) -> tuple[list[str], dict[str, int]]:
    """One line for each of the dearest calls, of all processes together, as means of one process."""
    started, failures = [], Counter[str]()
    for number in range(at_once):
        report = Path(folder, f"{setting} {at_once} {number}")
        command = [sys.executable, "-S", __file__, "--out", os.devnull, "--one", "bare", "--driver", options.driver]
        own = {"LD_PRELOAD": library, child.REPORT: str(report)}
        process = subprocess.Popen(
            command, env=os.environ | SETTINGS[setting] | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append((process, report))
    sums: dict[str, list[float]] = {}
    for process, report in started:
        try:
            said, _ = process.communicate(timeout=SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        if process.returncode or not report.exists():
            failures[f"{process.returncode}: {said[-300:]}"] += 1
            continue
        for name, count, seconds, longest in child.read_calls(report.read_text()):
            row = sums.setdefault(name, [0.0, 0.0, 0.0])
            row[0], row[1], row[2] = row[0] + count / at_once, row[1] + seconds / at_once, max(row[2], longest)
    dearest = sorted(sums.items(), key=lambda item: -item[1][1])
    whole = f"{sum(row[1] for row in sums.values()) * 1e3:.1f} ms in {sum(row[0] for row in sums.values()):.0f} calls"
    shown = [f"{row[1] * 1e3:.1f} ms in {row[0]:.0f}, longest {row[2] * 1e3:.1f}: {name}" for name, row in dearest[:14]]
    return [whole, *shown], dict(failures)


if __name__ == "__main__":
    sys.exit(main())
