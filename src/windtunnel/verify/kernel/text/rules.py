"""What a candidate's text may name. Everything that is not here is refused, with a reason that says what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.verify.kernel.text import vocabulary
from windtunnel.verify.kernel.text.members import COMPUTES, HOLDERS, IN_PLACE, INTERNALS, KERNEL_MORE, LEADS_OUT, MODULE_MORE
from windtunnel.verify.kernel.text.members import words as words


@dataclass(frozen=True)
class Options:
    """What a decorator takes: so many by place, and these by name."""

    by_place: int
    by_name: frozenset[str]


# None: its arguments say nothing that the candidate's own code would run in.
DECORATORS: dict[str, Options | None] = {
    "triton.jit": Options(0, words("version do_not_specialize do_not_specialize_on_alignment debug noinline")),
    "triton.autotune": Options(2, words("configs key prune_configs_by reset_to_zero restore_value warmup rep")),
    "triton.heuristics": Options(1, words("values")),
    "torch.no_grad": None,
    "torch.inference_mode": None,
    "dataclasses.dataclass": None,
}
# Calls that may stand in a default argument: what they make cannot be changed.
MAKES_CONSTANTS = (
    "math.",
    "torch.device",
    "torch.finfo",
    "triton.cdiv",
    "triton.next_power_of_2",
    "triton.language.constexpr",
)
TORCH = words(
    """
    empty empty_like empty_strided zeros zeros_like ones ones_like full full_like Tensor Size device dtype nn no_grad
    inference_mode finfo iinfo promote_types result_type broadcast_shapes is_tensor is_floating_point numel cuda
    contiguous_format float16 float32 float64 bfloat16 half float double int8 int16 int32 int64 uint8 uint16 uint32
    uint64 int long short bool float8_e4m3fn float8_e5m2 strided channels_last preserve_format LongTensor FloatTensor
    """
)
# While a module is constructed random and constant tensors may be made: their values are drawn anew afterwards.
TORCH_CONSTRUCTION = words(
    """
    randn rand randint arange linspace eye tensor as_tensor manual_seed sqrt ones zeros full triu tril
    """
)
TORCH_CUDA = words("device current_device get_device_properties get_device_capability device_of is_available")
NN_HOLDERS = words(
    """
    Module Parameter ParameterList ParameterDict ModuleList ModuleDict Identity Linear Bilinear Embedding Conv1d
    Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LayerNorm GroupNorm RMSNorm BatchNorm1d BatchNorm2d
    BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d Dropout MultiheadAttention Sequential ReLU GELU SiLU
    Softmax init Buffer LSTM GRU RNN PReLU MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d Sigmoid Tanh
    LeakyReLU Flatten AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d BCELoss BCEWithLogitsLoss CELU CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss Dropout1d
    Dropout2d Dropout3d ELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss
    LogSigmoid LogSoftmax MSELoss MarginRankingLoss Mish NLLLoss ReLU6 SELU SmoothL1Loss Softmin Softplus Softshrink
    Softsign Tanhshrink Threshold TripletMarginLoss Unflatten AlphaDropout CTCLoss ChannelShuffle CircularPad1d
    CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d EmbeddingBag FeatureAlphaDropout Fold GRUCell
    GaussianNLLLoss LPPool1d LPPool2d LPPool3d LSTMCell LocalResponseNorm MaxUnpool1d MaxUnpool2d MaxUnpool3d
    MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss PairwiseDistance PixelShuffle PixelUnshuffle
    PoissonNLLLoss RNNCell RReLU ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d
    ReplicationPad3d SoftMarginLoss Softmax2d Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
    TransformerEncoderLayer Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """
)
TRITON = words("jit autotune heuristics Config cdiv next_power_of_2 language set_allocator")
# How many inputs and outputs a weight has, as torch.nn's modules ask while they are constructed.
COUNTS_FANS = ("torch.nn.init._calculate_fan_in_and_fan_out", "torch.nn.init._calculate_correct_fan")
# Module → names that may be taken from it or used on it. A module is no value: it stands before a dot only.
MODULES: dict[str, frozenset[str]] = {
    "torch": TORCH,
    "torch.nn": NN_HOLDERS,
    "torch.nn.init": vocabulary.INIT | {name.rpartition(".")[2] for name in COUNTS_FANS},
    "torch.nn.functional": frozenset(),  # may be imported, not used
    "torch.cuda": TORCH_CUDA,
    "torch.version": frozenset({"hip"}),  # None beside a GPU of NVIDIA's and beside none
    "triton": TRITON,
    "triton.language": vocabulary.LANGUAGE,
    "triton.language.extra": frozenset({"libdevice", "cuda"}),
    "triton.language.extra.libdevice": vocabulary.LIBDEVICE,
    "triton.language.extra.cuda": frozenset({"libdevice"}),
    "triton.language.extra.cuda.libdevice": vocabulary.LIBDEVICE,
    "triton.language.math": vocabulary.LANGUAGE_MATH,
    "math": vocabulary.MATH,
    "typing": vocabulary.TYPING,
    "typing_extensions": vocabulary.TYPING,
    "collections.abc": words("Sequence Mapping Callable Iterable"),
    "collections": frozenset({"namedtuple", "abc", "OrderedDict"}),
    "dataclasses": frozenset({"dataclass", "field", "replace", "asdict"}),
    "functools": frozenset({"partial", "reduce"}),
    "itertools": frozenset({"product", "chain", "chain.from_iterable", "accumulate", "repeat"}),
    "enum": frozenset({"Enum", "IntEnum", "StrEnum", "auto"}),
    "operator": frozenset({"mul"}),
    "__future__": frozenset({"annotations"}),
}
# Classes that are named to say what something is, not used: their attributes are methods that no rule about calls sees.
TYPES_ONLY = frozenset({"torch.Tensor", "torch.LongTensor", "torch.FloatTensor", "torch.dtype"})
# What a module or class says about itself to tools that nobody runs here: literals, which no rule lets anything read.
REMARKS = words("__all__ __version__ __author__ __license__ __constants__")
# What gives a function a memory, or wraps it in code that is called in its place.
REMEMBERS = words("functools.lru_cache functools.cache functools.cached_property")
# What may be asked of a dtype that is named in full, as in torch.float16.itemsize.
DTYPES = words(
    """
    float16 float32 float64 bfloat16 half float double int8 int16 int32 int64 uint8 uint16 uint32 uint64 int long short bool
    float8_e4m3fn float8_e5m2
    """
)
DTYPE_QUESTIONS = words("itemsize is_floating_point is_complex is_signed")
# Of triton.language: what host code may name. The interpreter puts others in the place of its functions, so that what they are
# tells it from a GPU.
KERNEL_TYPES = words(
    """
    constexpr dtype bfloat16 float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 float8e5b16 int1 int8 int16 int32
    int64 uint8 uint16 uint32 uint64 void pi32_t pointer_type block_type tensor tuple tensor_descriptor
    """
)
# Of triton.language: what leaves the language or reaches into the compiler.
KERNEL_BANNED = words(
    """
    inline_asm_elementwise core semantic builtin ir extern_elementwise dispatch extra_ target_info standard _semantic
    """
)

BUILTINS = words(
    """
    abs all any bool dict divmod enumerate filter float frozenset int isinstance issubclass len list map max min pow
    print property range repr reversed round set slice sorted staticmethod classmethod str sum super tuple zip
    ValueError TypeError AssertionError RuntimeError NotImplementedError IndexError KeyError True False None Ellipsis
    NotImplemented object callable
    """
)
# Not isinstance: a compiler sees other classes than the interpreter.
KERNEL_BUILTINS = words("range min max abs len float int bool tuple sum print True False None pow round")

# Methods that host code may call: on tensors (allocation, views, questions), numbers, strings and its own containers.
TENSOR_METHODS = words(
    """
    size stride numel nelement dim ndimension element_size is_contiguous contiguous view view_as reshape reshape_as
    permute transpose swapaxes swapdims movedim moveaxis t flatten unflatten ravel squeeze unsqueeze expand expand_as
    narrow select chunk split unbind as_strided detach new_empty new_zeros new_ones new_full
    new_empty_strided zero_ fill_ is_floating_point is_complex requires_grad_ diagonal
    register_buffer register_parameter unfold
    """
)
CONSTRUCTION_METHODS = words(
    """
    to float half bfloat16 double normal_ uniform_ copy_ add_ mul_ div_ sub_ clone add_module append extend
    reset_parameters update cuda eval train register_module
    """
)
CONTAINER_METHODS = words(
    """
    get items keys values append extend insert pop copy index count join split strip lower upper startswith endswith
    replace format update setdefault bit_length is_integer as_integer_ratio add union _asdict _replace sort reverse
    warn
    """
)
CHANGING = words("append extend insert pop update setdefault add clear remove discard sort reverse popitem")

# Attributes with a reason of their own. Which may be read stands in `members`.
BANNED_ATTRIBUTES: dict[str, str] = {
    "data_ptr": "reads-addresses",
    "untyped_storage": "reads-addresses",
    "storage": "reads-addresses",
    "storage_offset": "reads-addresses",
    "_version": "reads-addresses",
    "training": "reads-mode",
    "requires_grad": "reads-mode",
    "is_inference": "reads-mode",
    "grad": "reads-mode",
    "grad_fn": "reads-mode",
    "item": "host-compute",
    "tolist": "host-compute",
    "numpy": "host-compute",
    "handle": "reaches-into-triton",
    "cache": "reaches-into-triton",
    "device_caches": "reaches-into-triton",
    "warmup": "reaches-into-triton",
    "run": "reaches-into-triton",
    "fn": "reaches-into-triton",
    "rewriter": "reaches-into-triton",
    "pre_hook": "reaches-into-triton",
    "gi_frame": "reaches-into-python",
    "f_back": "reaches-into-python",
    "f_locals": "reaches-into-python",
    "f_globals": "reaches-into-python",
    "tb_frame": "reaches-into-python",
    "func_globals": "reaches-into-python",
    "map_": "host-compute",
    "map2_": "host-compute",
    "apply_": "host-compute",
    **dict.fromkeys(LEADS_OUT, "reaches-into-python"),
}
OVERRIDABLE = frozenset({"__init__", "__post_init__", "forward", "extra_repr"})
# Methods of torch.nn.Module through which an answer could be swapped.
MODULE_METHODS = words(
    """
    apply parameters named_parameters buffers named_buffers children modules named_modules state_dict load_state_dict
    train eval to cuda cpu half float double bfloat16 type zero_grad share_memory register_forward_hook
    register_forward_pre_hook add_module register_full_backward_hook requires_grad_ compile get_parameter get_buffer
    get_submodule register_buffer register_parameter register_module set_extra_state get_extra_state named_children ipu mtia
    xpu to_empty set_submodule register_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_state_dict_post_hook register_state_dict_pre_hook dump_patches
    call_super_init T_destination training
    """
)
# Names that other things than the candidate's own have: a field or method called so is the candidate's only on `self`,
# its classes and what is certainly made by them.
ELSEWHERE = COMPUTES | IN_PLACE | INTERNALS | MODULE_METHODS | MODULE_MORE | KERNEL_MORE | HOLDERS

MESSAGES: dict[str, str] = {
    "host-compute": "{what} computes in PyTorch. Only a Triton kernel may; host code allocates, views, launches and returns.",
    "import": "{what} may not be imported, used or not. Use torch, triton, triton.language and math.",
    "dynamic-code": "{what} runs or finds code at run time. Write the code out.",
    "try-except": "{what}: a candidate may not catch errors, since a fallback hides a kernel that fails. Remove it.",
    "keeps-state": "{what} keeps something between calls. forward must depend on its inputs and parameters alone.",
    "reads-addresses": "{what} looks at memory addresses. A result may depend on values and shapes only.",
    "reads-mode": "{what} depends on the module's mode, on gradients or on the device. Results must not.",
    "reaches-into-triton": "{what} reaches into Triton's machinery. Launch kernels as kernel[grid](...).",
    "reaches-into-python": "{what} reaches into the interpreter. Use plain attributes and calls.",
    "patches": "{what} changes something that is not the candidate's own. Assign to local names and, in __init__, to self.",
    "unknown-name": "{what} is neither defined in the candidate nor allowed.",
    "decorator-option": "{what} is not taken. autotune takes configs, key, prune_configs_by, reset_to_zero, restore_value, "
    "warmup and rep; heuristics values; jit do_not_specialize, do_not_specialize_on_alignment, noinline, debug and version.",
    "unknown-attribute": "{what} is not an attribute that host code may read. There are shape, dtype, device, what torch.nn's "
    "modules hold, and what the candidate's own classes define.",
    "type-as-value": "{what} may stand in annotations and isinstance only. Allocate with torch.empty; call methods on tensors.",
    "unknown-call": "{what} is not a call that host code may make (allocate, view, shape, size, launch).",
    "kernel-call": "{what} may not be used inside a kernel. Use triton.language and other @triton.jit functions.",
    "statement": "{what} is not allowed there.",
    "inherits": "{what}: ModelNew derives from torch.nn.Module directly and helpers from nothing.",
    "overrides": "{what} may not be overridden. Define __init__, forward and methods of your own.",
    "no-model": "the candidate defines no class ModelNew(torch.nn.Module) with a forward method.",
    "no-kernel": "the candidate defines no @triton.jit function. Write the computation as a Triton kernel.",
    "never-launched": "no code that forward reaches launches a kernel as kernel[grid](...).",
    "output-not-from-kernel": "forward returns {what}, which no kernel was given. Return the tensor that the kernel writes.",
    "tf32": "{what}: this task is to be computed in full fp32. Use input_precision='ieee'.",
}


def split_dotted(dotted: str) -> tuple[str, str]:
    """The longest module that MODULES knows, and the rest: ('torch.cuda', 'device.index')."""
    module, name = dotted, ""
    while module and module not in MODULES:
        module, _, head = module.rpartition(".")
        name = f"{head}.{name}" if name else head
    return module, name
