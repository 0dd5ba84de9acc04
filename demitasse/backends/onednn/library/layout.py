"""Memory layouts of a shape: C order, channels last, blocks of channels.

Layouts are chosen by the primitives, never by us; here they are only told apart. Two layouts that
put every element in the same place are the same object.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, c_int, c_int64
from typing import Any

from demitasse.backends.arrays import ChannelSlice
from demitasse.backends.onednn.library.constants import ANY, BLOCKED, FLOAT32, Query
from demitasse.backends.onednn.library.library import check, create
from demitasse.backends.step import Declined
from demitasse.errors import DeviceError

MOST_AXES = 12
"""The library's limit."""

Shape = tuple[int, ...]
Key = tuple[Any, ...]


class Layout:
    """One arrangement of the float32 elements of a shape.

    Attributes:
        shape: The logical shape.
        handle: oneDNN's memory descriptor; lives as long as the process.
        size: Elements of a buffer in this layout, padding included.
        plain: Whether it is C order without padding, that of the host side.
        home: The range of channels that it is of images with their channels last; all of them where
            it is that of whole images. None for any other layout, or where nobody asked.
    """

    __slots__ = ("channel_slice", "handle", "key", "plain", "shape", "size")

    def __init__(self, shape: Shape, handle: int, size: int, *, is_plain: bool, key: Key) -> None:
        self.shape, self.handle, self.size = shape, handle, size
        self.plain, self.key = is_plain, key
        self.channel_slice: ChannelSlice | None = None

    def __repr__(self) -> str:
        return f"Layout({self.shape}, {'plain' if self.plain else self.key[1]})"


_known: dict[Key, Layout] = {}


def dims(values: Shape) -> Any:
    """Return ``values`` as oneDNN takes sizes."""
    return (c_int64 * max(1, len(values)))(*values)


def strided(library: Any, shape: Shape, strides: Shape) -> int:
    """Return a new memory descriptor of elements that lie at these distances.

    Raises:
        Declined: The shape has too many axes.
    """
    _check_axes(shape)
    function = library.dnnl_memory_desc_create_with_strides
    return create(function, len(shape), dims(shape), FLOAT32, dims(strides))


def plain(library: Any, shape: Shape) -> Layout:
    """Return the layout in C order.

    Raises:
        Declined: The shape has too many axes.
    """
    key: Key = (shape, "plain")
    found = _known.get(key)
    if found is None:
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        handle = strided(library, shape, strides)
        made = Layout(shape, handle, math.prod(shape), is_plain=True, key=key)
        found = _known.setdefault(key, made)
    return found


def part(library: Any, channel_slice: ChannelSlice) -> Layout:
    """Return the layout of a range of channels; a buffer begins with the first of them.

    Raises:
        Declined: The shape has too many axes.
    """
    whole = channel_slice.whole
    outer = (whole[0], *whole[2:], whole[1])
    strides = [math.prod(outer[axis + 1 :]) for axis in range(len(outer) - 1)]
    strides.insert(1, 1)
    if channel_slice.is_whole:
        handle = strided(library, whole, tuple(strides))
        try:
            found = layout_of(library, handle)
        finally:
            check(library.dnnl_memory_desc_destroy(handle))
        found.channel_slice = channel_slice
        return found
    parts = tuple(_parts(channel_slice.shape, tuple(strides), (), ()))
    key: Key = (channel_slice.shape, parts, channel_slice.shape, channel_slice.size, channel_slice)
    known = _known.get(key)
    if known is None:
        handle = strided(library, channel_slice.shape, tuple(strides))
        made = Layout(channel_slice.shape, handle, channel_slice.size, is_plain=False, key=key)
        made.channel_slice = channel_slice
        known = _known.setdefault(key, made)
    return known


def slabs(library: Any, layout: Layout, size: int) -> list[Layout]:
    """Return the layouts of ranges of the first axis that lie one after the other.

    Args:
        library: The library.
        layout: That of the whole.
        size: Elements of a range, about. It has a whole number of the layout's blocks.

    Returns:
        Those of the ranges in their order; the layout itself where its ranges lie otherwise. Where
        padding ends the first axis, the last range is a whole block with it.
    """
    if layout.plain or layout.size <= size:
        return [layout]
    parts, padded = layout.key[1:3]
    axis, blocks, step = parts[0]
    if axis != 0 or padded[1:] != layout.shape[1:] or blocks * step != layout.size:
        return [layout]
    block, most = padded[0] // blocks, max(1, size // step)
    whole, rest = divmod(layout.shape[0], block)
    counts = [min(most, whole - first) for first in range(0, whole, most)] + [1] * (rest > 0)
    made = {count: _leading(library, layout, count * block) for count in set(counts)}
    return [made[count] for count in counts]


