"""Data: corpora, tokenizers, splits, token files and the batches made of them. Importable without torch."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .added import add_tokens, describe_added
    from .arithmetic import Problem, held_out_problems, solve
    from .batch import Batch, Batches
    from .bpe import BPE
    from .cache import cache_entries, cache_root, remove_entry, remove_locks
    from .checks_theses import Gate, failed_gates, prepare_theses, require_unread_test, thesis_gates
    from .conversations import Conversation
    from .corpus import CorpusFile, corpus_files, listed_files, read_documents
    from .kernels import draw_tasks, task_prompt
    from .kernels_files import TaskReader, kernels_of
    from .loader import BatchLoader, ValidationBatches
    from .mixture import MixtureFile
    from .nested import look_up, shown_names
    from .packing import ConversationFile, best_fit, bucketed, sequence_starts, target_rows
    from .prepared import PreparedData, prepare
    from .prompts import Prompt, PromptFile, PromptLoader, prompt_records
    from .samples import conversation_files, describe_packing, preview, read_conversations, shown_samples
    from .subwords import Folder, TokenBytes
    from .sudoku_file import PuzzleFile
    from .sudoku_make import GRADES, Puzzles, make_batch
    from .template_files import write_tokenizer
    from .templates import end_of_answer, template_of
    from .theses import Thesis
    from .theses_export import export_theses, require_empty
    from .theses_read import encode_questions, read_questions
    from .time_limit import within
    from .tokenizer import Characters, StreamDecoder, Tokenizer, UnknownCharacter, load_tokenizer
    from .tokens import TokenFile

__all__ = [
    "BPE",
    "GRADES",
    "Batch",
    "BatchLoader",
    "Batches",
    "Characters",
    "Conversation",
    "ConversationFile",
    "CorpusFile",
    "Folder",
    "Gate",
    "MixtureFile",
    "PreparedData",
    "Problem",
    "Prompt",
    "PromptFile",
    "PromptLoader",
    "PuzzleFile",
    "Puzzles",
    "StreamDecoder",
    "TaskReader",
    "Thesis",
    "TokenBytes",
    "TokenFile",
    "Tokenizer",
    "UnknownCharacter",
    "ValidationBatches",
    "add_tokens",
    "best_fit",
    "bucketed",
    "cache_entries",
    "cache_root",
    "conversation_files",
    "corpus_files",
    "describe_added",
    "describe_packing",
    "draw_tasks",
    "encode_questions",
    "end_of_answer",
    "export_theses",
    "failed_gates",
    "held_out_problems",
    "kernels_of",
    "listed_files",
    "load_tokenizer",
    "look_up",
    "make_batch",
    "prepare",
    "prepare_theses",
    "preview",
    "prompt_records",
    "read_conversations",
    "read_documents",
    "read_questions",
    "remove_entry",
    "remove_locks",
    "require_empty",
    "require_unread_test",
    "sequence_starts",
    "shown_names",
    "shown_samples",
    "solve",
    "target_rows",
    "task_prompt",
    "template_of",
    "thesis_gates",
    "within",
    "write_tokenizer",
]

__getattr__ = lazy(__name__)
