"""Models: shapes and rules as arithmetic (no torch), and the modules themselves, imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .rules import Derived, HyperParameters, derive
from .shape import GPTShape, RecursionShape, gpt_shape, recipe_shape

if TYPE_CHECKING:
    from .attention import deterministic, flash_kernels
    from .base import (
        RANDOM_BASE,
        adapts_random_weights,
        base_weights,
        describe_base,
        describing_files,
        fingerprint,
        require_base,
        weight_files,
    )
    from .blocks import DECODED_BYTES, Block, Experts, LatentAttention, Linear, Norm
    from .build import build_model, empty_model, new_model
    from .cache import KVCache, extend, lay_out
    from .checks import add_gradients
    from .compiled import compile_attention, without_attention
    from .expert_parallel import ExpertGroup, expert_group
    from .fetch import (
        Fetched,
        convert_gguf,
        cut_off,
        download_rate,
        fetch_model,
        require_weights,
        verify_hashes,
        verify_model,
        weights_folder,
    )
    from .fp8 import enable_fp8, enable_gathered_fp8
    from .fp8_experts import PARTS, BlockFP8, FP8Experts, SharedExperts, share_experts_fp8, shared_experts_of
    from .frozen_fp8 import FrozenFP8, decode_fp8, encode_fp8, freeze_experts_fp8, freeze_linear_fp8, holds_experts
    from .gpt import GPT
    from .hf import SAME_STEPS, SMALL_LAYER, HFShape, asks_for_dropout
    from .hf_config import refuse_adapter
    from .hub import (
        blocks_of,
        expert_sources,
        from_hub,
        grow_tables,
        hollow,
        linears,
        merge_adapter,
        open_heads,
        open_weights,
        require_fit,
        to_hub,
        token_tables,
        without_bar,
    )
    from .hub_errors import by_hand
    from .known import hf_shape, hub_id, known_models
    from .memory import out_of_memory
    from .new_rows import NewRows, with_rows
    from .recording import CudaRecorder, Recording, Replay
    from .recursive import RecursiveGPT, use_supervision
    from .sampling import choose, draw_tokens, top_log_probabilities
    from .stored import BITS, FETCH_AGAIN, INDEX, SINGLE, Stored, StoredModel, read_stored
    from .supervision import Objective, SupervisedSums, Supervision, objective_of, train_supervised
    from .triton_attention import attend_newest
    from .triton_draw import draw_rows
    from .triton_step import add_norm, place_heads
    from .triton_swiglu import swiglu_backward_in_place_, swiglu_forward, swiglu_of
    from .weights import fast_dtype, load_weights, model_of_recipe

__all__ = [
    "BITS",
    "DECODED_BYTES",
    "FETCH_AGAIN",
    "GPT",
    "INDEX",
    "PARTS",
    "RANDOM_BASE",
    "SAME_STEPS",
    "SINGLE",
    "SMALL_LAYER",
    "Block",
    "BlockFP8",
    "CudaRecorder",
    "Derived",
    "ExpertGroup",
    "Experts",
    "FP8Experts",
    "Fetched",
    "FrozenFP8",
    "GPTShape",
    "HFShape",
    "HyperParameters",
    "KVCache",
    "LatentAttention",
    "Linear",
    "NewRows",
    "Norm",
    "Objective",
    "Recording",
    "RecursionShape",
    "RecursiveGPT",
    "Replay",
    "SharedExperts",
    "Stored",
    "StoredModel",
    "SupervisedSums",
    "Supervision",
    "adapts_random_weights",
    "add_gradients",
    "add_norm",
    "asks_for_dropout",
    "attend_newest",
    "base_weights",
    "blocks_of",
    "build_model",
    "by_hand",
    "choose",
    "compile_attention",
    "convert_gguf",
    "cut_off",
    "decode_fp8",
    "derive",
    "describe_base",
    "describing_files",
    "deterministic",
    "download_rate",
    "draw_rows",
    "draw_tokens",
    "empty_model",
    "enable_fp8",
    "enable_gathered_fp8",
    "encode_fp8",
    "expert_group",
    "expert_sources",
    "extend",
    "fast_dtype",
    "fetch_model",
    "fingerprint",
    "flash_kernels",
    "freeze_experts_fp8",
    "freeze_linear_fp8",
    "from_hub",
    "gpt_shape",
    "grow_tables",
    "hf_shape",
    "holds_experts",
    "hollow",
    "hub_id",
    "known_models",
    "lay_out",
    "linears",
    "load_weights",
    "merge_adapter",
    "model_of_recipe",
    "new_model",
    "objective_of",
    "open_heads",
    "open_weights",
    "out_of_memory",
    "place_heads",
    "read_stored",
    "recipe_shape",
    "refuse_adapter",
    "require_base",
    "require_fit",
    "require_weights",
    "share_experts_fp8",
    "shared_experts_of",
    "swiglu_backward_in_place_",
    "swiglu_forward",
    "swiglu_of",
    "to_hub",
    "token_tables",
    "top_log_probabilities",
    "train_supervised",
    "use_supervision",
    "verify_hashes",
    "verify_model",
    "weight_files",
    "weights_folder",
    "with_rows",
    "without_attention",
    "without_bar",
]

__getattr__ = lazy(__name__)
