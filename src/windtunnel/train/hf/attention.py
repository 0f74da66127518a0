"""Causal attention of Hugging Face models, within packed documents or over whole sequences, by the fastest kernels there are.

No kernel but the last builds a table of T x T positions:

- flash4: FlashAttention-4 over sequences of any lengths, for Hopper and Blackwell (the extra `hopper`);
- varlen: the FlashAttention-2 in PyTorch over sequences of any lengths;
- flex: FlexAttention, which PyTorch compiles, with a mask of blocks of 128 x 128 positions;
- split: one document after the other, on a CPU;
- mask: a mask of all positions. Everything can do that, even dropout.

Of models whose scores are capped (Gemma 2) or compete with a learned sink (gpt-oss) only the last and FlexAttention know.

cuDNN's kernels are the fastest for whole sequences on Hopper, but they take documents only through PyTorch's nested
tensors, which prepare every call on the host.

What depends on the documents is made once for a micro-batch, in shapes that do not depend on them, and every layer
uses it: nothing is compiled again for another batch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from windtunnel.model import SMALL_LAYER
from windtunnel.recipe import UserError

from .documents import document_attention, document_kernels

Kind = Literal["flash4", "varlen", "flex", "split", "mask"]
KINDS: tuple[Kind, ...] = ("flash4", "varlen", "flex", "split", "mask")
# Of those what they are given has the same shapes for every batch, and they take documents without a token. 'split' is the CPU's.
RECORDED = ("flash4", "varlen", "split")

# cuDNN's kernels first: on Hopper they take two thirds of the time of PyTorch's own FlashAttention.
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
NAME = "windtunnel"
TILE = 128


@dataclass(frozen=True, eq=False)
class Packed:
    """The documents of a micro-batch, as its kernel takes them.

    It is of no type that FSDP2 looks into: that would move `extent` to the device.

    Attributes:
        starts: (B T + 1,) int32, see `Batch.cu_seqlens`. extent: (2,) int64 on the host, see `Batch`.
        tables: for each window of the model, 0 for none, what 'flex' and 'mask' need.
    """

    kind: Kind
    starts: Tensor | None = None
    extent: Tensor | None = None
    tables: dict[int, Any] = field(default_factory=dict)


class Attention:
    """How one model attends.

    Args:
        kind: of the kernel for documents, windows and exact repetition.
        windows: positions that a layer's tokens see, themselves included, of the layers that do not see all.
        exact: gradients must be the same bits every time, which cuDNN's are not.
        special: scores are capped or compete with sinks, which PyTorch's own attention does not know.
    """

    def __init__(self, kind: Kind, windows: frozenset[int] = frozenset(), *, exact: bool = False, special: bool = False) -> None:
        self.kind, self._windows, self._own = kind, windows, exact or special

    def of_documents(self, documents: Tensor, starts: Tensor | None, extent: Tensor | None) -> Packed:
        """Return what layers need for packed documents.

        Args:
            documents: (B, T) their numbers, growing along a row.
            starts: as `Packed`.
            extent: as `Packed`. Where either is None both are read from `documents`, for which the host waits.
        """
        if self.kind in ("flex", "mask"):
            make = _block_mask if self.kind == "flex" else _mask
            T = documents.size(1)
            return Packed(self.kind, tables={w: make(documents, w) for w in {0, *(w for w in self._windows if w < T)}})
        if starts is None or extent is None:
            # A document begins where its number is another than the one before it, and with every row.
            new = torch.ones_like(documents, dtype=torch.bool)
            new[:, 1:] = documents.diff(dim=1) != 0
            found = torch.cat([new.flatten().nonzero()[:, 0], torch.tensor([new.numel()], device=new.device)])
            starts = torch.full((new.numel() + 1,), new.numel(), dtype=torch.int32, device=new.device)
            starts[: len(found)] = found.int()
            extent = torch.tensor([len(found) - 1, int(found.diff().max())])
        return Packed(self.kind, starts, extent)

    def of_rows(self, tokens: Tensor) -> Packed | None:
        """Return the same where each row of (B, T) tokens is one document; None where PyTorch's own attention will do."""
        B, T = tokens.shape
        # Whole sequences without anything special: PyTorch's own attention is the fastest, and needs no tables.
        if not self._own and all(w >= T for w in self._windows):
            return None
        if self.kind in ("flex", "mask"):
            return self.of_documents(torch.zeros_like(tokens), None, None)
        starts = torch.arange(0, B * T * T + 1, T, device=tokens.device).clamp(max=B * T).int()
        return Packed(self.kind, starts[: B * T + 1], torch.tensor([B, T]))


