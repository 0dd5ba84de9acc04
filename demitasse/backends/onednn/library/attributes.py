"""Attributes: what a primitive does besides its function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from demitasse.backends.onednn.library.constants import USER_SCRATCHPAD, Algorithm
from demitasse.backends.onednn.library.failures import check, create

__all__ = ["Function", "lent_attributes", "make_attributes"]

Function = tuple[int, float, float]
"""Algorithm, alpha and beta of an elementwise function."""


def make_attributes(
    library: Any,
    *,
    scales: Sequence[int] = (),
    keep: float = 0.0,
    other: int | None = None,
    functions: Sequence[Function] = (),
    slopes: int | None = None,
) -> int:
    """Return attributes to make primitives with; scratch memory is our own.

    Args:
        library: The library.
        scales: Arguments that are multiplied with a number, which is an argument too.
        keep: What the target's old value is multiplied with before it is added; 0 for none.
        other: Descriptor of an array that is added; None for none.
        functions: What the sum then goes through.
        slopes: By which axes differ the slopes that what is below 0 is then multiplied with, as a
            mask: 0 for one slope. They are an argument. None for none.
    """
    made = create(library.dnnl_primitive_attr_create)
    check(library.dnnl_primitive_attr_set_scratchpad_mode(made, USER_SCRATCHPAD))
    for role in scales:
        check(library.dnnl_primitive_attr_set_scales_mask(made, role, 0))
    chain = create(library.dnnl_post_ops_create)
    if keep:
        check(library.dnnl_post_ops_append_sum(chain, keep, 0, 0))
    if other:
        check(library.dnnl_post_ops_append_binary(chain, Algorithm.ADD, other))
    for function in functions:
        check(library.dnnl_post_ops_append_eltwise(chain, *function))
    if slopes is not None:
        check(library.dnnl_post_ops_append_prelu(chain, slopes))
    check(library.dnnl_primitive_attr_set_post_ops(made, chain))
    check(library.dnnl_post_ops_destroy(chain))
    return made


@contextmanager
def lent_attributes(
    library: Any,
    *,
    scales: Sequence[int] = (),
    keep: float = 0.0,
    other: int | None = None,
    functions: Sequence[Function] = (),
    slopes: int | None = None,
) -> Iterator[int]:
    """Lend the attributes of :func:`make_attributes`, for primitives that are made at once."""
    made = make_attributes(
        library, scales=scales, keep=keep, other=other, functions=functions, slopes=slopes
    )
    try:
        yield made
    finally:
        library.dnnl_primitive_attr_destroy(made)
