"""The full stage in a sandboxed child: plans at full shapes on a GPU, then timed there. Imports torch and triton.

One process with one CUDA context serves plan after plan; of a candidate there is nothing here but kernels' texts, which the judge
has checked. A kernel that faults costs the context: the process ends, and the next plan gets another. Inputs are drawn here from
the parent's seed: they are too large to send. The reference's answers are never computed in this process.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import triton

from windtunnel.verify.kernel.arrays import Buffer
from windtunnel.verify.kernel.child.compare import drawn_part, is_large, sums
from windtunnel.verify.kernel.child.draw import Drawn
from windtunnel.verify.kernel.child.launchers import launchers_made
from windtunnel.verify.kernel.child.load import Wrong, said
from windtunnel.verify.kernel.child.memory import giving_back
from windtunnel.verify.kernel.child.replay import Replay, quietly
from windtunnel.verify.kernel.child.tensors import head_of
from windtunnel.verify.kernel.child.timed import Right, TimedCalls
from windtunnel.verify.kernel.gpu_lock import FULL, TIMING, Turns, gpu_lock_of
from windtunnel.verify.kernel.plan.schema import Plan
from windtunnel.verify.sandbox import FILES_FROM, Early, note

FAULT = "fault"
STAGING_BYTES = 16 << 20  # pinning memory takes a lock of the driver's for as long as there is of it
OTHERS_SHARE = 0.25  # of the GPU's memory, which others hold: then it is not the candidate that wants too much
_staging: list[torch.Tensor] = []


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], Early]:
    """Carry plans out at full shapes, and time them.

    Args:
        message: plans (texts that the judge has checked) by 'size dtype', sources, cases, timed (how many of the last cases),
            calls, seed, fixed, device, inplace, training, kernels (key and name of each file that the compiler made), among (by
            'size dtype', [number of a step with a choice, its configurations that were compiled and fit]), turn (how many of the
            child's files are the lock for the GPU's use: two, or none).
        buffers: the bytes of the compiler's files.

    Returns:
        Runs with heads of outputs, which are in the reply's file, 'times' for cold and warm L2, what the parts took ('seconds'),
        how many launchers a C compiler made meanwhile ('launchers'), what it waited for its turns ('turn'), or what is 'wrong'.
    """
    with giving_back(message["device"]):
        try:
            return _carried_out(message, buffers)
        finally:  # nothing is left to the next plan
            shutil.rmtree(triton.knobs.cache.dir, ignore_errors=True)


def _carried_out(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], Early]:
    torch.set_num_threads(1)
    turns, device = Turns(gpu_lock_of(range(FILES_FROM, FILES_FROM + message["turn"]))), message["device"]
    bench, made = _Bench(message), launchers_made()
    with bench.taking("context"):
        note("context")
        # Has CUDA make its context, within the phase that has time for it.
        torch.empty(1, device=device)
        triton.set_allocator(_scratch)
        _unpack(message["kernels"], buffers)
    reply: dict[str, Any] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    try:
        with turns.waiting_for(then=FULL), bench.taking("runs"), quietly():
            bench.run_all()
        if message["timed"]:
            with turns.waiting_for(alone=True, then=TIMING), bench.taking("clock"), quietly():
                bench.time()
    except Wrong as wrong:
        reply["wrong"] = {"reason": wrong.reason, "message": wrong.message}
    except torch.OutOfMemoryError:
        reply["wrong"] = {"reason": "gpu-memory", "message": "the GPU's memory did not suffice."}
        reply["others"] = _others(device)
    except Exception:
        # What a kernel overwrote may be found only by what runs behind it: of the judge's own work nothing ends a context.
        bench.end_if_lost(blamed=False)
        raise
    reply |= {"runs": bench.runs, "times": bench.times, "seconds": bench.seconds, "turn": turns.waited}
    reply["launchers"] = launchers_made() - made
    return reply, bench.early


class _Bench:
    """One candidate's runs."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.message, self.device = message, message["device"]
        self.dice = random.Random(message["seed"])
        self.early = Early()  # outputs go to the parent as they come: all together they are gigabytes
        self.runs: list[dict[str, Any]] = []
        self.times: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.replay: Replay | None = None
        self.key: tuple[str, str] = ("", "")
        self.before = ""  # the kernel that the replay before this one started last
        self.sets: list[dict[int, torch.Tensor]] = []
        self.rights: list[list[Right]] = []
        if self.device == "cpu":
            from windtunnel.verify.kernel.child.triton import Eyes

            self.start = Eyes(self.dice).start
        else:
            self.start = _start

    @contextlib.contextmanager
    def taking(self, part: str) -> Iterator[None]:
        """Note what a part takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = time.perf_counter() - began

    def run_all(self) -> None:
        """Run every case; the last ones are kept to be timed."""
        cases = self.message["cases"]
        for number, case in enumerate(cases):
            replay = self._prepared(case)
            inputs = self._inputs(case, number)
            outputs = self._run(replay, inputs, case["label"])
            self.runs.append({"number": number, **self._sent(replay.plan.kind, outputs, number)})
            if number >= len(cases) - self.message["timed"]:
                self.sets.append(inputs)
                self.rights.append([Right(output) for output in outputs])

    def time(self) -> None:
        """Take the times; then a timed output takes the place of the judged one.

        A kernel gains nothing by knowing which call it serves.
        """
        assert self.replay is not None
        label = self.message["cases"][-1]["label"]
        with self._blamed(label):
            calls = TimedCalls(self.replay, self.sets, self.parameters, self.rights, self.dice, label)
            self.times = calls.times(self.message["calls"])
        assert calls.sample is not None, "nothing was timed"
        which, outputs = calls.sample
        number = len(self.runs) - len(self.sets) + which
        self.runs[number] |= self._sent(self.replay.plan.kind, outputs, number)

    def _prepared(self, case: Mapping[str, Any]) -> Replay:
        """Load the plan of a case, and the reference whose parameters and inputs it takes."""
        key = (case["size"], case["dtype"])
        if self.replay is None or key != self.key:
            self.before = self.replay.last if self.replay is not None else ""
            # Before the next one is made: two plans' buffers need not fit at once.
            self.replay, self.key = None, key
            self.drawn = Drawn.of(self.message, *key)
            self.parameters = dict(self.drawn.model.state_dict())
            name, training = " ".join(key), self.message["training"]
            plan = Plan.model_validate_json(self.message["plans"][name])
            among = {number: configurations for number, configurations in self.message["among"].get(name, ())}
            self.replay = Replay(
                plan, self.start, self.dice, self.message["inplace"], self.device, training=training, among=among
            )
        return self.replay

    def _inputs(self, case: dict[str, Any], number: int) -> dict[int, torch.Tensor]:
        values = self.drawn.inputs(case, self.message["seed"] + 1 + number)
        return {at: value for at, value in enumerate(values) if isinstance(value, torch.Tensor)}

    def _run(self, replay: Replay, inputs: dict[int, torch.Tensor], label: str) -> list[torch.Tensor]:
        with self._blamed(label):
            outputs = replay.run(inputs, self.parameters, label)
            _settle(self.device)
        return outputs

    @contextlib.contextmanager
    def _blamed(self, label: str) -> Iterator[None]:
        """Lay what a plan's steps raise meanwhile to the candidate; it may have cost the context."""
        try:
            yield
        except (Wrong, torch.OutOfMemoryError):
            raise
        except Exception as error:
            self.end_if_lost(blamed=True)
            raise Wrong("raised", f"a launch raised {said(error)} ({label}).") from None

    def end_if_lost(self, *, blamed: bool) -> None:
        """End this process where the context is gone: the worker makes another one, with another context.

        blamed: a step of the plan raised; else it is the plan's doing only where a kernel of it ran before.
        """
        if not _lost(self.device):
            return
        last = (self.replay.last if self.replay is not None else "") or self.before
        note(f"{FAULT}: {last}" if blamed or last else "context")
        os._exit(1)

    def _sent(self, kind: str, outputs: Sequence[torch.Tensor], number: int) -> dict[str, Any]:
        """Send outputs to the parent at once, of large ones a part that is drawn only now; returns what describes them."""
        heads = []
        for output in outputs:
            head = head_of(output)
            if is_large(output):
                head["sums"] = self._add(sums(output))
                output = drawn_part(output, self.message["seed"] + number)
            heads.append({**head, "at": self._add(output.detach().contiguous())})
        return {"kind": kind, "outputs": heads}

    def _add(self, tensor: torch.Tensor) -> int:
        try:
            return self.early.add(_pieces(tensor, self.device))
        except OverflowError as error:
            raise Wrong("too-much-output", f"forward returns too much: {error}.") from None


