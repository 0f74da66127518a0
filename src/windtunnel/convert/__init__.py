"""Checkpoint formats: weights in fp8 or fp4 with block scales become bf16, exactly, and bf16 becomes fp8."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .decode import encode_blocks
    from .entries import Choice, parse_layers
    from .experts import block_of_experts, has_coded_experts, load_experts, weights_beside_experts
    from .job import REPORT, convert_folder
    from .megatron import (
        Parameter,
        Ranks,
        from_slices,
        join,
        layers_of_stages,
        megatron_parameters,
        megatron_problem,
        rank_shapes,
        rank_slice,
        separate,
    )
    from .verify import Verified, verify_folder
    from .work import decoded_heads, decoded_weights, is_coded

__all__ = [
    "REPORT",
    "Choice",
    "Parameter",
    "Ranks",
    "Verified",
    "block_of_experts",
    "convert_folder",
    "decoded_heads",
    "decoded_weights",
    "encode_blocks",
    "from_slices",
    "has_coded_experts",
    "is_coded",
    "join",
    "layers_of_stages",
    "load_experts",
    "megatron_parameters",
    "megatron_problem",
    "parse_layers",
    "rank_shapes",
    "rank_slice",
    "separate",
    "verify_folder",
    "weights_beside_experts",
]

__getattr__ = lazy(__name__)
