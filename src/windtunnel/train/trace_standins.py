"""Stand-ins that let the GPU's code path run on tensors without data, on a machine without a GPU.

Tensors lie on the device 'cpu' and say that they are on a GPU, so that the model takes the path it takes there:
the same tensors are made and kept, and Triton's kernels, which only fill them, are not launched. What
torch.compile would fuse is traced and partitioned by the same partitioner, and then run operation by operation.

Everything here changes global state and is meant for a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

KERNELS = (
    "windtunnel.model.triton_fp8",
    "windtunnel.model.triton_heads",
    "windtunnel.model.triton_loss",
    "windtunnel.model.triton_refine",
    "windtunnel.model.triton_relu",
    "windtunnel.model.triton_residual",
    "windtunnel.model.triton_swiglu",
    "windtunnel.model.triton_tables",
    "windtunnel.train.hf.triton_loss",
)
HOPPER = (9, 0)
# Traces and partitions as torch.compile does for a GPU, and makes no kernels of it.
BACKEND = "aot_eager_decomp_partition"


@contextmanager
def like_a_gpu() -> Iterator[None]:
    """Let fake tensors take a GPU's path meanwhile."""
    _import_kernels()
    # By name: no other room may rely on what stands inside these.
    attention, products = (importlib.import_module(f"windtunnel.model.{name}") for name in ("attention", "products"))
    patches = (
        mock.patch.object(FakeTensor, "is_cuda", True, create=True),
        # What code asks of the GPU is answered as a Hopper would, on which layouts are planned.
        mock.patch.object(torch.cuda, "get_device_capability", _hopper),
        mock.patch.object(attention, "_flash_applies", _never),
        mock.patch.object(products, "adjacent", _adjacent),
        mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", _attend),
        mock.patch.object(torch, "addmm", _addmm),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


@contextmanager
def partitioned_compile() -> Iterator[None]:
    """Let torch.compile decide what is kept for the backward pass, and compile nothing, meanwhile."""
    real = torch.compile

    def compile(function: Any = None, **options: Any) -> Any:
        return real(function, **{**options, "backend": BACKEND})

    with mock.patch.object(torch, "compile", compile):
        yield


def outside_fake(function: Any) -> Any:
    """Return the function as one that runs on real tensors also where a fake mode is on."""

    def run(*args: Any, **keywords: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **keywords)

    return run


class _Kernel:
    """What `triton.jit` makes: launched on a grid, it does nothing."""

    def __init__(self, function: Any) -> None:
        self.__doc__ = function.__doc__

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **keywords: None


class _Language(types.ModuleType):
    """triton.language: names that only kernels' bodies use."""

    def __getattr__(self, name: str) -> Any:
        return object()


def _import_kernels() -> None:
    """Import the modules with Triton kernels on a Triton that launches none; the real one stays what others import."""
    triton, language = types.ModuleType("triton"), _Language("triton.language")
    triton.__dict__.update(
        jit=lambda function=None, **_: _Kernel(function) if function else _Kernel,
        cdiv=lambda a, b: -(-a // b),
        next_power_of_2=lambda n: 2 ** math.ceil(math.log2(max(n, 1))),
        language=language,
    )
    for name in KERNELS:  # their rooms, with the Triton that there is or is not
        importlib.import_module(name.rpartition(".")[0])
    with mock.patch.dict(sys.modules):
        sys.modules.update({"triton": triton, "triton.language": language})
        loaded = {}
        for name in KERNELS:
            # Imported once already, they would keep the Triton that launches.
            sys.modules.pop(name, None)
            loaded[name] = importlib.import_module(name)
    sys.modules.update(loaded)


def _hopper(device: Any = None) -> tuple[int, int]:
    return HOPPER


def _never(query: Tensor) -> bool:
    return False


def _adjacent(tensors: Any) -> Tensor | None:
    """Do what `products.adjacent` does without addresses, which fake tensors do not have."""
    head = tensors[0]
    if any(t is None or not t.is_contiguous() for t in tensors) or head is None:
        return None
    expected = head.storage_offset()
    for t in tensors:
        if t.storage_offset() != expected or t.untyped_storage()._cdata != head.untyped_storage()._cdata:
            return None
        expected += t.numel()
    rows = sum(t.size(0) for t in tensors)
    return head.detach().as_strided((rows, head.size(1)), (head.size(1), 1))  # type: ignore[no-any-return]


_real_addmm = torch.addmm


def _addmm(total: Tensor, a: Tensor, b: Tensor, *args: Any, out_dtype: Any = None, **keywords: Any) -> Tensor:
    """Stand in for the GPU's product that adds into a wider dtype where it lies."""
    if out_dtype is not None and keywords.get("out") is total:
        return total
    return _real_addmm(total, a, b, *args, **keywords)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Stand in for fused attention: an output, and the log-sum-exp that is kept for the backward pass."""
    return torch.ops.windtunnel_trace.attention(query, key, value)[0]  # type: ignore[no-any-return]


@torch.library.custom_op("windtunnel_trace::attention", mutates_args=())
def _attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    raise AssertionError("only ever traced")


@_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    B, H, T, _ = query.shape
    # (B, T, H, D) in memory, as the fused kernels leave it.
    out = query.new_empty(B, T, H, value.size(-1)).transpose(1, 2)
    return out, query.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("windtunnel_trace::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    raise AssertionError("only ever traced")


@_attention_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (t.new_empty(t.size(0), t.size(2), t.size(1), t.size(3)).transpose(1, 2) for t in (query, key, value))
    return dq, dk, dv


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradient(ctx: Any, grad: Tensor, _: Any) -> Any:
    return torch.ops.windtunnel_trace.attention_backward(grad, *ctx.saved_tensors)


_attention.register_autograd(_gradient, setup_context=_setup)
