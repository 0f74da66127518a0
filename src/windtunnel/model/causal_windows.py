"""Which positions each layer of a Hugging Face model sees, read from its config as transformers reads it; no torch."""

from __future__ import annotations

from collections.abc import Callable

from .hfconfig import Keys

Windows = tuple[int | None, ...]
WindowRule = Callable[[Keys, int], Windows]
KNOWN_TYPES = ("full_attention", "sliding_attention")


def none(keys: Keys, layers: int) -> Windows:
    """Every layer sees the whole past."""
    return (None,) * layers


def every_layer(keys: Keys, layers: int) -> Windows:
    """`sliding_window` on all layers, where it is not null."""
    return (keys.optional_size("sliding_window"),) * layers


def every_layer_if_switched(keys: Keys, layers: int) -> Windows:
    """`sliding_window` on all layers, where `use_sliding_window` says so."""
    return every_layer(keys, layers) if keys.flag("use_sliding_window") else none(keys, layers)


def last_layers(keys: Keys, layers: int) -> Windows:
    """With `use_sliding_window`: by `layer_types`, else the layers from `max_window_layers` on."""
    if not keys.flag("use_sliding_window"):
        return none(keys, layers)
    return by_type(keys, layers, lambda i: i >= keys.size("max_window_layers", least=0))


def alternate_first_layers(keys: Keys, layers: int) -> Windows:
    """With `use_sliding_window`: by `layer_types`, else every other layer before `max_window_layers`."""
    if not keys.flag("use_sliding_window"):
        return none(keys, layers)
    return by_type(keys, layers, lambda i: i % 2 == 0 and i < keys.size("max_window_layers", least=0))


def layers_without_rope(keys: Keys, layers: int) -> Windows:
    """With `use_sliding_window`: by `layer_types`, else the layers without rotary positions (SmolLM3)."""
    if not keys.flag("use_sliding_window"):
        return none(keys, layers)
    rotary = keys.listed("no_rope_layers", layers, int)
    interval = keys.size("no_rope_layer_interval")
    return by_type(keys, layers, lambda i: not rotary[i] if rotary else (i + 1) % interval == 0)


def full_every(interval: int, key: str | None = None) -> WindowRule:
    """By `layer_types`, else every `interval`-th layer sees all (the file's `key` may name another interval)."""

    def rule(keys: Keys, layers: int) -> Windows:
        step = keys.optional_size(key) or interval if key else interval
        return by_type(keys, layers, lambda i: (i + 1) % step != 0)

    return rule


def by_type(keys: Keys, layers: int, sliding: Callable[[int], bool]) -> Windows:
    """As `layer_types` lists them; `sliding` decides where the file has no list.

    Raises:
        UserError: a type that is neither full nor sliding attention.
    """
    window = keys.optional_size("sliding_window")
    types = keys.listed("layer_types", layers, str)
    if types is None:
        return tuple(window if sliding(i) else None for i in range(layers))
    unknown = next((t for t in types if t not in KNOWN_TYPES), None)
    if unknown:
        raise keys.fail("layer_types", f"has {unknown!r}, which is not supported", f"supported: {', '.join(KNOWN_TYPES)}")
    return tuple(window if t == "sliding_attention" else None for t in types)