def choose(
    wanted: Kind | Literal["auto"], device: torch.device, compute: torch.dtype, text: Any, special: str | None = None,
    layer: int = SMALL_LAYER, *, recorded: bool = False,
) -> Kind:  # fmt: skip
    """Return the kernel for packed documents.

    Args:
        wanted: 'auto' takes the fastest that is there.
        device: on which the model is trained.
        compute: dtype of the products.
        text: the model's config.
        special: see `special_scores`.
        layer: how many parameters a layer has.
        recorded: one whose work can be recorded.

    Raises:
        UserError: the wanted one is not to be had; says what is missing.
    """
    if wanted == "auto":
        there = [kind for kind in KINDS if missing(kind, device, compute, text, special) is None]
        if recorded:  # the host's part in a call is of no account
            return next((kind for kind in RECORDED if kind in there), there[0])
        # FlashAttention-4 takes the host longer: launched steps of SmolLM2-135M on an H200 take a fifth less with varlen.
        return "varlen" if layer < SMALL_LAYER and "varlen" in there else there[0]
    why = missing(wanted, device, compute, text, special)
    if why is not None:
        others = [kind for kind in KINDS if missing(kind, device, compute, text, special) is None]
        raise UserError(
            f"stages.sft.attention: {wanted} {why}", f"--set stages.sft.attention=auto (here it can be {' or '.join(others)})"
        )
    return wanted


def special_scores(model: nn.Module) -> str | None:
    """Return what a transformers model does to attention's scores beside scaling and masking them, or None."""
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):  # type: ignore[union-attr,operator]
        return "capped scores"
    return "attention sinks" if any(name.endswith("sinks") for name, _ in model.named_parameters()) else None


def missing(kind: Kind, device: torch.device, compute: torch.dtype, text: Any, special: str | None = None) -> str | None:
    """Return why a kernel cannot be had here for a model, or None."""
    gpu, (keys, values) = device.type == "cuda", _head_widths(text)
    major = torch.cuda.get_device_capability(device)[0] if gpu else 0
    dropout, half = getattr(text, "attention_dropout", 0.0) or 0.0, compute in (torch.bfloat16, torch.float16)
    widths = f"has no heads of {keys} and {values} channels"
    needs: dict[Kind, list[tuple[bool, str]]] = {
        "flash4": [
            (major in (9, 10), "needs a Hopper or Blackwell GPU (compute capability 9.0 or 10.0)"),
            (half, "computes in bf16 only"),
            (keys % 8 == values % 8 == 0 and max(keys, values) <= 128, widths),
            (document_kernels() is not None, "is not installed: pip install 'windtunnel[hopper]'"),
        ],
        "varlen": [
            (major >= 8, "needs a GPU of compute capability 8.0 or more"),
            (half, "computes in bf16 only"),
            (keys == values and keys % 8 == 0 and keys <= 256, widths),
        ],
        "flex": [(gpu, "needs a GPU: on a CPU it has no backward pass")],
        "split": [(not gpu, "is for CPUs"), (keys == values, widths)],
        "mask": [],
    }
    if kind not in ("flex", "mask"):
        needs[kind].append((special is None, f"has no {special}, which this model needs"))
    if kind != "mask":
        needs[kind].append((dropout == 0, "has no dropout, which this model's config asks for (attention_dropout)"))
    return next((why for met, why in needs[kind] if not met), None)


def _head_widths(text: Any) -> tuple[int, int]:
    """Return the channels of a head's keys, and of its values."""
    if getattr(text, "v_head_dim", None) and getattr(text, "qk_nope_head_dim", None):
        return text.qk_nope_head_dim + text.qk_rope_head_dim, text.v_head_dim
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return width, width


# What transformers calls


