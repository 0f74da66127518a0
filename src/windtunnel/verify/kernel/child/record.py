"""Run a candidate's host code once for each form and record what it launches, allocates and computes. Imports torch and triton.

In a sandboxed child without a GPU: there is no data, so nothing of what is written down depends on values. All that host code can
do is to write a plan; the judge reads that as anybody's.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Sequence
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from windtunnel.verify.kernel.arrays import Buffer, row_major, unplain
from windtunnel.verify.kernel.child.capture import Kernels, NotRecorded
from windtunnel.verify.kernel.child.load import Wrong, laid_to_candidate, load_candidate, said, state_values
from windtunnel.verify.kernel.child.pretend import OnGpu, Tensors, pretend_cuda, pretend_driver, storage_of
from windtunnel.verify.kernel.child.recorder import CompiledStandIn, Recorder
from windtunnel.verify.sandbox.channel import note

# PyTorch's words for what a tensor without elements cannot tell.
NO_DATA = ("no data", "data-independent", "on meta", "meta tensor")


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Record a candidate in every form.

    message: source, forms (each: form, init, inputs with dtype and shape, arguments, names, parameters with dtype and shape).

    Returns:
        'plans', one text for each form in order, as far as they could be recorded, and 'wrong' where one could not.
    """
    torch.set_num_threads(1)
    gc.enable()
    gc.freeze()
    os.environ["TRITON_INTERPRET"] = "0"  # kernels are taken as they are, also by a worker that interprets others
    plans: list[str] = []
    source, forms = message["source"], message["forms"]
    pretend_cuda()
    pretend_driver()
    session = _Session()
    note("record")  # only now: who is killed before has run nothing of the candidate
    try:
        for form in forms:  # each with a module of its own: what one keeps is not there for the next
            plans.append(json.dumps(session.plan(session.module(source), form)))
    except Wrong as wrong:
        return {"plans": plans, "wrong": {"reason": wrong.reason, "message": wrong.message}}, []
    except BaseException as error:  # host code raises what it likes, SystemExit too; so it is below
        return {"plans": plans, "wrong": {"reason": "raised", "message": f"the candidate raised {said(error)}."}}, []
    return {"plans": plans}, []


