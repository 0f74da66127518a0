"""Data: corpora, tokenizers, splits, token files and the batches made of them. Importable without torch."""

from typing import TYPE_CHECKING, Any

from .tokens import SequenceOrder, TokenFile

if TYPE_CHECKING:
    from .arithmetic import Problem, held_out_problems, parse_problem, solve
    from .batch import Batch, Batches
    from .corpus import CorpusFile, corpus_files, read_documents
    from .documents import DocumentBatch
    from .loader import BatchLoader, ValidationBatches
    from .mixture import MixtureFile
    from .packing import ConversationFile
    from .prepared import PreparedData, open_prepared, prepare
    from .prompts import Prompt, PromptFile, PromptLoader
    from .samples import preview
    from .subwords import BPE, Folder
    from .sudoku_file import PuzzleFile, make_puzzles
    from .sudoku_make import GRADES, Puzzles, draw_symmetries, make_batch, symmetry_key
    from .sudoku_solve import Solutions, count_solutions, grades_of, solve_grids
    from .survey import sample_documents
    from .tokenizer import Characters, StreamDecoder, Tokenizer, UnknownCharacter, load_tokenizer

__all__ = [
    "BPE",
    "GRADES",
    "Batch",
    "BatchLoader",
    "Batches",
    "Characters",
    "ConversationFile",
    "CorpusFile",
    "DocumentBatch",
    "Folder",
    "MixtureFile",
    "PreparedData",
    "Problem",
    "Prompt",
    "PromptFile",
    "PromptLoader",
    "PuzzleFile",
    "Puzzles",
    "SequenceOrder",
    "Solutions",
    "StreamDecoder",
    "TokenFile",
    "Tokenizer",
    "UnknownCharacter",
    "ValidationBatches",
    "corpus_files",
    "count_solutions",
    "draw_symmetries",
    "grades_of",
    "held_out_problems",
    "load_tokenizer",
    "make_batch",
    "make_puzzles",
    "open_prepared",
    "parse_problem",
    "prepare",
    "preview",
    "read_documents",
    "sample_documents",
    "solve",
    "solve_grids",
    "symmetry_key",
]

_LAZY = {
    "MixtureFile": "mixture",
    "Prompt": "prompts",
    "PromptFile": "prompts",
    "PromptLoader": "prompts",
    "Batch": "batch",
    "ConversationFile": "packing",
    "preview": "samples",
    "BPE": "subwords",
    "Folder": "subwords",
    "BatchLoader": "loader",
    "Batches": "batch",
    "Characters": "tokenizer",
    "CorpusFile": "corpus",
    "DocumentBatch": "documents",
    "GRADES": "sudoku_make",
    "PreparedData": "prepared",
    "Problem": "arithmetic",
    "PuzzleFile": "sudoku_file",
    "Puzzles": "sudoku_make",
    "Solutions": "sudoku_solve",
    "StreamDecoder": "tokenizer",
    "Tokenizer": "tokenizer",
    "UnknownCharacter": "tokenizer",
    "ValidationBatches": "loader",
    "corpus_files": "corpus",
    "read_documents": "corpus",
    "count_solutions": "sudoku_solve",
    "draw_symmetries": "sudoku_make",
    "grades_of": "sudoku_solve",
    "held_out_problems": "arithmetic",
    "load_tokenizer": "tokenizer",
    "make_batch": "sudoku_make",
    "make_puzzles": "sudoku_file",
    "open_prepared": "prepared",
    "parse_problem": "arithmetic",
    "prepare": "prepared",
    "sample_documents": "survey",
    "solve": "arithmetic",
    "solve_grids": "sudoku_solve",
    "symmetry_key": "sudoku_make",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
