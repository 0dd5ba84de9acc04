"""A part of a blob, copied out of it."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.failures import check, create
from demitasse.backends.onednn.library.layout import Layout, dims
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.step import Declined
from demitasse.errors import DeviceError

__all__ = ["IMAGES", "along", "like", "part_copy"]

IMAGES = 3
"""Axes from which on there are channels and places."""


def like(engine: Engine, whole: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a part: in C order if the whole is, else with its channels last."""
    return engine.plain(shape) if whole.plain else engine.innermost_layout(shape, 1)


def along(axis: int, first: int, axes: int) -> list[int]:
    """Return where a part begins that begins with others along all axes but one."""
    return [first if place == axis else 0 for place in range(axes)]


def part_copy(engine: Engine, source: Reader, first: Sequence[int], target: Writer) -> Call:
    """Return the copy of a part.

    Args:
        engine: The engine.
        source: What it is a part of.
        first: Where it begins, along each axis.
        target: What is written; its shape says how large the part is.

    Raises:
        Declined: Blocks of channels do not end where it begins.
    """
    shape = target.layout.shape
    try:
        part = create(
            engine.library.dnnl_memory_desc_create_submemory,
            source.layout.handle, dims(shape), dims(tuple(first)),
        )  # fmt: skip
    except DeviceError:
        message = f"a part from {tuple(first)} on; blocks of channels cannot be cut there"
        raise Declined(message) from None
    try:
        source.descriptor = part
        found = engine.describe_reorder(part, target.layout.handle)
        return Call(engine, found, [source, target])
    finally:
        check(engine.library.dnnl_memory_desc_destroy(part))