class _Session:
    """Holds what one candidate's recordings share."""

    def __init__(self) -> None:
        self.tensors = Tensors()
        self.mode = OnGpu(self.tensors)
        self.recorder: Recorder | None = None
        session = self

        def run(function: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
            if warmup or session.recorder is None:
                return CompiledStandIn()
            for hook in function.pre_run_hooks:
                hook(*args, **kwargs)
            session.recorder.launched(function, grid, args, kwargs)
            return CompiledStandIn()

        def tune(tuner: Autotuner, *args: Any, **kwargs: Any) -> Any:
            return CompiledStandIn() if session.recorder is None else session.recorder.chosen(tuner, args, kwargs)

        def best(tuner: Autotuner) -> Any:
            if "best_config" not in tuner.__dict__:
                raise AttributeError(f"{type(tuner).__name__!r} object has no attribute 'best_config'")  # not launched yet
            if session.recorder is not None:
                session.recorder.settle(tuner)
            return tuner.__dict__["best_config"]

        JITFunction.run, Autotuner.run = run, tune
        Autotuner.best_config = property(best, lambda tuner, config: tuner.__dict__.update(best_config=config))

    def module(self, source: str) -> Any:
        with self.mode:
            return load_candidate(source)

    def plan(self, module: Any, form: dict[str, Any]) -> dict[str, Any]:
        """Return the plan of one form. Raises Wrong where there is none."""
        label, dtype = form["label"], getattr(torch, form["dtype"])
        model = self._model(module, form, dtype)
        self.tensors.begin()
        recorder = self.recorder = Recorder(self.tensors, Kernels())
        recorder.mode = self.mode
        self.mode.adopt, self.mode.known, self.mode.read = recorder.adopt, recorder.known, []
        self.mode.recurrent = recorder.recurrent
        self._parameters(model, form, recorder)
        arguments = []
        for position, entry in enumerate(form["arguments"]):
            if entry is None:
                head = form["inputs"][position]
                like = torch.empty_strided(head["shape"], head["stride"], dtype=getattr(torch, head["dtype"]), device="meta")
                arguments.append(recorder.give(like, input=position))
            else:
                arguments.append(unplain(entry["value"]))
        try:
            self.mode.recording = True
            with torch.set_grad_enabled(form["training"]), self.mode, recorder:
                outputs = model(*arguments)
            return recorder.plan(outputs)
        except Wrong:
            raise
        except BaseException as error:
            raise self._blamed(error, label) from None
        finally:
            self.mode.recording, self.recorder = False, None

    def _blamed(self, error: BaseException, label: str) -> Wrong:
        if not self.mode.read and any(words in str(error) for words in NO_DATA):
            self.mode.read.append(said(error))
        if self.mode.read:
            return Wrong(
                "reads-values",
                f"host code reads a tensor's value ({self.mode.read[0]}): such code has no launch plan, which is "
                f"made of shapes alone. Decide in the kernel, or by shapes ({label}).",
            )
        inner: BaseException | None = error
        while inner is not None and not isinstance(inner, NotRecorded):
            inner = inner.__cause__ or inner.__context__
        if inner is not None:
            return Wrong(inner.reason, f"{inner} ({label}).")
        return Wrong("raised", f"forward raised {said(error)} ({label}).")

    def _model(self, module: Any, form: dict[str, Any], dtype: torch.dtype) -> torch.nn.Module:
        made = getattr(module, "ModelNew", None)
        if made is None:
            raise Wrong("no-model", "the candidate defines no class ModelNew(torch.nn.Module) with a forward method.")
        with self.mode:
            try:
                model = made(*[unplain(value) for value in form["init"]])
            except BaseException as error:
                raise Wrong("construction-failed", f"ModelNew(*init) raised {said(error)}.") from None
        if not isinstance(model, torch.nn.Module):
            raise Wrong("construction-failed", "ModelNew(*init) is no torch.nn.Module.")
        with laid_to_candidate("construction-failed", "the model cannot be set to its mode"):
            model.train(form["training"])
        return model

    def _parameters(self, model: torch.nn.Module, form: dict[str, Any], recorder: Recorder) -> None:
        """Put tensors without data in the place of all parameters and buffers; those of the state dict are the judge's."""
        dtype = getattr(torch, form["dtype"])
        with laid_to_candidate("parameters-differ", "ModelNew's state dict cannot be read"):
            state = model.state_dict(keep_vars=True)
        wanted = {
            name: torch.empty(shape, dtype=getattr(torch, kind), device="meta")
            for name, (kind, shape) in zip(form["names"], form["parameters"], strict=True)
        }
        names = _matched(state, wanted)
        # With a storage shared by several, as tied weights, the last name counts, as where they are loaded in order.
        of_storage = {storage_of(state[own]): (own, theirs) for own, theirs in names.items()}
        stand_ins: dict[int, torch.Tensor] = {}

        def of(tensor: torch.Tensor) -> torch.Tensor:
            key = storage_of(tensor)
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            if key not in stand_ins:
                if key in of_storage:
                    own, theirs = of_storage[key]
                    whole = state[own].detach()
                    if whole.storage_offset() or whole.untyped_storage().nbytes() != whole.numel() * whole.element_size():
                        raise Wrong("parameters-differ", f"parameter {own} is part of a larger tensor. Make it one of its own.")
                    like = torch.empty_strided(whole.shape, whole.stride(), dtype=kind, device="meta")
                    stand_ins[key] = recorder.give(like, parameter=theirs)
                    if (shape := tuple(wanted[theirs].shape)) != tuple(like.shape):
                        recorder.given[-1]["tensor"] |= {"shape": list(shape), "stride": list(row_major(shape))}
                else:
                    real = tensor.detach().to(kind)
                    self.tensors.mark(real)
                    recorder.held.append(real)
                    return recorder.adopt(real)
            base = stand_ins[key]
            return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        for inner in model.modules():
            for held in (inner._parameters, inner._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        made = of(tensor)
                        if isinstance(tensor, torch.nn.Parameter):
                            made = torch.nn.Parameter(made, tensor.requires_grad)
                        held[name] = made  # type: ignore[assignment]  # parameters into parameters, buffers into buffers
            _replaced(inner.__dict__, of, of_storage, set())


def _matched(state: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the reference's name for each name of ModelNew's state dict.

    It is the same name; or one that sounds like it, or the next one, that has as many elements. Buffers of ModelNew's own may be
    left over. Who is given other values than it asked for computes something wrong.

    Raises:
        Wrong: a parameter of ModelNew is like none of the reference's.
    """
    try:
        return state_values(state, wanted)
    except Wrong as wrong:
        refusal = wrong
    found = {name: name for name in state if name in wanted and state[name].shape == wanted[name].shape}
    sounds = (lambda name: name.replace(".", "").replace("_", ""), lambda name: name.replace("_", ".").rpartition(".")[2], len)
    for sound in sounds:
        for own, tensor in state.items():
            left = [name for name in wanted if name not in found.values() and wanted[name].numel() == tensor.numel()]
            alike = [name for name in left if sound is len or sound(name) == sound(own)]
            if own not in found and alike and (len(alike) == 1 or sound is len):
                found[own] = alike[0]
    held = {storage_of(state[name]) for name in found}  # a second name for one of them is no other parameter
    if any(isinstance(tensor, torch.nn.Parameter) and storage_of(tensor) not in held for tensor in state.values()):
        raise refusal
    return found


def _replaced(space: Any, of: Any, of_storage: dict[int, Any], seen: set[int]) -> None:
    """Replace views of parameters that a module holds beside them, in lists too."""
    if id(space) in seen:
        return
    seen.add(id(space))
    for key, value in list(space.items()) if isinstance(space, dict) else list(enumerate(space)):
        if isinstance(value, torch.Tensor) and not value.is_meta and storage_of(value) in of_storage:
            space[key] = of(value)
        elif isinstance(value, dict | list) and key not in ("_parameters", "_buffers", "_modules"):
            _replaced(value, of, of_storage, seen)
