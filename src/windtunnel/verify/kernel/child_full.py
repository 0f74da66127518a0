"""The full stage in a sandboxed child: a candidate at full shapes on a GPU, then timed there. Imports torch and triton.

Inputs are drawn here from the parent's seed, before the candidate is loaded: they are too large to send. The reference's
answers are never computed in this process.
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.verify.kernel.arrays import Buffer, plain
from windtunnel.verify.kernel.child_clock import measure
from windtunnel.verify.kernel.child_draw import Drawn
from windtunnel.verify.kernel.child_load import Wrong, said
from windtunnel.verify.kernel.child_tiny import finish
from windtunnel.verify.kernel.child_watch import poison
from windtunnel.verify.kernel.child_work import Work
from windtunnel.verify.sandbox.channel import note

POOL_BYTES = 1 << 30
SAME = 1e-3  # of a timed output against the judged one of the same inputs: atomics add in any order


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """message: source, sources, cases, timed (how many of the last cases), calls, seed, fixed, device, inplace, host_copies.

    Returns what the tiny stage returns, and 'times' for cold and warm L2.
    """
    work = FullWork(message, buffers)
    reply, out = finish(work)
    return {**reply, "times": work.times, "device": _device_name(message["device"])}, out


class FullWork(Work):
    """The same runs as at the tiny stage, on the device, and the clock."""

    stage = "full"

    def __init__(self, message: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self.device = message["device"]
        self.tensors: list[list[torch.Tensor]] = []
        self.states: list[list[torch.Tensor]] = []
        super().__init__({**message, "groups": self._draw(message)}, buffers)
        self.times: dict[str, Any] = {}
        self.timed: list[tuple[torch.nn.Module, list[Any], list[torch.Tensor]]] = []

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
        from windtunnel.verify.kernel.child_gpu import install_on_gpu

        install_on_gpu(self.launches)
        pool = torch.empty(POOL_BYTES, dtype=torch.uint8, device=self.device).view(torch.float32)
        poison(pool)  # what the allocator hands out next holds NaN, not somebody's answer

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
        """The runs, then the clock; a thread that was started is refused."""
        threads = threading.active_count()
        super().everything()
        if self.message["timed"]:
            note("timing")
            try:
                self._time()
            except Wrong:
                raise
            except Exception as error:  # the candidate's: else it could turn a refusal into 'nothing is known'
                raise Wrong("raised", f"forward raised {said(error)} while it was timed.") from None
        if threading.active_count() > threads:
            raise Wrong("starts-threads", "the candidate started threads.")

    def after_group(self, model: torch.nn.Module, group: dict[str, Any]) -> None:
        """Remembers what is to be timed, with the outputs that the parent will judge."""
        for case in group["cases"]:
            if case["timed"]:
                values = iter(tensor.clone() for tensor in self.fresh(case))
                arguments = [next(values) if entry is None else entry["value"] for entry in case["arguments"]]
                heads = next(run for run in self.runs if run["number"] == case["number"])["outputs"]
                self.timed.append((model, arguments, [self._kept(head) for head in heads]))

    def _kept(self, head: dict[str, Any]) -> torch.Tensor:
        data = bytearray(self.out[head["at"]])
        return torch.frombuffer(data, dtype=getattr(torch, head["dtype"])).reshape(head["shape"]).to(self.device)

    def _time(self) -> None:
        model = self.timed[0][0].eval()
        gc.collect()
        self.kept.clear()

        def look(which: int, result: Any) -> None:
            outputs = list(result) if isinstance(result, tuple | list) else [result]
            for output, right in zip(outputs, self.timed[which][2], strict=True):
                if type(output) is not torch.Tensor or output.shape != right.shape or not _near(output, right):
                    raise Wrong("timed-output-differs", "a timed call returned something else than the same call before.")
                if not self.message["inplace"]:
                    poison(output)

        dice = random.Random(self.message["seed"])
        with torch.no_grad():
            for name in ("cold", "warm"):
                self.times[name] = measure(
                    model,
                    [arguments for _, arguments, _ in self.timed],
                    self.message["calls"],
                    cold=name == "cold",
                    dice=dice,
                    device=self.device,
                    after=look,
                )


def _near(output: torch.Tensor, right: torch.Tensor) -> bool:
    if not output.is_floating_point():
        return torch.equal(output, right)
    scale = float(right.abs().nan_to_num(0.0, 0.0, 0.0).mean())
    return torch.allclose(output, right, rtol=SAME, atol=SAME * scale, equal_nan=True)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
