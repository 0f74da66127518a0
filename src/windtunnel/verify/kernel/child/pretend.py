"""Lets host code believe that its tensors lie on a GPU, where there is none and where they have no data. Imports torch.

Tensors "on the GPU" are PyTorch's meta tensors, which have shapes, strides and storages but no elements; asked for their device
they say cuda. What a module makes "on the GPU" while it is imported or constructed is made on the CPU, since its values count,
and remembered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
TARGET = ("cuda", 90, 32)
# Of an H100.
PROPERTIES = SimpleNamespace(
    multi_processor_count=132, warp_size=32, major=9, minor=0, name="NVIDIA H100 80GB HBM3", total_memory=85_045_870_592,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536, L2_cache_size=52428800,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    gcnArchName="", uuid="", is_integrated=0, is_multi_gpu_board=0, pci_bus_id=0,
)  # fmt: skip
DRIVER_PROPERTIES = {
    "max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32, "sm_clock_rate": 1980000,
    "mem_clock_rate": 2619000, "mem_bus_width": 5120,
}  # fmt: skip
PAGE = 1 << 40  # between the addresses that storages claim
LARGE = 1 << 16
FRESH_BYTES = (
    64 << 20
)  # for so many malloc always asks the kernel, whose pages hold zeros and cost nothing until they are written
RANDOM = ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_")
READS = ("cpu", "numpy", "tolist", "item", "__array__", "__bool__", "__int__", "__float__", "__index__")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
UNSET = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class ReadsValues(Exception):
    """Host code asks for what lies in a tensor, which a recording does not know."""

    def __init__(self, what: str) -> None:
        super().__init__(f"host code reads a tensor's value ({what}); a launch plan is made of shapes alone")


class Tensors:
    """Which tensors count as the GPU's. Storages are kept alive, so that none takes another's number."""

    def __init__(self) -> None:
        self.real: dict[int, torch.Tensor] = {}  # made on the CPU for the GPU
        self.meta: dict[int, int] = {}  # the number of its buffer
        self.sizes: list[int] = []  # bytes of each buffer
        self.held: list[torch.Tensor] = []

    def begin(self) -> None:
        """Begin a new plan."""
        self.meta, self.sizes, self.held = {}, [], []

    def on_gpu(self, tensor: torch.Tensor) -> bool:
        """Return whether host code has to take a tensor for one on the GPU."""
        return tensor.is_meta or storage_of(tensor) in self.real

    def mark(self, tensor: torch.Tensor) -> None:
        """Take a tensor with data for one on the GPU."""
        if not tensor.is_meta:
            self.real[storage_of(tensor)] = tensor

    def buffer(self, tensor: torch.Tensor) -> int:
        """Return the number of a meta tensor's buffer, a new one where it has none."""
        key = storage_of(tensor)
        if key not in self.meta:
            self.meta[key] = len(self.meta)
            self.held.append(tensor)
            with torch._C.DisableTorchFunction():
                self.sizes.append(tensor.untyped_storage().nbytes())
        return self.meta[key]


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage, by which views of one are told."""
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()._cdata


class OnGpu(TorchFunctionMode):
    """Answers questions about devices, and makes tensors where they belong. recording: forward runs; before, modules are made."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self.tensors, self.recording = tensors, False
        self.read: list[str] = []  # what host code wanted to know of values
        self.adopt: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
        self.known: Callable[[torch.Tensor], torch.Tensor | None] = lambda tensor: None
        self.recurrent: Callable[[str, Any], Any] = lambda name, args: None

    def reads(self, what: str) -> ReadsValues:
        """Note that a value was asked for that only a GPU could tell; returns the error to raise."""
        self.read.append(what)
        return ReadsValues(what)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._property(func, args)
        if isinstance(drawn := kwargs.get("tensor"), torch.Tensor) and self._is_given(name, drawn):
            return drawn  # torch.nn.init's own functions hand all over by name
        if self.recording and name in RECURRENT and len(args) == 9 and isinstance(args[3], bool):  # else of packed sequences
            return self.recurrent(name, args)
        if args and isinstance(args[0], torch.Tensor):
            answered, value = self._method(name, args, kwargs)
            if answered:
                return value
        wanted = self._wanted(name, args, kwargs)
        if wanted is not None:
            where = "meta" if self.recording else "cpu"
            args = tuple(where if _is_cuda(value) else value for value in args)
            kwargs = {key: where if key == "device" else value for key, value in kwargs.items()}
        if self.recording and name in ("tensor", "as_tensor", "from_numpy") and wanted is not None:
            kwargs["device"] = "cpu"  # its values are known: a constant
            return self.adopt(func(*args, **kwargs))
        result = func(*args, **kwargs)
        if not self.recording:
            if name in UNSET and isinstance(result, torch.Tensor) and result.nbytes < FRESH_BYTES:
                result.zero_()
            if wanted is not None or any(
                isinstance(a, torch.Tensor) and self.tensors.on_gpu(a) for a in (*args, *kwargs.values())
            ):
                for tensor in result if isinstance(result, tuple | list) else [result]:
                    if isinstance(tensor, torch.Tensor):
                        self.tensors.mark(tensor)
        return result

    def _wanted(self, name: str, args: Any, kwargs: Any) -> torch.device | None:
        """Return the GPU, where a call names it."""
        if _is_cuda(kwargs.get("device")) or (name == "to" and any(_is_cuda(value) for value in args[1:])):
            return CUDA
        return None

    def _property(self, func: Any, args: Any) -> Any:
        tensor, name = args[0], getattr(getattr(func, "__self__", None), "__name__", "")
        if name in ("device", "is_cuda", "is_meta", "is_cpu"):
            gpu = self.tensors.on_gpu(tensor)
            return {"device": CUDA if gpu else CPU, "is_cuda": gpu, "is_meta": False, "is_cpu": not gpu}[name]
        return func(*args)

    def _method(self, name: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Return whether this is what answers a method of a tensor, and the answer."""
        tensor = args[0]
        gpu = self.tensors.on_gpu(tensor)
        if name == "data_ptr" and tensor.is_meta:
            return True, (self.tensors.buffer(tensor) + 1) * PAGE + tensor.storage_offset() * tensor.element_size()
        if name == "get_device":
            return True, 0 if gpu else -1
        if name == "type" and len(args) == 1 and not kwargs:
            return True, f"torch.cuda.{tensor.dtype}" if gpu else f"torch.{tensor.dtype}"
        if name in ("__repr__", "__str__", "__format__"):
            return True, f"tensor(..., device='{CUDA if gpu else CPU}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"
        if name in ("pin_memory", "record_stream"):
            return True, tensor
        if self.recording and tensor.is_meta and name in READS:
            real = self.known(tensor)
            if real is None:
                raise self.reads(f".{name}()")
            return True, getattr(real, name)(*args[1:], **kwargs)
        if name == "cuda" or (name == "to" and self._wanted(name, args, kwargs)):
            return True, self._moved(name, args, kwargs)
        if name == "to" and self.recording and tensor.is_meta and any(_names_cpu(v) for v in (*args[1:], kwargs.get("device"))):
            raise self.reads('.to("cpu")')
        if self._is_given(name, tensor):
            return True, tensor
        return False, None

    def _is_given(self, name: str, tensor: torch.Tensor) -> bool:
        """Return whether random numbers need not be drawn: parameters get their values from the judge."""
        return name in RANDOM and not self.recording and tensor.numel() > LARGE

    def _moved(self, name: str, args: Any, kwargs: Any) -> torch.Tensor:
        """Return a tensor on the GPU, of another dtype where one is asked for."""
        tensor = args[0]
        if not tensor.is_meta:
            if self.recording:
                tensor = self.adopt(tensor)
            else:
                self.tensors.mark(tensor)
        rest = tuple(value for value in args[1:] if not _is_cuda(value)) if name == "to" else ()
        more = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "async")}
        rest = tuple(value for value in rest if not isinstance(value, bool | int))
        return tensor.to(*rest, **more) if rest or more.get("dtype") is not None else tensor


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.partition(":")[0] == "cuda"


def _names_cpu(value: Any) -> bool:
    return value == "cpu" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cpu"


class _Nothing:
    """A device, stream or event that host code selects or waits for: everything is recorded in the order of its calls."""

    cuda_stream = idx = index = 0
    device = CUDA

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def elapsed_time(self, other: Any) -> float:
        """Answer as if all took alike: host code that times its own configurations takes the first."""
        return 1.0

    def query(self) -> bool:
        """Answer that everything has ended."""
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: None


def pretend_cuda() -> None:
    """Have torch.cuda answer as on a machine with one H100. Before the candidate is imported."""

    def none(*given: Any, **named: Any) -> None:
        return None

    def no_graphs(*given: Any, **named: Any) -> None:
        raise RuntimeError("CUDA graphs are not recorded: launch the kernels")

    answers: dict[str, Any] = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0, "is_initialized": lambda: True,
        "get_device_properties": lambda device=None: PROPERTIES, "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: PROPERTIES.name, "synchronize": none, "set_device": none, "init": none,
        "_lazy_init": none, "empty_cache": none, "device": _Nothing, "device_of": _Nothing, "Stream": _Nothing, "Event": _Nothing,
        "stream": _Nothing, "current_stream": lambda device=None: _Nothing(), "default_stream": lambda device=None: _Nothing(),
        "set_stream": none, "is_current_stream_capturing": lambda: False, "CUDAGraph": no_graphs, "graph": no_graphs,
        "is_bf16_supported": lambda *given: True, "manual_seed": none, "manual_seed_all": none,
        "mem_get_info": lambda *device: (80 << 30, 80 << 30),
    }  # fmt: skip
    for name, value in answers.items():
        # Each its own: PyTorch's compiler wants no function under two names.
        setattr(torch.cuda, name, (lambda *given, **named: None) if value is none else value)
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = none
    vars(torch._C)["_cuda_getCurrentRawStream"] = lambda device=None: 0
    torch.backends.cudnn.is_acceptable = lambda tensor: False  # else nn.LSTM has cuDNN lay out weights that are not there
    torch.version.cuda = "12.8"
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch.compile = _uncompiled


def _uncompiled(model: Any = None, **options: Any) -> Any:
    """Stand in for torch.compile: what would be compiled is recorded as it is written."""
    return model if model is not None else lambda inner: inner


def pretend_driver() -> None:
    """Have Triton's driver answer as an H100's would."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Driver:
        utils = SimpleNamespace(get_device_properties=lambda device: dict(DRIVER_PROPERTIES))

        def __getattr__(self, name: str) -> Any:
            answers = {
                "get_current_target": lambda: GPUTarget(*TARGET),
                "get_current_device": lambda: 0,
                "get_current_stream": lambda device=None: 0,
                "get_active_torch_device": lambda: CUDA,
                "get_device_interface": lambda: torch.cuda,
                "is_active": lambda: True,
                "get_empty_cache_for_benchmark": lambda: torch.empty(1),
                "clear_cache": lambda cache: None,
            }
            if name not in answers:
                raise AttributeError(name)
            return answers[name]

    driver.set_active(Driver())