def _leading(library: Any, layout: Layout, rows: int) -> Layout:
    """Return the layout of the first rows of the first axis, a whole number of blocks."""
    sizes = (rows, *layout.shape[1:])
    function = library.dnnl_memory_desc_create_submemory
    handle = create(function, layout.handle, dims(sizes), dims((0,) * len(sizes)))
    try:
        return layout_of(library, handle)
    finally:
        check(library.dnnl_memory_desc_destroy(handle))


def any_layout(library: Any, shape: Shape) -> int:
    """Return a new memory descriptor that leaves the layout to the primitive.

    Raises:
        Declined: The shape has too many axes.
    """
    _check_axes(shape)
    function = library.dnnl_memory_desc_create_with_tag
    return create(function, len(shape), dims(shape), FLOAT32, ANY)


def layout_with_tag(library: Any, shape: Shape, tag: int) -> Layout:
    """Return the layout that the library knows by a number.

    Raises:
        Declined: There is none with this number for so many axes.
    """
    try:
        function = library.dnnl_memory_desc_create_with_tag
        handle = create(function, len(shape), dims(shape), FLOAT32, tag)
    except DeviceError:
        message = f"format {tag}, which is not for {len(shape)} axes"
        raise Declined(message) from None
    try:
        return layout_of(library, handle)
    finally:
        check(library.dnnl_memory_desc_destroy(handle))


def layout_of(library: Any, descriptor: int) -> Layout:
    """Return the layout that a memory descriptor describes; 0 describes nothing.

    Raises:
        Declined: Only the library understands it, or it holds nothing.
    """
    axes = _number(library, descriptor, Query.NDIMS) if descriptor else 0
    if not axes or _number(library, descriptor, Query.FORMAT_KIND) != BLOCKED:
        message = "an opaque layout; Steps need one of strides and blocks"
        raise Declined(message)
    shape = _sizes(library, descriptor, Query.DIMS, axes)
    padded = _sizes(library, descriptor, Query.PADDED_DIMS, axes)
    strides = _sizes(library, descriptor, Query.STRIDES, axes)
    blocks = _number(library, descriptor, Query.INNER_COUNT)
    sizes = _sizes(library, descriptor, Query.INNER_BLOCKS, blocks)
    owners = _sizes(library, descriptor, Query.INNER_AXES, blocks)
    parts = _parts(padded, strides, sizes, owners)
    size = library.dnnl_memory_desc_get_size(descriptor) // 4
    if padded == shape and size == math.prod(shape) and parts == _plain_parts(shape):
        return plain(library, shape)
    key: Key = (shape, tuple(parts), padded, size)
    found = _known.get(key)
    if found is None:
        handle = create(library.dnnl_memory_desc_clone, descriptor)
        made = Layout(shape, handle, size, is_plain=False, key=key)
        found = _known.setdefault(key, made)
    return found


def _check_axes(shape: Shape) -> None:
    if len(shape) > MOST_AXES:
        message = f"{len(shape)} axes; oneDNN takes {MOST_AXES}"
        raise Declined(message)


def _parts(padded: Shape, strides: Shape, sizes: Shape, owners: Shape) -> list[tuple[int, ...]]:
    """Return (axis, count, stride) of all loops over the elements, outermost stride first.

    Loops of one turn are left out and loops that continue each other are joined, so that equal
    arrangements give equal lists.
    """
    outer = list(padded)
    inner, stride = [], 1
    for size, axis in zip(reversed(sizes), reversed(owners), strict=True):
        inner.append((axis, size, stride))
        stride *= size
        outer[axis] //= size
    loops = [(axis, outer[axis], strides[axis]) for axis in range(len(padded))]
    loops += reversed(inner)
    joined: list[tuple[int, ...]] = []
    for axis, count, step in sorted(
        (loop for loop in loops if loop[1] > 1), key=lambda loop: -loop[2]
    ):
        last = joined[-1] if joined else None
        if last is not None and last[0] == axis and last[2] == step * count:
            joined[-1] = (axis, last[1] * count, step)
        else:
            joined.append((axis, count, step))
    return joined


def _plain_parts(shape: Shape) -> list[tuple[int, ...]]:
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return _parts(shape, strides, (), ())


def _number(library: Any, descriptor: int, what: Query) -> int:
    value = c_int()
    check(library.dnnl_memory_desc_query(descriptor, what, ctypes.byref(value)))
    return value.value


def _sizes(library: Any, descriptor: int, what: Query, count: int) -> Shape:
    if not count:
        return ()
    values = POINTER(c_int64)()
    check(library.dnnl_memory_desc_query(descriptor, what, ctypes.byref(values)))
    return tuple(values[:count])