def _start(kernel: Any, grid: Any, values: dict[str, Any], options: dict[str, Any]) -> None:
    kernel.run(grid=grid, warmup=False, **values, **options)


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Return memory that tl.make_tensor_descriptor builds its descriptors in.

    alignment: PyTorch's blocks are aligned to 512 bytes, which is enough.
    """
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _lost(device: str) -> bool:
    """Return whether the context is gone: then nothing works any more."""
    try:
        _settle(device)
        # Asking whether it works is the only way to know: some faults are told by the next call.
        torch.ones(1, device=device).sum().item()
    except Exception:  # whatever a broken context makes of it
        return True
    return False


def _others(device: str) -> bool:
    """Return whether other processes hold much of the GPU's memory."""
    if device == "cpu":
        return False
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() > OTHERS_SHARE * total


def _unpack(files: Sequence[Sequence[str]], buffers: Sequence[Buffer]) -> None:
    """Put what was compiled elsewhere where Triton looks for it before it compiles.

    files: key and name of each.
    """
    folder = triton.knobs.cache.dir
    groups: dict[str, dict[str, str]] = {}
    for (key, name), data in zip(files, buffers, strict=True):
        path = os.path.join(folder, key, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        groups.setdefault(key, {})[name] = path
    for key, group in groups.items():
        triton.runtime.cache.FileCacheManager(key).put_group(next(name for name in group if name.endswith(".json")), group)


def _pieces(tensor: torch.Tensor, device: str) -> Iterator[memoryview]:
    """Yield a tensor's bytes through one small buffer, pinned where that is possible, whose pages are there already."""
    if not tensor.numel():
        return
    if not _staging:
        pinned = device == "cuda"
        _staging.append(torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=pinned))
    for part in tensor.reshape(-1).view(torch.uint8).split(STAGING_BYTES):
        held = _staging[0][: part.numel()]
        held.copy_(part)
        yield held.numpy().data
