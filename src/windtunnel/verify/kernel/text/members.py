"""Attributes by name: which host code may read on anything, and which on nothing but what is the candidate's own.

A value's type is not known from the text, so a name counts for every type at once. Reading is what is refused: once a
callable has been read, it can be stored, passed and called in ways that no rule about names can follow.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text, for tables that are read more easily without quotation marks."""
    return frozenset(text.split())


# What a tensor, dtype, device, slice, configuration or the GPU's properties say about themselves; views without a call.
QUESTIONS = words(
    """
    shape dtype device ndim itemsize nbytes layout T mT H mH data real imag is_cuda type index stride is_floating_point
    is_complex is_signed name value start stop step kwargs num_warps num_stages num_ctas maxnreg primitive_bitwidth
    numerator denominator multi_processor_count major minor total_memory warp_size max_threads_per_multi_processor
    max_threads_per_block regs_per_multiprocessor shared_memory_per_block shared_memory_per_block_optin
    shared_memory_per_multiprocessor L2_cache_size
    """
)
# What torch.nn's modules hold.
HELD = words(
    """
    weight bias in_features out_features in1_features in2_features in_channels out_channels kernel_size stride padding
    dilation groups output_padding padding_mode eps momentum affine elementwise_affine normalized_shape num_features
    num_groups num_channels running_mean running_var num_batches_tracked track_running_stats num_embeddings embedding_dim
    padding_idx p inplace negative_slope approximate num_heads embed_dim head_dim kdim vdim batch_first in_proj_weight
    in_proj_bias q_proj_weight k_proj_weight v_proj_weight out_proj dropout hidden_size input_size num_layers
    bidirectional proj_size bias_k bias_v num_parameters ceil_mode return_indices count_include_pad divisor_override
    start_dim end_dim alpha beta delta ignore_index label_smoothing lambd log_target margin max_val min_val output_size
    reduction threshold upscale_factor downscale_factor scale_factor align_corners norm_type max_norm scale_grad_by_freq
    include_last_offset weight_ih weight_hh bias_ih bias_hh self_attn multihead_attn linear1 linear2 norm1 norm2 norm3 norm_first
    """
)
# Of recurrent layers: weight_ih_l0, bias_hh_l1_reverse.
HELD |= {
    f"{kind}_{place}_l{layer}{way}"
    for kind in ("weight", "bias")
    for place in ("ih", "hh")
    for layer in range(16)
    for way in ("", "_reverse")
}
READABLE = QUESTIONS | HELD
# Of torch.finfo and iinfo only: tensors have methods with these names.
LIMITS = words("max min tiny eps bits smallest_normal resolution")

