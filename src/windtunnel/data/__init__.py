"""Data: corpora, tokenizers, splits, token files and the batches made of them. Importable without torch."""

from typing import TYPE_CHECKING, Any

from .tokens import SequenceOrder, TokenFile

if TYPE_CHECKING:
    from .added import add_tokens, describe_added
    from .arithmetic import Problem, held_out_problems, parse_problem, solve
    from .batch import Batch, Batches
    from .bpe import BPE
    from .cache import CacheEntry, cache_entries, cache_root, remove_entry
    from .checks_theses import Gate, failed_gates, prepare_theses, require_unread_test, thesis_gates
    from .conversations import Conversation
    from .corpus import CorpusFile, corpus_files, listed_files, read_documents
    from .documents import DocumentBatch
    from .kernels import KernelTask, draw_tasks, task_prompt
    from .kernels_files import TaskReader
    from .loader import BatchLoader, ValidationBatches
    from .mixture import MixtureFile
    from .packing import ConversationFile, best_fit, bucketed, sequence_starts, target_rows
    from .prepared import PreparedData, open_prepared, prepare
    from .prompts import Prompt, PromptFile, PromptLoader, prompt_records
    from .samples import conversation_files, describe_packing, preview, read_conversations, shown_samples
    from .subwords import Folder
    from .sudoku_file import PuzzleFile, make_puzzles
    from .sudoku_make import GRADES, Puzzles, draw_symmetries, make_batch, symmetry_key
    from .sudoku_solve import Solutions, count_solutions, grades_of, solve_grids
    from .survey import sample_documents
    from .template_files import write_tokenizer
    from .templates import ChatTemplate, choose_template, end_of_answer, template_of
    from .theses import Rejected, Thesis, check_thesis, render_input
    from .theses_export import export_theses, require_empty
    from .theses_read import encode_questions, read_questions
    from .time_limit import within
    from .tokenizer import Characters, StreamDecoder, Tokenizer, UnknownCharacter, load_tokenizer

__all__ = [
    "BPE",
    "GRADES",
    "Batch",
    "BatchLoader",
    "Batches",
    "CacheEntry",
    "Characters",
    "ChatTemplate",
    "Conversation",
    "ConversationFile",
    "CorpusFile",
    "DocumentBatch",
    "Folder",
    "Gate",
    "KernelTask",
    "MixtureFile",
    "PreparedData",
    "Problem",
    "Prompt",
    "PromptFile",
    "PromptLoader",
    "PuzzleFile",
    "Puzzles",
    "Rejected",
    "SequenceOrder",
    "Solutions",
    "StreamDecoder",
    "TaskReader",
    "Thesis",
    "TokenFile",
    "Tokenizer",
    "UnknownCharacter",
    "ValidationBatches",
    "add_tokens",
    "best_fit",
    "bucketed",
    "cache_entries",
    "cache_root",
    "check_thesis",
    "choose_template",
    "conversation_files",
    "corpus_files",
    "count_solutions",
    "describe_added",
    "describe_packing",
    "draw_symmetries",
    "draw_tasks",
    "encode_questions",
    "end_of_answer",
    "export_theses",
    "failed_gates",
    "grades_of",
    "held_out_problems",
    "listed_files",
    "load_tokenizer",
    "make_batch",
    "make_puzzles",
    "open_prepared",
    "parse_problem",
    "prepare",
    "prepare_theses",
    "preview",
    "prompt_records",
    "read_conversations",
    "read_documents",
    "read_questions",
    "remove_entry",
    "render_input",
    "require_empty",
    "require_unread_test",
    "sample_documents",
    "sequence_starts",
    "shown_samples",
    "solve",
    "solve_grids",
    "symmetry_key",
    "target_rows",
    "task_prompt",
    "template_of",
    "thesis_gates",
    "within",
    "write_tokenizer",
]

_LAZY = {
    "KernelTask": "kernels",
    "TaskReader": "kernels_files",
    "draw_tasks": "kernels",
    "task_prompt": "kernels",
    "Gate": "checks_theses",
    "failed_gates": "checks_theses",
    "prepare_theses": "checks_theses",
    "require_unread_test": "checks_theses",
    "thesis_gates": "checks_theses",
    "encode_questions": "theses_read",
    "export_theses": "theses_export",
    "require_empty": "theses_export",
    "read_questions": "theses_read",
    "Rejected": "theses",
    "Thesis": "theses",
    "CacheEntry": "cache",
    "cache_entries": "cache",
    "cache_root": "cache",
    "remove_entry": "cache",
    "check_thesis": "theses",
    "render_input": "theses",
    "write_tokenizer": "template_files",
    "template_of": "templates",
    "end_of_answer": "templates",
    "choose_template": "templates",
    "ChatTemplate": "templates",
    "MixtureFile": "mixture",
    "Prompt": "prompts",
    "PromptFile": "prompts",
    "PromptLoader": "prompts",
    "prompt_records": "prompts",
    "Batch": "batch",
    "ConversationFile": "packing",
    "best_fit": "packing",
    "bucketed": "packing",
    "sequence_starts": "packing",
    "target_rows": "packing",
    "conversation_files": "samples",
    "add_tokens": "added",
    "describe_added": "added",
    "describe_packing": "samples",
    "Conversation": "conversations",
    "listed_files": "corpus",
    "preview": "samples",
    "read_conversations": "samples",
    "shown_samples": "samples",
    "BPE": "bpe",
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
    "within": "time_limit",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
