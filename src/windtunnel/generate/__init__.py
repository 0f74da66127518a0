"""Generators: what turns a model and prompts into text, behind one Protocol. torch is imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Decoder, Engine
    from .gpt import GPTDecoder
    from .protocol import Completion, GenerationFailed, Generator, Job, QueueFull, Stats, Ticket
    from .source import LoadedRun, Source, gpt_generator, load_run, load_source
    from .text import Message, OwnText, Piece, TextCodec, TextStream, TokenInfo

_LAZY = {
    "Completion": "protocol",
    "Decoder": "engine",
    "Engine": "engine",
    "GPTDecoder": "gpt",
    "GenerationFailed": "protocol",
    "Generator": "protocol",
    "Job": "protocol",
    "LoadedRun": "source",
    "Message": "text",
    "OwnText": "text",
    "Piece": "text",
    "QueueFull": "protocol",
    "Source": "source",
    "Stats": "protocol",
    "TextCodec": "text",
    "TextStream": "text",
    "Ticket": "protocol",
    "TokenInfo": "text",
    "gpt_generator": "source",
    "load_run": "source",
    "load_source": "source",
}

__all__ = [
    "Completion",
    "Decoder",
    "Engine",
    "GPTDecoder",
    "GenerationFailed",
    "Generator",
    "Job",
    "LoadedRun",
    "Message",
    "OwnText",
    "Piece",
    "QueueFull",
    "Source",
    "Stats",
    "TextCodec",
    "TextStream",
    "Ticket",
    "TokenInfo",
    "gpt_generator",
    "load_run",
    "load_source",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
