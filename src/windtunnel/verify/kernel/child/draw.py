"""A task's reference, its parameters and inputs, drawn from a seed that the parent chose. Imports torch.

Only the task's own source is executed here, never a candidate's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from windtunnel.verify.kernel.child.products import CoarseProducts
from windtunnel.verify.kernel.compare import FEW

SPREAD_OF_CONSTANTS = 0.5  # how far parameters that start constant (weights of a norm, biases) are moved
POSITIVE = ("running_var",)
SMALL_VARIANCE = 1e-3  # of one channel, so that an epsilon of 1e-5 shows; not on a GPU: it magnifies what TF32 rounds off
AT_THE_END = 8.0  # how much larger the last elements are where all have one sign: who leaves them out is seen
DROPOUT = (torch.nn.modules.dropout._DropoutNd,)  # random, and so no part of what is judged
NEARBY = 24  # other inputs
NEAR = 1e-3  # how far off these are: too little to change how well a result is determined, enough to round otherwise
SHORT = 4  # dimensions whose last element is no rare one


class Drawn:
    """The reference at one size and dtype, with parameters drawn anew. The same seed draws the same in any process."""

    def __init__(
        self, source: str, dtype: str, seed: int, fixed: list[str], device: str = "cpu", *, training: bool = False
    ) -> None:
        self.space: dict[str, Any] = {"__name__": "task"}
        exec(compile(source, "<task>", "exec"), self.space)
        self.dtype, self.fixed, self.device = getattr(torch, dtype), fixed, device
        with torch.device(device), Here(device):
            _seed(seed, device)
            # Under the seed too: some draw what they are made with.
            self.init = list(self.space["get_init_inputs"]())
            model = self.space["Model"](*self.init)
            _draw_parameters(model, fixed, small_variance=device == "cpu")
        self.model = model.to(device=device, dtype=self.dtype).train(training)
        self.recurrent = any(isinstance(part, torch.nn.RNNBase) for part in self.model.modules())
        for part in self.model.modules():
            if isinstance(part, DROPOUT):
                part.eval()

    @classmethod
    def of(cls, message: Mapping[str, Any], size: str, dtype: str) -> Drawn:
        """Draw what a message of the GPU's stages asks for: the same for those who run a plan, who judge it and who time it."""
        drawn = message["seed"], message["fixed"], message["device"]
        return cls(message["sources"][size], dtype, *drawn, training=message["training"])

    def inputs(self, case: dict[str, Any], seed: int) -> list[Any]:
        """Return the case's arguments for forward, on the device."""
        with torch.device(self.device), Here(self.device):
            _seed(seed, self.device)
            drawn = self.space["get_inputs"]()
        moved = [at for at, value in enumerate(drawn) if _floating(value) and str(at) not in self.fixed]
        return [self._input(value, case, moved.index(at) if at in moved else None) for at, value in enumerate(drawn)]

    @torch.no_grad()
    def answers(self, inputs: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor], str]:
        """Return the reference's outputs in the case's dtype and in float64, and 'tensor' or 'tuple'."""
        own, kind = self.own(inputs)
        return own, self.exact(inputs), kind

    @torch.no_grad()
    def exact(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Return the reference's outputs in float64."""
        # A copy: a reference that keeps statistics would change them.
        model = copy.deepcopy(self.model).double()
        return self._called(model, [_double(value) for value in inputs])[0]

    @torch.no_grad()
    def coarse(self, inputs: list[Any], *, double: bool = True) -> list[torch.Tensor]:
        """Return the reference's outputs with the factors of its products cut to TF32, in float64 or else in float32."""
        model = copy.deepcopy(self.model).to(torch.float64 if double else torch.float32)
        with CoarseProducts():
            return self._called(model, [_double(value) if double else _copied(value, torch.float32) for value in inputs])[0]

    @torch.no_grad()
    def rounded_again(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Return the reference's outputs in float64 with every input off by up to what one more rounding to its dtype makes."""
        model, half = copy.deepcopy(self.model).double(), torch.finfo(self.dtype).eps / 2
        return self._called(model, [_off(value, half) for value in inputs])[0]

    @torch.no_grad()
    def own(self, inputs: list[Any]) -> tuple[list[torch.Tensor], str]:
        """Return the reference's outputs in the case's dtype, and their kind.

        In float32 and rounded where PyTorch lacks an operation in it.
        """
        try:
            return self._called(self.model, _clones(inputs))
        except (NotImplementedError, RuntimeError):
            if self.dtype == torch.float32:
                raise
        wide = copy.deepcopy(self.model).float()
        outputs, kind = self._called(wide, [_copied(value, torch.float32) for value in inputs])
        return [output.to(self.dtype) if output.is_floating_point() else output for output in outputs], kind

    @torch.no_grad()
    def errors(self, inputs: list[Any], own: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[float]:
        """Return of each output the reference's worst error in its dtype beside these inputs, 0 where it has many elements."""
        few = [mine.is_floating_point() and 0 < mine.numel() <= FEW for mine in own]
        worst = [0.0] * len(few)
        for _ in range(NEARBY if any(few) else 0):
            near = [self._near(value) for value in inputs]
            for at, (mine, right) in enumerate(zip(self.own(near)[0], self.exact(near), strict=True)):
                if few[at] and mine.shape == own[at].shape:
                    worst[at] = max(worst[at], float((mine.double() - right).abs().nan_to_num(0.0, 0.0, 0.0).max()))
        return worst

    def _near(self, value: Any) -> Any:
        if not _floating(value):
            return value
        off = max(NEAR, 4 * torch.finfo(self.dtype).eps)
        return value * (1 + off * (2 * torch.rand_like(value) - 1))

    def _called(self, model: torch.nn.Module, inputs: list[Any]) -> tuple[list[torch.Tensor], str]:
        """Return what a model gives. cuDNN's recurrent layers are one operation, in which products are neither seen nor cut."""
        if not self.recurrent:
            return _outputs(model(*inputs))
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
            return _outputs(model(*inputs))

    def _input(self, value: Any, case: dict[str, Any], moved: int | None) -> Any:
        """Return an input as the case has it: on the device, floating ones changed and in its dtype.

        moved: which one it is of those that the case changes, None for the others.
        """
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return value.to(self.device).contiguous()
        if moved is not None:
            second = moved % 2 == 1 and case["second_factor"] is not None
            value = _signed(value, case["sign"]) * case["second_factor" if second else "factor"] + case["offset"]
        return value.to(device=self.device, dtype=self.dtype).contiguous()


def _seed(seed: int, device: str) -> None:
    """Seed the devices that are there, without what PyTorch's own function keeps.

    That also keeps the call, with the stack of its caller, for each kind of device that is not there.
    """
    torch.default_generator.manual_seed(seed % (1 << 63))
    if device == "cuda":
        torch.cuda.manual_seed_all(seed % (1 << 63))


@torch.no_grad()
def _draw_parameters(model: torch.nn.Module, fixed: list[str], *, small_variance: bool) -> None:
    """Draw new random values for parameters and buffers, like the ones they have; constant ones are spread.

    A weight that is 1 and a bias that is 0 everywhere would let a candidate leave them out.
    """
    for name, tensor in model.state_dict().items():
        if name in fixed or not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        if any(word in name for word in POSITIVE):
            tensor.copy_(torch.rand_like(tensor) + SPREAD_OF_CONSTANTS)
            if small_variance:
                tensor.view(-1)[0] = SMALL_VARIANCE
            continue
        spread = float(tensor.double().std(correction=0)) if tensor.numel() > 1 else 0.0
        middle = float(tensor.double().mean())
        if not math.isfinite(spread) or not math.isfinite(middle):
            continue
        tensor.copy_(middle + torch.randn_like(tensor) * (spread if spread > 0 else SPREAD_OF_CONSTANTS))


def _signed(value: torch.Tensor, sign: float) -> torch.Tensor:
    """Return all elements with this sign, those at the end of a dimension larger; as they are for 0."""
    if not sign:
        return value
    value = value.abs() * sign
    at_the_end = torch.zeros_like(value, dtype=torch.bool)
    for dimension, extent in enumerate(value.shape):
        if extent > SHORT:
            at_the_end.select(dimension, -1).fill_(True)
    return torch.where(at_the_end, value * AT_THE_END, value)


def _outputs(value: Any) -> tuple[list[torch.Tensor], str]:
    if isinstance(value, torch.Tensor):
        return [value], "tensor"
    if isinstance(value, tuple | list) and value and all(isinstance(entry, torch.Tensor) for entry in value):
        return list(value), "tuple"
    raise TypeError(f"the reference returns {type(value).__name__}; a tensor or a tuple of tensors is understood")


def _clones(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _double(value: Any) -> Any:
    return _copied(value, torch.float64)


def _off(value: Any, most: float) -> Any:
    """Return a floating tensor in float64, each element off by up to this share of it; others as they are."""
    if not _floating(value):
        return _copied(value, torch.float64)
    wide = value.to(torch.float64)
    return wide * (1 + most * (2 * torch.rand_like(wide) - 1))


def _copied(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor of its own, which a reference may write to; of floating ones in this dtype."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class Here(TorchFunctionMode):
    """While this lasts, "cuda" means another device: some files' get_inputs() ask for a GPU by its name."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch's with the device in place of a GPU."""
        keywords = dict(keywords or {})
        if _is_gpu(keywords.get("device")):
            keywords["device"] = self.device
        if function is torch.Tensor.cuda:
            return arguments[0].to(self.device)
        if function is torch.Tensor.to:
            arguments = [self.device if _is_gpu(value) else value for value in arguments]
        return function(*arguments, **keywords)


def _is_gpu(value: object) -> bool:
    return isinstance(value, str | torch.device) and str(value).startswith("cuda")
