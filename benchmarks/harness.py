"""What measurements of several sides on one machine share: processes, time limits, samples of NVML, results as they come.

A side is a command in a process of its own, which has the GPU to itself. It is ended with all that it started: engines and
judges have sessions of their own. What is known is written again and again, so that a machine that is taken away takes nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SAMPLE_SECONDS, POLL_SECONDS = 0.05, 0.5
SETTLE_SECONDS, OVER_SECONDS, GONE_SECONDS = 15.0, 15.0, 20.0
"""Most that is waited for memory to be free, for an orderly end when all time is over, and for a killed process."""
TIME_OVER = 3
PACKAGES = ("torch", "triton", "transformers", "peft", "vllm", "trl")
ROUND_PARTS = {
    "weights": ["publish_seconds", "load_seconds"], "generating": ["generating_seconds"], "judging": ["judging_seconds"],
    "learning": ["learning_seconds"],
}  # fmt: skip
"""Of a round of `windtunnel`'s reinforcement learning: the metrics that each part is the sum of."""
VLLM = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""Environment of vLLM: nothing is built or asked for over the network."""
Reading = tuple[float, float | None]
"""GB in use, and the share of a moment in which kernels ran, where that is known."""


class Meter:
    """Samples memory and use of the GPU, in a thread; without one the memory of a process with all that it started.

    Args:
        gpu: there is one, and NVML.

    Attributes:
        rows: time, GB, and the share of a moment in which kernels ran. root: the process that is looked at without a GPU.
    """

    def __init__(self, gpu: bool) -> None:
        self.rows: list[tuple[float, float, float | None]] = []
        self.root: int | None = None
        self._read, self._over = nvml_reader() if gpu else self._of_tree, threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def close(self) -> None:
        """Take no more samples."""
        self._over.set()

    def now(self) -> float:
        """Return the GB in use."""
        return self._read()[0]

    def peak(self, since: float) -> float | None:
        """Return the most GB in use since a time."""
        return max((gb for when, gb, _ in self.rows if when >= since), default=None)

    def idle(self, began: float, ended: float) -> float | None:
        """Return the share of a time in which no kernel ran; None where nobody knows."""
        within = [busy for when, _, busy in self.rows if busy is not None and began <= when <= ended]
        return 1 - statistics.fmean(within) if within else None

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.rows.append((time.time(), *self._read()))

    def _of_tree(self) -> Reading:
        total = 0.0
        for process in tree(self.root):
            with contextlib.suppress(Exception):
                total += process.memory_info().rss / 1e9
        return total, None


def nvml_reader() -> Callable[[], Reading]:
    """Return what reads the first GPU that CUDA would see, without starting CUDA."""
    try:
        import pynvml as nvml
    except ImportError:
        from vllm.third_party import pynvml as nvml
    nvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    handle = nvml.nvmlDeviceGetHandleByIndex(int(visible)) if visible.isdigit() else nvml.nvmlDeviceGetHandleByUUID(visible)

    def read() -> Reading:
        return nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e9, nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100

    return read


def tree(root: int | None) -> list[Any]:
    """Return a process and all that came of it."""
    import psutil

    if root is None:
        return []
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(root)
        return [first, *first.children(recursive=True)]
    return []


def end(root: int) -> None:
    """Kill a side with all that it started."""
    for process in tree(root):
        with contextlib.suppress(Exception):
            process.send_signal(signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)


@dataclass(frozen=True)
class Side:
    """A command to be measured.

    Attributes:
        words: it. log: gets all that it prints. environment: beside this process's own.
        grace: seconds after SIGTERM in which it may end by itself when its time is over; 0: it is killed at once.
        out: gets its standard output, where that is not to be in the log.
    """

    words: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 0.0
    out: Path | None = None


@dataclass(frozen=True)
class Ended:
    """How a side ended.

    Attributes:
        code: its exit code; None: it was killed when its time was over. stopped: it was told to end, and may have.
        began: when, in seconds since the epoch. seconds: from then to its end. words: the end of its log where it failed.
    """

    code: int | None
    stopped: bool
    began: float
    seconds: float
    words: str

    @property
    def how(self) -> str:
        """How it ended, in words."""
        told = "its time was over" if self.stopped else ""
        return told if self.code is None else ", ".join(filter(None, [told, f"exit code {self.code}"]))


class Bench:
    """Runs sides one after the other within a time, and keeps what is known so far in a file. Use as a context manager.

    Args:
        out: the file. found: its content, which the caller adds to. seconds: that all may take; a little later the process is
            ended from within. gpu: sides run on one.

    Attributes:
        meter: samples of all the time.
    """

    def __init__(self, out: Path, found: dict[str, Any], seconds: float, *, gpu: bool) -> None:
        self.found, self.meter = found, Meter(gpu)
        self._out, self._until = out, time.monotonic() + seconds
        self._timer = threading.Timer(seconds + OVER_SECONDS, self._over)
        self._timer.daemon = True

    def __enter__(self) -> Bench:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        self.meter.close()

    @property
    def left(self) -> float:
        """Seconds until all time is over."""
        return self._until - time.monotonic()

    def turns(self, shares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """Yield names with the seconds of each: its share of what is left; what one leaves goes to those after it."""
        rest = sum(shares.values())
        for name, share in shares.items():
            yield name, max(0.0, self.left * share / rest)
            rest -= share

    def run(self, side: Side, seconds: float, look: Callable[[float], None] = lambda since: None) -> Ended:
        """Run a side until it ends or its time is over.

        Args:
            look: called twice a second meanwhile with the time at which it began; what it finds goes into `found`.
        """
        before, began, until = self.meter.now(), time.time(), time.monotonic() + seconds
        side.log.parent.mkdir(parents=True, exist_ok=True)
        with side.log.open("wb") as log, (side.out or side.log).open("ab") as out:
            process = subprocess.Popen(
                list(side.words), env={**os.environ, **side.environment, "PYTHONPATH": paths()}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=log, start_new_session=True,
            )  # fmt: skip
            self.meter.root = process.pid
            try:
                stopped = not _ends(process, until, lambda: look(began))
                if stopped and side.grace:
                    process.terminate()
                    _ends(process, time.monotonic() + side.grace, lambda: None)
            finally:
                code = process.poll()
                end(process.pid)
                process.wait(GONE_SECONDS)
                self.meter.root = None
        took = time.time() - began
        self._settle(before)
        look(began)
        words = side.log.read_text("utf-8", "replace")[-3000:] if code != 0 else ""
        return Ended(code, stopped, began, took, words)

    def write(self) -> None:
        """Write what is known."""
        self._out.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._out.with_name(self._out.name + ".tmp")
        temporary.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self._out)

    def _settle(self, before: float) -> None:
        """Wait until a side's memory is free again."""
        until = time.monotonic() + SETTLE_SECONDS
        while self.meter.now() > before + 1 and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def _over(self) -> None:
        if self.meter.root is not None:
            end(self.meter.root)
        print("the time of all was over", flush=True)
        os._exit(TIME_OVER)


