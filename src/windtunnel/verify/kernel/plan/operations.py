"""What PyTorch's operations in a plan do: nothing but setting and moving data, or computing; and which a task allows.

What is named nowhere here is in no plan: operations that read values, draw random numbers, or reach outside their arguments.
"""

from __future__ import annotations

import math

from windtunnel.verify.kernel.plan.language import words
from windtunnel.verify.kernel.plan.places import tensors_in
from windtunnel.verify.kernel.plan.schema import Operation, Tensor

ALLOCATES = words("empty empty_like empty_strided new_empty new_empty_strided")  # no operations of a plan, but buffers
SETS = words("zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full zero_ fill_ scalar_tensor")
MOVES = words("clone copy_ cat stack constant_pad_nd repeat index_select roll flip contiguous")
PRODUCTS = words(
    """
    mm bmm addmm addbmm baddbmm addmv mv dot convolution _convolution convolution_overrideable linear
    _scaled_dot_product_flash_attention_for_cpu
    """
)
RECURRENT = words("lstm gru rnn_tanh rnn_relu")
COMPUTES = (
    PRODUCTS
    | RECURRENT
    | words(
        """
    _to_copy to arange linspace eye tril triu abs abs_ acos acosh add add_ addcdiv addcdiv_ addcmul addcmul_ all amax amin
    aminmax any argmax argmin argsort asin asinh atan atan2 atanh avg_pool1d avg_pool2d avg_pool3d bitwise_and bitwise_not
    bitwise_or bitwise_xor bucketize cdist ceil ceil_ celu celu_ clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_
    col2im complex copysign count_nonzero cos cos_ cosh cummax cummin cumprod cumprod_ cumsum cumsum_ deg2rad diag_embed
    digamma div div_ elu elu_ embedding eq erf erf_ erfc erfinv exp exp2 exp_ expm1 expm1_ floor floor_ floor_divide fmax
    fmin fmod frac gather ge gelu gelu_ glu grid_sampler_2d gt hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh
    hardtanh_ huber_loss hypot im2col index index_add index_add_ index_copy index_copy_ index_fill index_put index_put_
    index_reduce isfinite isinf isnan le leaky_relu leaky_relu_ lerp lgamma log log10 log1p log2 log_ _log_softmax
    log_sigmoid_forward logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lt
    masked_fill masked_fill_ masked_scatter max max_pool2d_with_indices max_pool3d_with_indices maximum mean median min
    minimum mish mish_ mse_loss mul mul_ native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
    native_group_norm native_layer_norm ne neg neg_ nll_loss_forward norm _weight_norm_interface permute_copy pixel_shuffle
    pixel_unshuffle pow pow_ prelu _prelu_kernel prod reciprocal reciprocal_ reflection_pad1d reflection_pad2d relu relu_
    remainder replication_pad1d replication_pad2d replication_pad3d round round_ rsqrt rsqrt_ rsub scatter scatter_
    scatter_add scatter_add_ scatter_reduce searchsorted select_scatter selu selu_ sgn sigmoid sigmoid_ sign signbit silu
    silu_ sin sin_ sinc sinh slice_scatter smooth_l1_loss _softmax _safe_softmax softplus softshrink sort sqrt sqrt_ square
    std std_mean sub sub_ sum tan tanh tanh_ threshold threshold_ topk trunc unfold_copy upsample_bicubic2d
    upsample_bilinear2d upsample_nearest1d upsample_nearest2d upsample_nearest3d var var_mean where xlogy
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d linalg_vector_norm _fused_rms_norm
    rms_norm native_dropout
    """
    )
)
KNOWN = SETS | MOVES | COMPUTES


def base_name(operation: str) -> str | None:
    """Return 'mm' of 'aten.mm.default'; None for what is no operation of ATen's."""
    space, _, rest = operation.partition(".")
    return rest.partition(".")[0] if space == "aten" and rest.count(".") == 1 else None


def moves_only(operation: Operation) -> bool:
    """Return whether it copies, and converts nothing."""
    name = base_name(operation.operation)
    # A copy into another dtype rounds, which is computing.
    dtypes = {tensor.dtype for tensor in (*tensors_of(operation), *(t for t in operation.results if t is not None))}
    return name in MOVES and len(dtypes) <= 1


def sets_only(operation: Operation) -> bool:
    """Return whether it writes one number everywhere."""
    return base_name(operation.operation) in SETS and len({tensor.dtype for tensor in tensors_of(operation)}) <= 1


def tensors_of(operation: Operation) -> list[Tensor]:
    """Return the tensors among its arguments."""
    return list(tensors_in((*operation.arguments, *operation.keywords.values())))


def work(operation: Operation) -> int:
    """Return multiplications of a product or convolution, else elements of the largest tensor; 0 for what only moves."""
    if sets_only(operation) or moves_only(operation):
        return 0
    given, results = tensors_of(operation), [tensor for tensor in operation.results if tensor is not None]
    return work_of(base_name(operation.operation) or "", [t.shape for t in given], [t.shape for t in results])


def work_of(name: str, given: list[tuple[int, ...]], results: list[tuple[int, ...]]) -> int:
    """Return the multiplications of an operation, from shapes; of others its elements.

    A convolution's second tensor is its weight, out × in × kernel.
    """
    largest = max((math.prod(shape) for shape in (*given, *results)), default=0)
    if name in RECURRENT and given:
        # Every step of every sequence meets each of the weights, the tensors of two dimensions.
        return math.prod(given[0][:2]) * sum(math.prod(shape) for shape in given if len(shape) == 2)
    if name not in PRODUCTS or not results or not given:
        return largest
    out = math.prod(results[0])
    if "conv" in name:
        return out * math.prod(given[1][1:]) if len(given) > 1 else largest
    # addmm and its like have what is added first, the factors last.
    factor = given[-2] if len(given) > 1 else given[0]
    return out * (factor[-1] if factor else 1)
