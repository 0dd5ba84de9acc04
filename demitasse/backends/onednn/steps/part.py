"""A part of a blob along one axis, copied out of it."""

from __future__ import annotations

from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.failures import check, create
from demitasse.backends.onednn.library.layout import dims
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.step import Declined
from demitasse.errors import DeviceError

__all__ = ["part_copy"]


def part_copy(engine: Engine, source: Reader, axis: int, first: int, target: Writer) -> Call:
    """Return the copy of a part.

    Args:
        engine: The engine.
        source: What it is a part of.
        axis: Along which it begins elsewhere.
        first: Where it begins there.
        target: What is written; its shape says how large the part is.

    Raises:
        Declined: Blocks of channels do not end where it begins.
    """
    shape = target.layout.shape
    offsets = [0] * len(shape)
    offsets[axis] = first
    try:
        part = create(
            engine.library.dnnl_memory_desc_create_submemory,
            source.layout.handle, dims(shape), dims(tuple(offsets)),
        )  # fmt: skip
    except DeviceError:
        message = f"a part from channel {first} on; blocks of channels cannot be cut there"
        raise Declined(message) from None
    try:
        source.descriptor = part
        found = engine.describe_reorder(part, target.layout.handle)
        return Call(engine, found, [source, target])
    finally:
        check(engine.library.dnnl_memory_desc_destroy(part))
