"""Attributes: what a primitive does besides its function."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_void_p

from demitasse.backends.onednn.constants import USER_SCRATCHPAD
from demitasse.backends.onednn.engine import Engine

__all__ = ["attributes"]


@contextmanager
def attributes(
    owner: Engine,
    *,
    scales: Sequence[int] = (),
    keep: float = 0.0,
    functions: Sequence[tuple[int, float, float]] = (),
) -> Iterator[int]:
    """Lend attributes to make primitives with; scratch memory is our own.

    Args:
        owner: The engine.
        scales: Arguments that are multiplied with a number, which is an argument too.
        keep: What the target's old value is multiplied with before it is added; 0 for none.
        functions: What the sum then goes through: algorithm, alpha, beta.
    """
    library, made = owner.library, c_void_p()
    owner.check(library.dnnl_primitive_attr_create(ctypes.byref(made)))
    try:
        owner.check(library.dnnl_primitive_attr_set_scratchpad_mode(made, USER_SCRATCHPAD))
        for role in scales:
            owner.check(library.dnnl_primitive_attr_set_scales_mask(made, role, 0))
        chain = c_void_p()
        owner.check(library.dnnl_post_ops_create(ctypes.byref(chain)))
        if keep:
            owner.check(library.dnnl_post_ops_append_sum(chain, keep, 0, 0))
        for function in functions:
            owner.check(library.dnnl_post_ops_append_eltwise(chain, *function))
        owner.check(library.dnnl_primitive_attr_set_post_ops(made, chain))
        library.dnnl_post_ops_destroy(chain)
        yield made.value or 0
    finally:
        library.dnnl_primitive_attr_destroy(made)
