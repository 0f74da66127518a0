"""Data: corpora, tokenizers, splits, token files and the batches made of them. Importable without torch."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .tokens import SequenceOrder, TokenFile

if TYPE_CHECKING:
    from .added import add_tokens, describe_added
    from .arithmetic import Problem, held_out_problems, parse_problem, solve
    from .batch import Batch, Batches
    from .bpe import BPE
    from .cache import CacheEntry, cache_entries, cache_root, remove_entry, remove_locks
    from .checks_theses import Gate, failed_gates, prepare_theses, require_unread_test, thesis_gates
    from .conversations import Conversation
    from .corpus import CorpusFile, corpus_files, listed_files, read_documents
    from .documents import DocumentBatch
    from .kernels import KernelTask, draw_tasks, task_prompt
    from .kernels_files import TaskReader
    from .loader import BatchLoader, ValidationBatches
    from .mixture import MixtureFile
    from .packing import ConversationFile, best_fit, bucketed, sequence_starts, target_rows
    from .prepared import PreparedData, prepare
    from .prompts import Prompt, PromptFile, PromptLoader, prompt_records
    from .samples import conversation_files, describe_packing, preview, read_conversations, shown_samples
    from .subwords import Folder
    from .sudoku_file import PuzzleFile, make_puzzles
    from .sudoku_make import GRADES, Puzzles, draw_symmetries, make_batch, symmetry_key
    from .sudoku_solve import Solutions, grades_of, solve_grids
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
    "parse_problem",
    "prepare",
    "prepare_theses",
    "preview",
    "prompt_records",
    "read_conversations",
    "read_documents",
    "read_questions",
    "remove_entry",
    "remove_locks",
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

__getattr__ = lazy(__name__)
