"""The tiny stage in a sandboxed child: plans on Triton's interpreter, on inputs of the judge's. Imports torch and triton.

The child judges no values; it reports what happened, and the parent compares.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from windtunnel.verify.kernel.arrays import Buffer
from windtunnel.verify.kernel.child.load import Wrong, said
from windtunnel.verify.kernel.child.replay import Replay
from windtunnel.verify.kernel.child.tensors import received, sent
from windtunnel.verify.kernel.child.triton import Eyes
from windtunnel.verify.kernel.plan.schema import Plan
from windtunnel.verify.sandbox.channel import note

MOST_AGAIN = 256  # further runs, for configurations that no case has tried
AGAIN_SECONDS = 12.0  # of the CPU; no such run is begun after them


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Carry plans out on the interpreter, at tiny sizes.

    Args:
        message: plans (texts that the judge has checked), groups (plan, parameters by name, cases with inputs by position),
            inplace, training, seed, seconds (of CPU time, after which no other case is begun).
        buffers: of parameters and inputs.

    Returns:
        'runs' in the order of groups and cases, 'again' for further configurations, 'knocked' for the first case with no kernel
        run, each with heads of outputs; and 'wrong' where something was: then the rest is left out.
    """
    torch.set_num_threads(1)
    gc.enable()
    gc.freeze()  # what the warm worker made is not looked through again
    whole = _Whole(message, buffers)
    note("tiny")
    reply: dict[str, Any] = {}
    try:
        whole.everything()
    except Wrong as wrong:
        reply["wrong"] = {"reason": wrong.reason, "message": wrong.message}
    except MemoryError:
        reply["wrong"] = {"reason": "memory", "message": "a kernel used more memory than it may."}
    return {**reply, **whole.reply()}, whole.out


class _Whole:
    """All runs of one candidate."""

    def __init__(self, message: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self.message, self.buffers = message, buffers
        self.dice = random.Random(message["seed"])
        self.eyes = Eyes(self.dice)
        self.out: list[Buffer] = []
        self.runs: list[dict[str, Any]] = []
        self.again: list[dict[str, Any]] = []
        self.knocked: dict[str, Any] | None = None

    def everything(self) -> None:
        """Run every group's cases; with the first, also the run with no kernel run."""
        for number, group in enumerate(self.message["groups"]):
            plan = Plan.model_validate_json(self.message["plans"][group["plan"]])
            replay = Replay(plan, self.eyes.start, self.dice, self.message["inplace"], training=self.message["training"])
            parameters = {name: self._tensor(head) for name, head in group["parameters"].items()}
            first = len(self.runs)
            for case in group["cases"]:
                if self.runs and self._late():
                    return
                self.runs.append({"case": case["label"], **self._run(replay, parameters, case)})
                # With the first case alone: where its output is there without a kernel, so it is in all.
                if self.knocked is None and number == 0 and _is_made(plan):
                    replay.blank = True
                    self.knocked = self._run(replay, parameters, case)
                    replay.blank = False
            while replay.untried() and len(self.again) < MOST_AGAIN and time.process_time() < AGAIN_SECONDS and not self._late():
                at = len(self.again) % len(group["cases"])
                self.again.append({"at": first + at, **self._run(replay, parameters, group["cases"][at])})

    def _late(self) -> bool:
        """Return whether the time is over after which nothing else is begun."""
        return self.message["seconds"] is not None and time.process_time() > self.message["seconds"]

    def _run(self, replay: Replay, parameters: dict[str, torch.Tensor], case: dict[str, Any]) -> dict[str, Any]:
        inputs = {at: self._tensor(head) for at, head in enumerate(case["inputs"]) if head is not None}
        outputs = self._outputs(replay, inputs, parameters, case["label"])
        return {"kind": replay.plan.kind, "outputs": [sent(output, self.out) for output in outputs]}

    def _outputs(
        self, replay: Replay, inputs: dict[int, torch.Tensor], parameters: dict[str, torch.Tensor], label: str
    ) -> list[torch.Tensor]:
        try:
            outputs = replay.run(inputs, parameters, label)
        except (Wrong, MemoryError):
            self._look(label)
            raise
        except Exception as error:
            self._look(label)
            raise Wrong("raised", f"a launch raised {said(error)} ({label}).") from None
        self._look(label)
        return outputs

    def _look(self, label: str) -> None:
        """Raise Wrong for what the eyes saw, which explains more than what it led to."""
        if self.eyes.strays:
            name, verb = next(iter(self.eyes.strays.items()))
            text = f"Kernel {name} {verb} outside the tensors it was given. Mask its accesses ({label})."
            raise Wrong("out-of-bounds", text) from None
        if self.eyes.races:
            name, what = next(iter(self.eyes.races.items()))
            text = f"In kernel {name} {what}: the result depends on the order of programs. Use atomics or separate places."
            raise Wrong("race", text) from None

    def _tensor(self, head: dict[str, Any]) -> torch.Tensor:
        return received(head, self.buffers[head["at"]])

    def reply(self) -> dict[str, Any]:
        """Return what ran, as it goes to the judge."""
        return {"runs": self.runs, "again": self.again, "knocked": self.knocked, "kernels": dict(self.eyes.kernels)}


def _is_made(plan: Plan) -> bool:
    """Return whether all outputs are new: what may be written in place is there before any kernel."""
    return not {tensor.buffer for tensor in plan.outputs} & {given.tensor.buffer for given in plan.given}
