"""Generators: what turns a model and prompts into text, behind one Protocol. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .batched import BatchedGenerator
    from .decoder import Decoder, HubDecoder
    from .hf import HFDecoder, end_tokens, load_hf
    from .hf_recorded import RecordedDecoder, hf_decoder
    from .hf_run import HubRun
    from .protocol import Completion, GenerationFailed, GenerationJob, Generator, Notify, QueueFull, Stats, Ticket
    from .source import (
        Source,
        export_model,
        find_device,
        folder_decoder,
        gpt_generator,
        is_hf_run,
        load_run,
        load_source,
        run_decoder,
    )
    from .text import Message, NoText, OwnText, Piece, TextCodec, TextStream, TokenInfo, WholeText
    from .vllm_adapter import VLLM_VERSIONS, VLLMGenerator, import_vllm, known_vllm, open_vllm, told_version

__all__ = [
    "VLLM_VERSIONS",
    "BatchedGenerator",
    "Completion",
    "Decoder",
    "GenerationFailed",
    "GenerationJob",
    "Generator",
    "HFDecoder",
    "HubDecoder",
    "HubRun",
    "Message",
    "NoText",
    "Notify",
    "OwnText",
    "Piece",
    "QueueFull",
    "RecordedDecoder",
    "Source",
    "Stats",
    "TextCodec",
    "TextStream",
    "Ticket",
    "TokenInfo",
    "VLLMGenerator",
    "WholeText",
    "end_tokens",
    "export_model",
    "find_device",
    "folder_decoder",
    "gpt_generator",
    "hf_decoder",
    "import_vllm",
    "is_hf_run",
    "known_vllm",
    "load_hf",
    "load_run",
    "load_source",
    "open_vllm",
    "run_decoder",
    "told_version",
]

__getattr__ = lazy(__name__)
