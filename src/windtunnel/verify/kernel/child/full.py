"""The full stage in a sandboxed child: a candidate at full shapes on a GPU, then timed there. Imports torch and triton.

Inputs are drawn here from the parent's seed, before the candidate is loaded: they are too large to send. The reference's
answers are never computed in this process.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from windtunnel.verify.kernel.arrays import Buffer, plain
from windtunnel.verify.kernel.child.autotune import always_first, forget_tuning, pick_configurations, tuners
from windtunnel.verify.kernel.child.clock import measure
from windtunnel.verify.kernel.child.draw import Drawn
from windtunnel.verify.kernel.child.load import Wrong, laid_to_candidate, said
from windtunnel.verify.kernel.child.memory import Masked
from windtunnel.verify.kernel.child.state import CANDIDATE
from windtunnel.verify.kernel.child.tensors import head_of
from windtunnel.verify.kernel.child.timed import TimedCalls
from windtunnel.verify.kernel.child.turn import CONTEXT, FIRST_WAIT, TIMING, stepping_aside, waiting_for, waiting_for_place
from windtunnel.verify.kernel.child.watch import poison
from windtunnel.verify.kernel.child.work import Places, Work, finish
from windtunnel.verify.kernel.gpu_lock import GpuLock, gpu_lock_of
from windtunnel.verify.kernel.timing import LEAST
from windtunnel.verify.sandbox import FILES_FROM, Early

POOL_BYTES = (128 << 20, 1 << 30)  # at least, at most: making it and giving it back holds up other processes
POOL_SHARE = 4  # of the inputs of all cases
WARM_CALLS = LEAST + 2  # no speed-up is made of warm ones, so that they need not be known as well
STAGING_BYTES = 4 << 20  # pinning memory takes a lock of the driver's for as long as there is of it


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], Early]:
    """message: source, sources, cases, timed (how many of the last cases), calls, seed, fixed, device, inplace, host_copies, turn
    (how many of the child's files are the lock for the GPU's use: two, or none), places (how many after those are for making a
    context).

    Returns what the tiny stage returns, with 'unmoved' in place of 'knocked', 'times' for cold and warm L2, and what the parts
    took ('seconds'; waiting for turns is a part of them).
    """
    torch.set_num_threads(1)
    after = FILES_FROM + message["turn"]
    turns, free = gpu_lock_of(range(FILES_FROM, after)), range(after, after + message["places"])
    began = time.perf_counter()
    with waiting_for(turns, then=CONTEXT, phase=FIRST_WAIT):
        with waiting_for_place(free, then=CONTEXT):
            torch.empty(1, device=message["device"])
        device = _device_name(message["device"])  # asked before a candidate can have broken the context
        ready = time.perf_counter()
        work = FullWork(message, buffers, turns)
    work.spent |= {"context": ready - began, "inputs": time.perf_counter() - ready}
    reply, _ = finish(work)
    return {**reply, "unmoved": work.unmoved, "times": work.times, "seconds": work.spent, "device": device}, work.early


class FullWork(Work):
    """The same runs as at the tiny stage, on the device, and the clock."""

    stage = "full"

    def __init__(self, message: dict[str, Any], buffers: Sequence[Buffer], turns: GpuLock | None = None) -> None:
        self.device, self.turns = message["device"], turns
        self.tensors: list[list[torch.Tensor]] = []
        self.states: list[list[torch.Tensor]] = []
        super().__init__({**message, "groups": self._draw(message)}, buffers)
        self.times: dict[str, Any] = {}
        self.timed: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self.early = Early()  # outputs go to the parent as they come: all together they are gigabytes
        self.staging: torch.Tensor | None = None
        self.rights: dict[int, list[Masked]] = {}
        self.unmoved, self.alone = 0.0, False
        self.spent: dict[str, float] = {}

    def _draw(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Groups as the tiny stage has them, with places in `tensors` and `states` instead of bytes."""
        drawn: dict[tuple[str, str], Drawn] = {}
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        for number, case in enumerate(message["cases"]):
            key = (case["size"], case["dtype"])
            if key not in drawn:
                made = drawn[key] = Drawn(
                    message["sources"][case["size"]], case["dtype"], message["seed"], message["fixed"], self.device
                )
                self.states.append([tensor.clone() for tensor in made.model.state_dict().values()])
                groups[key] = {
                    "dtype": case["dtype"],
                    "init": [plain(value) for value in made.init],
                    "names": list(made.model.state_dict()),
                    "parameters": len(self.states) - 1,
                    "cases": [],
                }
            values = drawn[key].inputs(case, message["seed"] + 1 + number)
            self.tensors.append([value for value in values if isinstance(value, torch.Tensor)])
            groups[key]["cases"].append(
                {
                    "label": case["label"],
                    "training": case["training"],
                    "number": number,
                    "timed": number >= len(message["cases"]) - message["timed"],
                    "inputs": len(self.tensors) - 1,
                    "arguments": [None if isinstance(value, torch.Tensor) else {"value": plain(value)} for value in values],
                }
            )
        return list(groups.values())

    def install(self) -> None:
        """On a GPU launches are real; they are counted and can be knocked out."""
        if self.device == "cpu":
            super().install()
            return
        from windtunnel.verify.kernel.child.gpu import install_on_gpu

        install_on_gpu(self.launches, self._aside, quick=None if self.message["timed"] else random.Random(self.message["seed"]))
        drawn = sum(tensor.numel() * tensor.element_size() for tensors in self.tensors for tensor in tensors)
        size = min(max(POOL_SHARE * drawn, POOL_BYTES[0]), POOL_BYTES[1])
        pool = torch.empty(size // 4, dtype=torch.float32, device=self.device)
        poison(pool)  # what the allocator hands out next holds NaN, not somebody's answer

    def _aside(self) -> contextlib.AbstractContextManager[None]:
        """A kernel is compiled outside of the turn, with nothing left running; alone on the GPU, one stays there."""
        if self.alone or self.turns is None:
            return contextlib.nullcontext()
        self.settle()
        return stepping_aside(self.turns, then=self.stage)

    def parameters(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """Drawn here."""
        return self.states[group["parameters"]]

    def fresh(self, case: dict[str, Any]) -> list[torch.Tensor]:
        """Drawn here."""
        return self.tensors[case["inputs"]]

    def settle(self) -> None:
        """All streams."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def model(self, made: Any, group: dict[str, Any]) -> torch.nn.Module:
        """Made on the device."""
        with torch.device(self.device):
            return super().model(made, group).to(self.device)

    def everything(self) -> None:
        """The runs among others, then the clock alone; a thread that was started is refused."""
        threads, began = threading.active_count(), time.perf_counter()
        with waiting_for(self.turns, again=True, then=CONTEXT, phase=FIRST_WAIT):  # nothing of the candidate is loaded yet
            super().everything()
            gc.collect()
            self.kept.clear()
            self.settle()
        self.spent["runs"] = time.perf_counter() - began
        if self.message["timed"]:
            with waiting_for(self.turns, alone=True, then=TIMING):
                self.alone = True
                try:
                    began = time.perf_counter()
                    self._time()
                    self.spent["clock"] = time.perf_counter() - began
                except (Wrong, torch.OutOfMemoryError):
                    raise
                except BaseException as error:  # the candidate's: else it could turn a refusal into 'nothing is known'
                    raise Wrong("raised", f"forward raised {said(error)} while it was timed.") from None
                finally:
                    with contextlib.suppress(Exception):
                        self.settle()
        if threading.active_count() > threads:
            raise Wrong("starts-threads", "the candidate started threads.")

    def _run(self, model: torch.nn.Module, case: dict[str, Any], places: Places) -> dict[str, Any]:
        self.now = case
        return super()._run(model, case, places)

    def _keep(self, tensor: torch.Tensor) -> dict[str, Any]:
        """To the parent at once; what is to be timed stays here too."""
        if self.now["timed"]:
            self.rights.setdefault(self.now["number"], []).append(Masked(tensor))
        with laid_to_candidate("wrong-type", "what forward returned cannot be read; return a plain tensor whose memory is there"):
            try:
                at = self.early.add(self._pieces(tensor.detach().contiguous()))
            except OverflowError as error:
                raise Wrong("too-much-output", f"forward returns too much: {error}.") from None
        return {**head_of(tensor), "at": at}

    def _pieces(self, tensor: torch.Tensor) -> Iterator[memoryview]:
        """The tensor's bytes through one small buffer, whose pages are there already."""
        if not tensor.numel():
            return
        flat = tensor.reshape(-1).view(torch.uint8)
        if self.staging is None:
            self.staging = _staging(self.device)
        for part in flat.split(STAGING_BYTES):
            held = self.staging[: part.numel()]
            held.copy_(part)
            yield held.numpy().data

    def _try_others(self, model: torch.nn.Module, group: dict[str, Any], places: Places) -> None:
        """No further calls, which are dear at full size: each of those made takes a configuration that was taken least often."""

    def knocked_out(self, outputs: list[torch.Tensor], kind: str) -> None:
        """What stays here is a number: the outputs say nothing else, and are as large as the right ones."""
        shares = [self._finite_share(output) for output in outputs if output.is_floating_point() and output.numel()]
        self.unmoved = sum(shares) / len(shares) if shares else 0.0

    def _finite_share(self, output: torch.Tensor) -> float:
        """On the CPU, which loads no kernels for it."""
        pieces = self._pieces(output.detach().contiguous())
        return sum(int(torch.frombuffer(piece, dtype=output.dtype).isfinite().sum()) for piece in pieces) / output.numel()

    def after_group(self, model: torch.nn.Module, group: dict[str, Any]) -> None:
        """Remembers what is to be timed."""
        for case in group["cases"]:
            if case["timed"]:
                self.timed.append((model, case))

    def _time(self) -> None:
        model, cases = self.timed[0][0].eval(), [case for _, case in self.timed]
        candidate = sys.modules[CANDIDATE]
        if self.device != "cpu":
            forget_tuning(candidate)
        else:
            pick_configurations(always_first)  # no tuning here
        dice = random.Random(self.message["seed"])
        with torch.no_grad():
            rights = [self.rights[case["number"]] for case in cases]
            calls = TimedCalls(self, model, cases, rights, dice, tuned=any(tuners(candidate)))
            for name in ("cold", "warm"):
                calls.cold = name == "cold"
                self.times[name] = measure(
                    model,
                    calls.sets,
                    self.message["calls"] if calls.cold else WARM_CALLS,
                    cold=name == "cold",
                    dice=dice,
                    device=self.device,
                    before=calls.before,
                    after=calls.after,
                )
            self._judge_instead(*calls.finish())

    def _judge_instead(self, case: dict[str, Any], outputs: list[torch.Tensor]) -> None:
        """What a timed call returned is judged in place of what the same call before returned: a kernel may know the addresses of
        memory, and so which is which."""
        run = next(run for run in self.runs if run["number"] == case["number"])
        self.now = {**case, "timed": False}
        run["outputs"] = [self._keep(output) for output in outputs]


def _staging(device: str) -> torch.Tensor:
    """Pinned where that is possible, which a GPU copies to several times faster."""
    with contextlib.suppress(RuntimeError):
        return torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=device != "cpu")
    return torch.empty(STAGING_BYTES, dtype=torch.uint8)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
