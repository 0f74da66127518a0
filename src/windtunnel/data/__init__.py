"""Data: corpora, tokenizers, splits, token files and the batches made of them. Importable without torch."""

from typing import TYPE_CHECKING, Any

from .tokens import TokenFile

if TYPE_CHECKING:
    from .arithmetic import solve
    from .bpe import BPE
    from .corpus import CorpusFile, corpus_files
    from .documents import DocumentBatch
    from .loader import BatchLoader, ValidationBatches
    from .order import SequenceOrder
    from .prepared import PreparedData, open_prepared, prepare
    from .problems import Problem, held_out_problems, parse_problem
    from .sample import sample_documents
    from .tokenizer import Characters, StreamDecoder, Tokenizer, UnknownCharacter, load_tokenizer

__all__ = [
    "BPE",
    "BatchLoader",
    "Characters",
    "CorpusFile",
    "DocumentBatch",
    "PreparedData",
    "Problem",
    "SequenceOrder",
    "StreamDecoder",
    "TokenFile",
    "Tokenizer",
    "UnknownCharacter",
    "ValidationBatches",
    "corpus_files",
    "held_out_problems",
    "load_tokenizer",
    "open_prepared",
    "parse_problem",
    "prepare",
    "sample_documents",
    "solve",
]

_LAZY = {
    "BPE": "bpe",
    "BatchLoader": "loader",
    "Characters": "tokenizer",
    "CorpusFile": "corpus",
    "DocumentBatch": "documents",
    "PreparedData": "prepared",
    "Problem": "problems",
    "SequenceOrder": "order",
    "StreamDecoder": "tokenizer",
    "Tokenizer": "tokenizer",
    "UnknownCharacter": "tokenizer",
    "ValidationBatches": "loader",
    "corpus_files": "corpus",
    "held_out_problems": "problems",
    "load_tokenizer": "tokenizer",
    "open_prepared": "prepared",
    "parse_problem": "problems",
    "prepare": "prepared",
    "sample_documents": "sample",
    "solve": "arithmetic",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