# Public attributes of torch.Tensor that compute, copy or change, without the underscore that says "in place".
COMPUTES = words(
    """
    abs absolute acos acosh addbmm addcdiv addcmul addmm addmv addr adjoint all allclose amax amin aminmax angle any
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere as_strided_scatter as_subclass
    asin asinh atan atan2 atanh backward baddbmm bernoulli bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor bmm bool broadcast_to byte cauchy ccol_indices cdouble ceil cfloat chalf char cholesky
    cholesky_inverse cholesky_solve clamp clamp_max clamp_min clip clone coalesce col_indices conj conj_physical
    const_data_ptr copysign corrcoef cos cosh count_nonzero cov cross crow_indices cummax cummin cumprod cumsum deg2rad
    dense_dim dequantize det diag diag_embed diagflat diagonal_scatter diff digamma dim_order dist div divide dot dsplit
    eig eq equal erf erfc erfinv exp exp2 expm1 exponential fill_diagonal fix flip fliplr flipud float_power floor
    floor_divide fmax fmin fmod frac frexp gather gcd ge geometric geqrf ger get_device grad_dtype greater greater_equal
    gt hardshrink hash_tensor heaviside histc histogram hsplit hypot i0 igamma igammac index_add index_copy index_fill
    index_put index_reduce index_select indices inner int int_repr inverse ipu is_coalesced is_conj is_cpu is_distributed
    is_ipu is_leaf is_maia is_meta is_mkldnn is_mps is_mtia is_neg is_nested is_nonzero is_pinned is_quantized
    is_same_size is_set_to is_shared is_sparse is_sparse_csr is_vulkan is_xla is_xpu isclose isfinite isinf isnan isneginf
    isposinf isreal istft kron kthvalue lcm ldexp le lerp less less_equal lgamma log log10 log1p log2 log_normal
    log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logsumexp
    long lstsq lt lu lu_solve map map2 masked_fill masked_scatter masked_select matmul matrix_exp matrix_power max maximum
    mean median min minimum mm mode module_load msort mtia mul multinomial multiply mv mvlgamma nan_to_num nanmean
    nanmedian nanquantile nansum narrow_copy ne neg negative new new_tensor nextafter nonzero nonzero_static norm normal
    not_equal orgqr ormqr outer output_nr pin_memory pinverse polygamma positive pow prelu prod put q_per_channel_axis
    q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qr qscheme quantile rad2deg random reciprocal
    record_stream register_hook register_post_accumulate_grad_hook reinforce relu remainder renorm repeat
    repeat_interleave resize resize_as resize_as_sparse resolve_conj resolve_neg retain_grad retains_grad roll rot90 round
    row_indices rsqrt scatter scatter_add scatter_reduce select_scatter set sgn short sigmoid sign signbit sin sinc sinh
    slice_inverse slice_scatter slogdet smm softmax solve sparse_dim sparse_mask sparse_resize sparse_resize_and_clear
    split_with_sizes sqrt square sspaddmm std stft storage_type sub subtract sum sum_to_size svd symeig take
    take_along_dim tan tanh tensor_split tile to_dense to_mkldnn to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr
    to_sparse_coo to_sparse_csc to_sparse_csr topk trace triangular_solve tril triu true_divide trunc type_as uniform unique
    unique_consecutive unsafe_chunk unsafe_split unsafe_split_with_sizes var vdot volatile vsplit where xlogy xpu
    """
)
# Attributes with an underscore of tensors, modules, kernels, enums and named tuples. A candidate's own may be called otherwise.
INTERNALS = words(
    """
    _version _base _cdata _grad _grad_fn _values _indices _conj _nnz _view_func _is_view _use_count _typed_storage _dimI
    _dimV _to_dense _to_sparse _lazy_clone _make_subclass _make_wrapper_subclass _neg_view _sparse_mask_projection
    _addmm_activation _philox_normal _philox_uniform _autocast_to_full_precision _autocast_to_reduced_precision
    _python_dispatch _reduce_ex_internal _rev_view_func_unsafe _view_func_unsafe _coalesced _fix_weakref
    _has_symbolic_sizes_strides _is_all_true _is_any_true _is_zerotensor _conj_physical _dtensor__new__
    _post_accumulate_grad_hooks _nested_tensor_size _nested_tensor_storage_offsets _nested_tensor_strides _to_sparse_bsc
    _to_sparse_bsr _to_sparse_csc _to_sparse_csr _clear_non_serializable_cached_data _parameters _buffers _modules _apply
    _backward_hooks _backward_pre_hooks _call_impl _compiled_call_impl _forward_hooks _forward_hooks_always_called
    _forward_hooks_with_kwargs _forward_pre_hooks _forward_pre_hooks_with_kwargs _get_backward_hooks
    _get_backward_pre_hooks _get_name _is_full_backward_hook _load_from_state_dict _load_state_dict_post_hooks
    _load_state_dict_pre_hooks _maybe_warn_non_full_backward_hook _named_members _non_persistent_buffers_set
    _register_load_state_dict_pre_hook _register_state_dict_hook _replicate_for_data_parallel _save_to_state_dict
    _slow_forward _state_dict_hooks _state_dict_pre_hooks _wrapped_call_impl _bench _call_hook _do_compile _do_bench
    _flatten_ir _get_src _set_src _src _fn_name _hash_lock _pack_args _unsafe_update_src _repr _is_protocol _init_args_hst
    _restore_args_dev _missing_ _generate_next_value_ _ignore_ _order_ _member_map_ _value2member_map_ _make
    _field_defaults _value_ _name_
    """
)
MODULE_MORE = words(
    """
    T_destination dump_patches call_super_init register_backward_hook register_full_backward_pre_hook
    register_load_state_dict_pre_hook register_load_state_dict_post_hook register_state_dict_pre_hook
    register_state_dict_post_hook set_submodule to_empty ipu xpu mtia named_children eval
    """
)
KERNEL_MORE = words(
    """
    base_fn rewritten_fn pre_run_hooks add_pre_run_hook post_hook create_binder preload prune_configs do_bench bench
    user_defined_pre_hook user_defined_post_hook perf_model early_config_prune used_global_vals get_capture_scope
    check_disk_cache cache_key CompiledKernel ASTSource launch_metadata raw_src rewrite asm
    """
)
# Of tensors, beside those of COMPUTES: what changes one in its place.
IN_PLACE = words(
    """
    add_ as_strided_ copy_ detach_ resize_ set_ share_memory_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_
    """
)
# Of tuners, kernels, partials, properties and exceptions: what they were given, have chosen and measured.
HOLDERS = words(
    """
    arg_names bench_time best_config cache_results configs_timings configs_top_k key_idx nargs num_reps num_warmups
    reset_to_zero restore_copies restore_value use_cuda_graph constexprs do_not_specialize do_not_specialize_on_alignment
    is_gluon starting_line_number func keywords fget fset fdel getter setter deleter add_note
    """
)
# Of all these: what is no method of tensors, modules and tuners but a value, which says something where it is only compared.
SAYING = HOLDERS | words(
    """
    is_cpu is_ipu is_leaf is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse is_sparse_csr is_vulkan
    is_xla is_xpu output_nr retains_grad grad_dtype volatile _base _cdata _grad _grad_fn _has_symbolic_sizes_strides
    _post_accumulate_grad_hooks _version training T_destination call_super_init dump_patches _backward_hooks
    _backward_pre_hooks _buffers _compiled_call_impl _forward_hooks _forward_hooks_always_called _forward_hooks_with_kwargs
    _forward_pre_hooks _forward_pre_hooks_with_kwargs _is_full_backward_hook _load_state_dict_post_hooks
    _load_state_dict_pre_hooks _modules _non_persistent_buffers_set _parameters _state_dict_hooks _state_dict_pre_hooks
    """
)

# Attributes that lead out of the candidate whatever they are read on. A second net below the lists of allowed names.
LEADS_OUT = words(
    """
    sys os builtins importlib subprocess ctypes inspect modules getattr setattr delattr hasattr globals locals vars
    exec compile open frame_globals cr_frame ag_frame gi_code f_code f_builtins tb_next tb_lasti co_consts func_code
    func_defaults func_closure mro with_traceback format_map get_type_hints
    """
)
# Of named tuples; nothing else a candidate holds has them.
NAMED_TUPLE = words("_asdict _replace _fields")

# Builtins that find or run code: no name of the candidate's may be called so, or the builtin could be taken for it. And the name
# by which Triton's interpreter makes every assignment in a kernel, which it leaves as it is where a candidate has bound it.
NEVER_BOUND = words(
    """
    eval exec compile getattr setattr delattr hasattr globals locals vars open breakpoint memoryview help exit quit
    interpreter_semantic
    """
)
