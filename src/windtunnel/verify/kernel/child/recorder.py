"""Writes a launch plan down while host code runs: allocations, operations and launches, on tensors without data. Imports torch.

Views need no operation: a tensor is described by its buffer, shape, strides and offset. What depends on values cannot be written
down, and is refused in words.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from windtunnel.verify.kernel.child.capture import Kernels, NotRecorded
from windtunnel.verify.kernel.child.load import Wrong
from windtunnel.verify.kernel.child.pretend import OnGpu, ReadsValues, Tensors, storage_of
from windtunnel.verify.kernel.child.tensors import dtype_name
from windtunnel.verify.kernel.plan.language import words
from windtunnel.verify.kernel.plan.operations import ALLOCATES
from windtunnel.verify.kernel.plan.schema import BYTES, MOST_BUFFERS, MOST_CHOICES, MOST_STEPS, MOST_TURNS, TOO_LONG

READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "unique", "_unique2", "masked_select", "unique_dim", "allclose"}
RANDOM = words("rand randn rand_like randn_like randint randint_like bernoulli multinomial randperm native_dropout")
IN_PLACE_VIEWS = {"as_strided_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "detach_", "resize_as_"}
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "launch_cooperative_grid", "launch_pdl")
IGNORED = ("debug", "sanitize_overflow", "warmup", "grid")
TORCH_NAMES = {
    "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2",
}  # fmt: skip
MOST_CONSTANT = 6 << 20
LONG = 64  # steps; fewer stand in the plan as they are


class CompiledStandIn:
    """Stands for what a launch returns: asked for registers and shared memory it names plausible ones."""

    n_regs, n_spills = 64, 0

    class metadata:  # noqa: N801 (as Triton calls it)
        """What host code may ask of a compiled kernel."""

        shared, num_warps, name = 4096, 4, "kernel"

    def _init_handles(self) -> None:
        pass

    def __getitem__(self, grid: Any) -> Any:
        raise NotRecorded("a compiled kernel is launched; launch the @triton.jit function itself")


class Recorder(TorchDispatchMode):
    """Makes one plan."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler, which takes seconds."""
        return False

    def __init__(self, tensors: Tensors, kernels: Kernels) -> None:
        super().__init__()
        self.tensors, self.kernels = tensors, kernels
        self.given: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.constants: dict[int, torch.Tensor] = {}  # storage of a real tensor → the one that stands for it
        self.held: list[torch.Tensor] = []
        self.unchanged: dict[int, torch.Tensor] = {}  # storage of a constant that nothing has written to → its elements
        self.choices: list[tuple[Autotuner, dict[str, Any]]] = []
        self.settled: list[Autotuner] = []

    def give(self, like: torch.Tensor, **source: Any) -> torch.Tensor:
        """Return a tensor on the GPU of the same form, which holds what the source says before the first step."""
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        self.given.append({"tensor": self.view(made), **source})
        return made

    def adopt(self, real: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor whose values are known: a constant."""
        with torch._C.DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
            if real.is_meta:
                return real
            key = storage_of(real)
            if key not in self.constants:
                # Held, so that its storage is not freed and its address given to another tensor, which would be taken for it.
                self.held.append(real)
                self.constants[key] = self._constant(real.detach())
                self.unchanged[storage_of(self.constants[key])] = real.detach().clone()
            base = self.constants[key]
            return base.view(real.dtype).as_strided(real.shape, real.stride(), real.storage_offset())

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the elements of a constant of one element, None of anything else."""
        real = self.unchanged.get(storage_of(tensor))
        return real.reshape(tensor.shape) if real is not None and real.numel() == tensor.numel() == 1 else None

    def _constant(self, real: torch.Tensor) -> torch.Tensor:
        """Return what stands for a whole storage."""
        whole = torch.empty(0, dtype=real.dtype).set_(real.untyped_storage())
        # Zeros and ones of any size are one number in the plan.
        if whole.numel() and bool((whole == whole[0]).all()):
            return self.give(whole, fill=self.kernels.plain(whole[0].item(), "a constant"))
        data = whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""
        if len(data) > MOST_CONSTANT:
            raise NotRecorded(f"a constant of {len(data):,} bytes; {MOST_CONSTANT:,} can be recorded", "memory")
        return self.give(whole, constant=base64.b64encode(data).decode())

    def view(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Return a tensor as a plan has it."""
        with torch._C.DisableTorchFunction():
            return {
                "buffer": self.tensors.buffer(tensor), "dtype": dtype_name(tensor),
                "shape": list(tensor.shape), "stride": list(tensor.stride()), "offset": tensor.storage_offset(),
            }  # fmt: skip

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        name = func.overloadpacket.__name__
        on_gpu = any(self.tensors.on_gpu(tensor) for tensor in flat) or getattr(kwargs.get("device"), "type", "") == "meta"
        # On the host it is computed for real: what comes of it is a size, or a constant of the plan.
        if not on_gpu:
            return func(*args, **kwargs)
        # Nothing was computed, so there is no value to read: what follows would depend on one that was made up.
        if name in READS:
            self.mode.read.append(f"aten.{name}")
            raise ReadsValues(f"aten.{name}")
        if name in RANDOM:
            raise NotRecorded(f"forward draws random numbers (aten.{name})", "host-compute")
        args, kwargs = tree_map(self._adopted, (args, kwargs))
        known = {storage_of(tensor) for tensor in flat}
        result = func(*args, **kwargs)
        self._note(func, name, args, kwargs, result, known)
        return result

    mode: OnGpu

    def _adopted(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not value.is_meta and (value.dim() or self.tensors.on_gpu(value)):
            return self.adopt(value)
        return value

    def _note(self, func: Any, name: str, args: Any, kwargs: Any, result: Any, known: set[int]) -> None:
        results = [value for value in tree_flatten(result)[0] if isinstance(value, torch.Tensor)]
        if not results:
            return
        changes = func._schema.is_mutable and name not in IN_PLACE_VIEWS
        if not changes and (name in ALLOCATES or all(self._is_view(tensor) for tensor in results)):
            for tensor in results:
                self.view(tensor)
            return
        # Views may share a storage in ways that are not followed here: after any change no constant is trusted.
        if changes:
            self.unchanged.clear()
        if any(not tensor.is_meta for tensor in results):
            raise NotRecorded(f"aten.{name} of tensors on different devices", "raised")
        self.steps.append(
            {
                "operation": str(func),
                "arguments": [self.value(value, str(func)) for value in args],
                "keywords": {key: self.value(value, str(func)) for key, value in kwargs.items() if value is not None},
                "results": [self.view(value) if isinstance(value, torch.Tensor) else None for value in _listed(result)],
            }
        )

    def recurrent(self, name: str, args: Any) -> tuple[torch.Tensor, ...]:
        """Write a whole nn.LSTM, GRU or RNN down as one operation, which cuDNN carries out; taken apart it is thousands."""
        x, state, weights, *_, dropout, train, both, batch_first = args
        if dropout and train:
            raise NotRecorded(f"forward draws random numbers (dropout in aten.{name})", "host-compute")
        states = list(state) if isinstance(state, tuple | list) else [state]
        given = tree_map(self._adopted, (x, states if name == "lstm" else state, list(weights), *args[3:]))
        first, second = x.shape[:2]
        extents = (second, first) if batch_first else (first, second)
        output = torch.empty((*extents, states[0].shape[-1] * (2 if both else 1)), dtype=x.dtype, device="meta")
        results = [output.transpose(0, 1) if batch_first else output, *map(torch.empty_like, states)]
        operation = f"aten.{name}.input"
        self.steps.append(
            {
                "operation": operation,
                "arguments": [self.value(value, operation) for value in given],
                "keywords": {},
                "results": [self.view(value) for value in results],
            }
        )
        return tuple(results)

    def _is_view(self, tensor: torch.Tensor) -> bool:
        return storage_of(tensor) in self.tensors.meta

    def value(self, value: Any, what: str) -> Any:
        """Return an argument of an operation, or a plain one of a kernel, as a plan has it."""
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                if value.dim() == 0 and not self.tensors.on_gpu(value):
                    return self.kernels.plain(value.item(), what)
                value = self.adopt(value)
            return {"tensor": self.view(value)}
        if isinstance(value, torch.device):
            return {"device": "here"}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).removeprefix("torch.")}
        if isinstance(value, torch.layout):
            return None
        if isinstance(value, tuple | list) and any(isinstance(inner, torch.Tensor | tuple | list) for inner in value):
            return {"list" if isinstance(value, list) else "tuple": [self.value(inner, what) for inner in value]}
        return self.kernels.plain(value, what)

    def argument(self, value: Any, what: str) -> Any:
        """Return an argument of a kernel as a plan has it."""
        if isinstance(value, TensorDescriptor):
            extents = {name: [int(n) for n in getattr(value, name)] for name in ("shape", "strides", "block_shape")}
            return {"descriptor": {"base": self.view(self._pointed(value.base, what)), **extents, "padding": value.padding}}
        inner = getattr(value, "base", None)
        if not isinstance(value, torch.Tensor) and isinstance(inner, torch.Tensor) and hasattr(value, "dtype"):
            return {"tensor": {**self.view(self._pointed(inner, what)), "dtype": _torch_name(value.dtype)}}
        if isinstance(value, torch.Tensor):
            return {"tensor": self.view(self._pointed(value, what))}
        if isinstance(value, tuple | list):
            return {"tuple": [self.argument(inner, what) for inner in value]}
        return self.kernels.plain(value, what)

    def _pointed(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            if tensor.is_meta:
                return tensor
            if not self.tensors.on_gpu(tensor):
                raise ValueError(f"Pointer argument ({what}) cannot be accessed from Triton (cpu tensor?)")
            return self.adopt(tensor)

    def launched(self, function: JITFunction, grid: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Write a launch down."""
        # What a kernel writes is not known from outside: it may be any tensor that it is given.
        self.unchanged.clear()
        number = self.kernels.number(function)
        named = {key: value for key, value in kwargs.items() if key in function.arg_names}
        options = {key: value for key, value in kwargs.items() if key not in named and key not in IGNORED and value is not None}
        unknown = [key for key in options if key not in OPTIONS]
        if unknown:
            raise NotRecorded(f"kernel {function.__name__} is launched with {unknown[0]}=..., which is neither its own nor known")
        bound = function.signature.bind(*args, **named)
        bound.apply_defaults()
        if callable(grid):
            grid = grid(dict(bound.arguments))
        extents = tuple(int(extent) for extent in (grid if isinstance(grid, tuple | list) else (grid,)))
        what = f"argument {{}} of kernel {function.__name__}"
        self.steps.append(
            {
                "launch": number,
                "grid": [*extents, *(1,) * (3 - len(extents))],
                "arguments": {name: self.argument(value, what.format(name)) for name, value in bound.arguments.items()},
                "options": {key: int(value) if not isinstance(value, bool) else value for key, value in options.items()},
            }
        )

    def chosen(self, tuner: Autotuner, args: Any, kwargs: dict[str, Any]) -> Any:
        """Write down every configuration of a tuned kernel."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs
        if len(configs) > MOST_CHOICES:
            raise NotRecorded(
                f"{len(configs)} configurations; any may be the fastest, so give at most {MOST_CHOICES}",
                "too-many-configurations",
            )
        before, found = self.steps, list[list[dict[str, Any]]]()
        # Each from the same state: on a GPU the tuner runs one of them, and which is not known here.
        for config in configs:
            self.steps = []
            if config.pre_hook is not None:
                config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
            tuner.fn.run(*args, **{**kwargs, **config.all_kwargs()})
            found.append(self.steps)
        self.steps = before
        if len(found) == 1:
            self.steps += found[0]
        else:
            self.steps.append({"choice": found})
            self.choices.append((tuner, self.steps[-1]))
        tuner.best_config, tuner.nargs = configs[0], None
        return CompiledStandIn()

    def settle(self, tuner: Autotuner) -> None:
        """Have a tuned kernel run with its first configuration alone: host code asks which it is, and goes by that."""
        self.settled.append(tuner)

    def _settled_steps(self) -> list[dict[str, Any]]:
        settled = [id(step) for tuner, step in self.choices if any(tuner is one for one in self.settled)]
        return [inner for step in self.steps for inner in (step["choice"][0] if id(step) in settled else [step])]

    def plan(self, outputs: Any) -> dict[str, Any]:
        """Return the whole plan. Raises Wrong for what is no output."""
        kind = "tuple" if isinstance(outputs, tuple | list) else "tensor"
        values = list(outputs) if kind == "tuple" else [outputs]
        for value in values:
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise Wrong("wrong-type", f"forward returned {type(value).__name__}, expected torch.Tensor exactly.")
        shown = [self.view(value if value.is_meta else self.adopt(value)) for value in values]
        steps, order = _folded(self._settled_steps())
        for what, number, most in (
            ("steps", len(order), MOST_TURNS),
            ("steps that differ", len(steps), MOST_STEPS),
            ("tensors", len(self.tensors.sizes), MOST_BUFFERS),
        ):
            if number > most:
                raise Wrong("too-much-output", TOO_LONG.format(f"it has {number:,} {what}, at most {most:,}"))
        return {
            "kernels": self.kernels.made, "buffers": self.tensors.sizes, "given": self.given,
            "steps": steps, "outputs": shown, "kind": kind, "order": order,
        }  # fmt: skip


def _folded(steps: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Return the steps of a long plan that differ in more than where their tensors lie, and the order, as in `Plan`."""
    if len(steps) < LONG:
        return steps, []
    known: dict[str, int] = {}
    kept: list[dict[str, Any]] = []
    order: list[list[int]] = []
    for step in steps:
        places: dict[tuple[int, int], int] = {}
        number = known.setdefault(json.dumps(_anywhere(step, places)), len(kept))
        if number == len(kept):
            kept.append(step)
        order.append([number, *(part for place in places for part in place)])
    return kept, order


def _anywhere(part: Any, places: dict[tuple[int, int], int]) -> Any:
    """Return a part of a step with its tensors' places numbered. What the compiler knows of an address, its alignment, stays."""
    if isinstance(part, list):
        return [_anywhere(inner, places) for inner in part]
    if not isinstance(part, dict):
        return part
    if "buffer" not in part:
        return {key: _anywhere(inner, places) for key, inner in part.items()}
    number = places.setdefault((part["buffer"], part["offset"]), len(places))
    return number, part["dtype"], part["shape"], part["stride"], part["offset"] * BYTES[part["dtype"]] % 16


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _torch_name(dtype: Any) -> str:
    """Return PyTorch's name of one of Triton's dtypes."""
    name = str(dtype).removeprefix("torch.")
    return TORCH_NAMES.get(name, name)
