"""Attributes: what a primitive does besides its function."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

from demitasse.backends.onednn.library.constants import USER_SCRATCHPAD, Algorithm

if TYPE_CHECKING:
    from demitasse.backends.onednn.library.engine import Engine

__all__ = ["RELU", "lent_attributes", "make_attributes"]

Function = tuple[int, float, float]  # algorithm, alpha, beta

RELU: Function = (Algorithm.RELU, 0.0, 0.0)


def make_attributes(
    owner: Engine,
    *,
    scales: Sequence[int] = (),
    keep: float = 0.0,
    other: int | None = None,
    functions: Sequence[Function] = (),
) -> int:
    """Return attributes to make primitives with; scratch memory is our own.

    Args:
        owner: The engine.
        scales: Arguments that are multiplied with a number, which is an argument too.
        keep: What the target's old value is multiplied with before it is added; 0 for none.
        other: Descriptor of an array that is added; None for none.
        functions: What the sum then goes through.
    """
    library, made, chain = owner.library, c_void_p(), c_void_p()
    owner.check(library.dnnl_primitive_attr_create(ctypes.byref(made)))
    owner.check(library.dnnl_primitive_attr_set_scratchpad_mode(made, USER_SCRATCHPAD))
    for role in scales:
        owner.check(library.dnnl_primitive_attr_set_scales_mask(made, role, 0))
    owner.check(library.dnnl_post_ops_create(ctypes.byref(chain)))
    if keep:
        owner.check(library.dnnl_post_ops_append_sum(chain, keep, 0, 0))
    if other:
        owner.check(library.dnnl_post_ops_append_binary(chain, Algorithm.ADD, other))
    for function in functions:
        owner.check(library.dnnl_post_ops_append_eltwise(chain, *function))
    owner.check(library.dnnl_primitive_attr_set_post_ops(made, chain))
    library.dnnl_post_ops_destroy(chain)
    return made.value or 0


@contextmanager
def lent_attributes(owner: Engine, **wanted: Any) -> Iterator[int]:
    """Lend the attributes of :func:`make_attributes`, for primitives that are made at once."""
    made = make_attributes(owner, **wanted)
    try:
        yield made
    finally:
        owner.library.dnnl_primitive_attr_destroy(made)
