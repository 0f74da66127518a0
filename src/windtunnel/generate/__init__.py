"""Generators: what turns a model and prompts into text, behind one Protocol. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .engine import Decoder, Engine
    from .gpt import GPTDecoder
    from .protocol import Completion, GenerationFailed, Generator, Job, QueueFull, Stats, Ticket
    from .source import LoadedRun, Source, gpt_generator, load_run, load_source
    from .text import Message, OwnText, Piece, TextCodec, TextStream, TokenInfo

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

__getattr__ = lazy(__name__)
