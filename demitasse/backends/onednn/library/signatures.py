"""The functions of oneDNN's C interface that we call, with the types of their arguments."""

from __future__ import annotations

from ctypes import POINTER, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from typing import Any

__all__ = ["declare"]

_PD = POINTER(c_void_p)  # receives a handle
_DIMS = POINTER(c_int64)
_MD = c_void_p

SIGNATURES: dict[str, list[Any]] = {
    "dnnl_engine_create": [_PD, c_int, c_size_t],
    "dnnl_stream_create": [_PD, c_void_p, c_uint],
    "dnnl_memory_desc_create_with_strides": [_PD, c_int, _DIMS, c_int, _DIMS],
    "dnnl_memory_desc_create_with_tag": [_PD, c_int, _DIMS, c_int, c_int],
    "dnnl_memory_desc_create_submemory": [_PD, _MD, _DIMS, _DIMS],
    "dnnl_memory_desc_clone": [_PD, _MD],
    "dnnl_memory_desc_destroy": [_MD],
    "dnnl_memory_desc_query": [_MD, c_int, c_void_p],
    "dnnl_memory_create": [_PD, _MD, c_void_p, c_void_p],
    "dnnl_memory_get_memory_desc": [c_void_p, _PD],
    "dnnl_memory_set_data_handle": [c_void_p, c_void_p],
    "dnnl_memory_destroy": [c_void_p],
    "dnnl_primitive_attr_create": [_PD],
    "dnnl_primitive_attr_destroy": [c_void_p],
    "dnnl_primitive_attr_set_scratchpad_mode": [c_void_p, c_int],
    "dnnl_primitive_attr_set_scales_mask": [c_void_p, c_int, c_int],
    "dnnl_primitive_attr_set_post_ops": [c_void_p, c_void_p],
    "dnnl_post_ops_create": [_PD],
    "dnnl_post_ops_destroy": [c_void_p],
    "dnnl_post_ops_append_binary": [c_void_p, c_int, _MD],
    "dnnl_post_ops_append_sum": [c_void_p, c_float, c_int, c_int],
    "dnnl_post_ops_append_eltwise": [c_void_p, c_int, c_float, c_float],
    "dnnl_post_ops_append_prelu": [c_void_p, c_int],
    "dnnl_primitive_create": [_PD, c_void_p],
    "dnnl_primitive_destroy": [c_void_p],
    "dnnl_primitive_desc_destroy": [c_void_p],
    "dnnl_primitive_desc_query": [c_void_p, c_int, c_int, c_void_p],
    "dnnl_primitive_execute": [c_void_p, c_void_p, c_int, c_void_p],
    "dnnl_reorder_primitive_desc_create": [_PD, _MD, c_void_p, _MD, c_void_p, c_void_p],
    "dnnl_convolution_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, c_int, _MD, _MD, _MD, _MD, *[_DIMS] * 4, c_void_p,
    ],
    "dnnl_convolution_backward_data_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, *[_DIMS] * 4, c_void_p, c_void_p,
    ],
    "dnnl_convolution_backward_weights_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, _MD, *[_DIMS] * 4, c_void_p, c_void_p,
    ],
    "dnnl_deconvolution_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, c_int, _MD, _MD, _MD, _MD, *[_DIMS] * 4, c_void_p,
    ],
    "dnnl_deconvolution_backward_data_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, *[_DIMS] * 4, c_void_p, c_void_p,
    ],
    "dnnl_deconvolution_backward_weights_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, _MD, *[_DIMS] * 4, c_void_p, c_void_p,
    ],
    "dnnl_inner_product_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, _MD, c_void_p,
    ],
    "dnnl_inner_product_backward_data_primitive_desc_create": [
        _PD, c_void_p, _MD, _MD, _MD, c_void_p, c_void_p,
    ],
    "dnnl_inner_product_backward_weights_primitive_desc_create": [
        _PD, c_void_p, _MD, _MD, _MD, _MD, c_void_p, c_void_p,
    ],
    "dnnl_matmul_primitive_desc_create": [_PD, c_void_p, _MD, _MD, _MD, _MD, c_void_p],
    "dnnl_pooling_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, c_int, _MD, _MD, *[_DIMS] * 5, c_void_p,
    ],
    "dnnl_pooling_backward_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, *[_DIMS] * 5, c_void_p, c_void_p,
    ],
    "dnnl_lrn_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, c_int, _MD, _MD, c_int64, c_float, c_float, c_float, c_void_p,
    ],
    "dnnl_lrn_backward_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, c_int64, c_float, c_float, c_float,
        c_void_p, c_void_p,
    ],
    "dnnl_eltwise_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, c_int, _MD, _MD, c_float, c_float, c_void_p,
    ],
    "dnnl_eltwise_backward_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, c_float, c_float, c_void_p, c_void_p,
    ],
    "dnnl_prelu_forward_primitive_desc_create": [_PD, c_void_p, c_int, _MD, _MD, _MD, c_void_p],
    "dnnl_prelu_backward_primitive_desc_create": [
        _PD, c_void_p, _MD, _MD, _MD, _MD, _MD, c_void_p, c_void_p,
    ],
    "dnnl_softmax_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, c_int, _MD, _MD, c_int, c_void_p,
    ],
    "dnnl_softmax_backward_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, c_int, c_void_p, c_void_p,
    ],
    "dnnl_batch_normalization_forward_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, c_float, c_uint, c_void_p,
    ],
    "dnnl_batch_normalization_backward_primitive_desc_create": [
        _PD, c_void_p, c_int, _MD, _MD, _MD, c_float, c_uint, c_void_p, c_void_p,
    ],
    "dnnl_binary_primitive_desc_create": [_PD, c_void_p, c_int, _MD, _MD, _MD, c_void_p],
    "dnnl_concat_primitive_desc_create": [
        _PD, c_void_p, _MD, c_int, c_int, POINTER(c_void_p), c_void_p,
    ],
    "dnnl_sum_primitive_desc_create": [
        _PD, c_void_p, _MD, c_int, POINTER(c_float), POINTER(c_void_p), c_void_p,
    ],
}  # fmt: skip
"""Those that return a status."""


def declare(library: Any) -> None:
    """Tell ctypes what the functions take and return.

    Raises:
        AttributeError: The library lacks one of them.
    """
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    library.dnnl_memory_desc_get_size.argtypes = [_MD]
    library.dnnl_memory_desc_get_size.restype = c_size_t
    library.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
    library.dnnl_primitive_desc_query_md.restype = c_void_p
    library.dnnl_get_effective_cpu_isa.restype = c_int