def register() -> str:
    """Make `attend` known to transformers; return the name for `attn_implementation`.

    transformers builds no mask for an implementation whose masks it does not know, so that none is ever held.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    return NAME


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: Packed | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend causally over whole sequences, or within their documents.

    Args:
        module: transformers' attention layer, whose class is told where it cannot be trained.
        query: (B, H, T, D).
        key: (B, KV, T, D); H is a multiple of KV.
        value: (B, KV, T, E).
        attention_mask: None; anything else is refused.
        dropout: of the weights, 0 to 1; only 'mask' and whole sequences have it.
        scaling: of the scores; None: D ** -0.5.
        sliding_window: positions that one sees, itself included.
        packed: the documents; None: each sequence is one, and no window is shorter.
        others: 'softcap', a number: scores become softcap x tanh(scores / softcap); 's_aux', (H,), the sinks: each takes part
            in the softmax as one position more, whose value is 0.

    Returns:
        (B, T, H, E), and None where others return weights.

    Raises:
        UserError: the model asks for a mask or for biases.
    """
    if attention_mask is not None or others.get("position_bias") is not None:
        raise UserError(
            f"model: {type(module).__name__} needs attention masks or biases, which this trainer does not have",
            "choose a model without them, such as Llama, Qwen, OLMo or Mistral",
        )
    softcap, sinks = others.get("softcap"), others.get("s_aux")
    B, _, T, D = query.shape
    window = 0 if sliding_window is None or sliding_window >= T else sliding_window
    assert packed is not None or not window
    grouped = query.size(1) != key.size(1)
    if packed is not None and packed.kind == "flex":
        out = _flex_attention(query, key, value, packed.tables[window], scaling, softcap, sinks)
    elif softcap is not None or sinks is not None:
        assert packed is not None
        assert packed.kind == "mask"
        scale = D**-0.5 if scaling is None else scaling
        out = _weigh_all(query, key, value, packed.tables[window], scale, softcap, sinks, dropout)
    elif packed is not None and packed.kind != "mask":
        # Kernels for documents take all tokens as one row: a batch's rows are documents' borders like any other.
        q, k, v = (t.transpose(1, 2).reshape(B * T, t.size(1), t.size(3)) for t in (query, key, value))
        scale = D**-0.5 if scaling is None else scaling
        flat = document_attention(q, k, v, packed.starts, packed.extent, scale, window, packed.kind)[0]
        return flat.view(B, T, *flat.shape[1:]), None
    else:
        mask = None if packed is None else packed.tables[window]
        with sdpa_kernel(BACKENDS, set_priority=True):
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling, enable_gqa=grouped
            )
    return out.transpose(1, 2).contiguous(), None


# Tables of what sees what


def _mask(documents: Tensor, window: int) -> Tensor:
    """Return (B, 1, T, T) bool, whether a position sees another."""
    at = torch.arange(documents.size(1), device=documents.device)
    distance = at[:, None] - at[None, :]
    near = (distance >= 0) & (distance < window) if window else distance >= 0
    return near & (documents[:, None, :, None] == documents[:, None, None, :])


def _block_mask(documents: Tensor, window: int) -> Any:
    """Return the same as FlexAttention takes it, found from the first and the last document of each block alone."""
    from torch.nn.attention.flex_attention import BlockMask

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = (query >= key) & (documents[batch, query] == documents[batch, key])
        return near & (query - key < window) if window else near

    T = documents.size(1)
    blocks = -(-T // TILE)
    at = torch.arange(blocks, device=documents.device)
    first = documents[:, ::TILE]
    last = documents[:, ((at + 1) * TILE).clamp(max=T) - 1]
    apart = at[:, None] - at[None, :]
    # Numbers grow along a row, so that two blocks share a document where the later one's first is no later than the earlier
    # one's last, and a whole block sees another where the first of that one is the last of this one. A table of all T x T
    # positions is never made.
    some = (apart >= 0) & (last[:, None, :] >= first[:, :, None])
    whole = (apart > 0) & (first[:, None, :] == last[:, :, None])
    if window:
        some &= apart * TILE - TILE + 1 < window
        whole &= apart * TILE + TILE - 1 < window
    cut, full = _listed((some & ~whole)[:, None]), _listed(whole[:, None])
    return BlockMask.from_kv_blocks(*cut, *full, BLOCK_SIZE=TILE, mask_mod=visible, seq_lengths=(T, T))


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of a row's blocks are chosen, and all of a row, those first."""
    order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.int()


# Kernels that know caps and sinks


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, blocks: Any, scale: float | None, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Return (B, H, T, D); see `attend`."""
    plain: dict[str, Any] = {"block_mask": blocks, "scale": scale, "enable_gqa": query.size(1) != key.size(1)}
    if softcap is not None:
        plain["score_mod"] = lambda score, batch, head, q, k: softcap * torch.tanh(score / softcap)
    if sinks is None:
        out: Tensor = _flex(query.is_cuda)(query, key, value, **plain)
        return out
    out, aside = _flex(query.is_cuda)(query, key, value, return_aux=_with_sums(), **plain)
    # One position more in the softmax whose value is 0: the others' weights shrink by e^lse / (e^lse + e^sink).
    return out * torch.sigmoid(aside.lse - sinks.float()[:, None])[..., None].to(out.dtype)


def _weigh_all(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None, sinks: Tensor | None,
    dropout: float,
) -> Tensor:  # fmt: skip
    """Return (B, H, T, D) by way of all T x T scores; see `attend`."""
    each = query.size(1) // key.size(1)
    key, value = (t.repeat_interleave(each, dim=1) if each > 1 else t for t in (key, value))
    scores = (query @ key.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        # A sink is one column more, which takes its share of the softmax and is then dropped.
        beside = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, beside], dim=-1)
    weights = scores.softmax(-1)[..., : key.size(2)].to(query.dtype)
    return F.dropout(weights, dropout) @ value


def _with_sums() -> Any:
    from torch.nn.attention.flex_attention import AuxRequest

    return AuxRequest(lse=True)


@functools.cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
