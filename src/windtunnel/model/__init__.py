"""Models: shapes and rules as arithmetic (no torch), and the modules themselves, imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .rules import Derived, HyperParameters, derive
from .shape import GPTShape, RecursionShape, gpt_shape, recipe_shape

if TYPE_CHECKING:
    from .attention import deterministic
    from .blocks import Block, Experts, LatentAttention, Linear, Norm
    from .build import build_model, new_model
    from .cache import KVCache, extend, lay_out
    from .checks import add_gradients
    from .fp8 import disable_fp8, enable_fp8
    from .frozen_fp8 import FrozenFP8, encode_fp8, freeze_experts_fp8, freeze_linear_fp8, holds_experts
    from .gpt import GPT, build_gpt
    from .hf import HFShape
    from .known import hf_shape, known_models
    from .recording import Replay, cuda_recorder
    from .recursive import RecursiveGPT, use_supervision
    from .sampling import choose, top_log_probabilities
    from .supervision import Objective, SupervisedSums, Supervision, objective_of, train_supervised
    from .weights import fast_dtype, load_weights, model_of_recipe

__all__ = [
    "GPT",
    "Block",
    "Derived",
    "Experts",
    "FrozenFP8",
    "GPTShape",
    "HFShape",
    "HyperParameters",
    "KVCache",
    "LatentAttention",
    "Linear",
    "Norm",
    "Objective",
    "RecursionShape",
    "RecursiveGPT",
    "Replay",
    "SupervisedSums",
    "Supervision",
    "add_gradients",
    "build_gpt",
    "build_model",
    "choose",
    "cuda_recorder",
    "derive",
    "deterministic",
    "disable_fp8",
    "enable_fp8",
    "encode_fp8",
    "extend",
    "fast_dtype",
    "freeze_experts_fp8",
    "freeze_linear_fp8",
    "gpt_shape",
    "hf_shape",
    "holds_experts",
    "known_models",
    "lay_out",
    "load_weights",
    "model_of_recipe",
    "new_model",
    "objective_of",
    "recipe_shape",
    "top_log_probabilities",
    "train_supervised",
    "use_supervision",
]

__getattr__ = lazy(__name__)