def _ends(process: subprocess.Popen[bytes], until: float, look: Callable[[], None]) -> bool:
    """Return whether a process ends in time."""
    while process.poll() is None:
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_SECONDS)
        look()
    return True


def paths() -> str:
    """Return PYTHONPATH with this source tree first."""
    return os.pathsep.join(filter(None, [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]))


def leave_this_folder() -> None:
    """Take the scripts' folder out of the import path: some of its files have names of other packages."""
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != HERE]


def round_parts(value: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the seconds of a round by part, with what is none of them as `rest`."""
    parts = {part: sum(value.get(name, 0.0) for name in names) for part, names in ROUND_PARTS.items()}
    parts["generating"] -= parts["judging"]  # of which it is a part
    return parts | {"rest": seconds - sum(parts.values())}


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of each part over rounds that have `parts`."""
    names = rounds[0]["parts"] if rounds else ()
    return {name: statistics.median(one["parts"].get(name, 0.0) for one in rounds) for name in names}


def machine(*, gpu: bool, packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Return what this is measured on and with, without starting CUDA here."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    name = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() if gpu else None
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {"gpu": name, "cpu": platform.machine(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
            "versions": versions, "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def has_gpu() -> bool:
    """Return whether a driver for NVIDIA's GPUs answers here."""
    with contextlib.suppress(OSError):
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
    return False
