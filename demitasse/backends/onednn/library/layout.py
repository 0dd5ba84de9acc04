"""Memory layouts of a shape: C order, channels last, blocks of channels.

Layouts are chosen by the primitives, never by us; here they are only told apart. Two layouts that
put every element in the same place are the same object. A shape of more than 12 axes is declined.

Without oneDNN's library (``library`` is None), Python keeps the descriptors: numbers of
:class:`Arrangement`. The kernels' layouts, copies and planning then work as with the library.
"""

import ctypes
import itertools
import math
from ctypes import POINTER, c_int, c_int64
from typing import Any, NamedTuple

from demitasse.backends.arrays import ChannelSlice
from demitasse.backends.onednn.library.constants import ANY, BLOCKED, FLOAT32, Query
from demitasse.backends.onednn.library.library import check, create
from demitasse.backends.step import Declined, decline_if
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
        channel_slice: The range of channels, all or some, of images with their channels last. None
            for any other layout, or before ``part`` was called.
    """

    __slots__ = ("channel_slice", "handle", "key", "plain", "shape", "size")

    def __init__(self, shape: Shape, handle: int, size: int, *, is_plain: bool, key: Key) -> None:
        self.shape, self.handle, self.size = shape, handle, size
        self.plain, self.key = is_plain, key
        self.channel_slice: ChannelSlice | None = None

    def __repr__(self) -> str:
        return f"Layout({self.shape}, {'plain' if self.plain else self.key[1]})"


_known: dict[Key, Layout] = {}


class Arrangement(NamedTuple):
    """Places of the elements of a shape: strides of blocks, and blocks of at most one axis.

    Attributes:
        shape: The logical shape.
        padded: The shape with padding, whole blocks.
        strides: Elements from one block to the next, for each axis; empty to leave them open.
        blocks: Elements of a block, in the order of the blocks' axes.
        axes: Axes of the blocks.
        first: Place of the first element.
    """

    shape: Shape
    padded: Shape
    strides: Shape
    blocks: Shape = ()
    axes: Shape = ()
    first: int = 0

    @property
    def size(self) -> int:
        """Elements of a buffer, padding included."""
        inner = [1] * len(self.shape)
        for axis, block in zip(self.axes, self.blocks, strict=True):
            inner[axis] = block
        ends = zip(self.padded, inner, self.strides, strict=True)
        return max((n // block * stride for n, block, stride in ends), default=1)

    def block_of(self, axis: int) -> int:
        """Return the size of an axis's blocks; 1 without blocks."""
        return dict(zip(self.axes, self.blocks, strict=True)).get(axis, 1)


_arrangements: dict[int, Arrangement] = {}
_numbers = itertools.count(1)


def _register(arrangement: Arrangement) -> int:
    """Return a new descriptor that Python keeps."""
    number = next(_numbers)
    _arrangements[number] = arrangement
    return number


def arrangement_of(descriptor: int) -> Arrangement:
    """Return the arrangement of a descriptor that Python keeps."""
    return _arrangements[descriptor]


def release(library: Any, descriptor: int) -> None:
    """Destroy a descriptor."""
    if library is None:
        del _arrangements[descriptor]
    else:
        check(library.dnnl_memory_desc_destroy(descriptor))


def dims(values: Shape) -> Any:
    """Return ``values`` as oneDNN takes sizes."""
    return (c_int64 * max(1, len(values)))(*values)


def strided(library: Any, shape: Shape, strides: Shape) -> int:
    """Return a new memory descriptor of elements that lie at these distances."""
    _check_axes(shape)
    if library is None:
        return _register(Arrangement(shape, shape, strides))
    function = library.dnnl_memory_desc_create_with_strides
    return create(function, len(shape), dims(shape), FLOAT32, dims(strides))


def c_order(shape: Shape) -> Shape:
    """Return the strides of C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def plain(library: Any, shape: Shape) -> Layout:
    """Return the layout in C order."""
    key: Key = (shape, "plain")
    found = _known.get(key)
    if found is None:
        handle = strided(library, shape, c_order(shape))
        made = Layout(shape, handle, math.prod(shape), is_plain=True, key=key)
        found = _known.setdefault(key, made)
    return found


def part(library: Any, channel_slice: ChannelSlice) -> Layout:
    """Return the layout of a range of channels; a buffer begins with the first of them."""
    whole = channel_slice.whole
    outer = (whole[0], *whole[2:], whole[1])
    strides = [*c_order(outer)[:-1]]
    strides.insert(1, 1)
    if channel_slice.is_whole:
        handle = strided(library, whole, tuple(strides))
        found = _take(library, handle)
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

    A range has about ``size`` elements, and a whole number of the layout's blocks.

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
    made = {}
    for count in set(counts):
        sizes = (count * block, *layout.shape[1:])
        handle = descriptor_of_part(library, layout, sizes, (0,) * len(sizes))
        made[count] = _take(library, handle)
    return [made[count] for count in counts]


def descriptor_of_part(library: Any, whole: Layout, shape: Shape, first: Shape) -> int:
    """Return a new descriptor of a part of a buffer.

    ``first`` is the index of the part's first element, for each axis.

    Raises:
        Declined: The part begins or ends within a block.
    """
    message = f"a part from {first} on; blocks of channels cannot be cut there"
    if library is not None:
        try:
            function = library.dnnl_memory_desc_create_submemory
            return create(function, whole.handle, dims(shape), dims(first))
        except DeviceError:
            raise Declined(message) from None
    known = arrangement_of(whole.handle)
    place, padded = known.first, []
    for axis, (begin, length) in enumerate(zip(first, shape, strict=True)):
        block, end = known.block_of(axis), begin + length
        if begin % block or (length % block and end != known.shape[axis]):
            raise Declined(message)
        place += begin // block * known.strides[axis]
        padded.append(-(-length // block) * block)
    return _register(known._replace(shape=shape, padded=tuple(padded), first=place))


def blocked(library: Any, shape: Shape, axis: int, block: int) -> Layout:
    """Return the layout with blocks of an axis innermost and the others in C order; no library.

    The last block is filled up with zeros.
    """
    padded = (*shape[:axis], -(-shape[axis] // block) * block, *shape[axis + 1 :])
    counts = (*padded[:axis], padded[axis] // block, *padded[axis + 1 :])
    strides = tuple(block * stride for stride in c_order(counts))
    handle = _register(Arrangement(shape, padded, strides, (block,), (axis,)))
    return _take(library, handle)


def any_layout(library: Any, shape: Shape) -> int:
    """Return a new memory descriptor that leaves the layout to the primitive."""
    _check_axes(shape)
    if library is None:
        return _register(Arrangement(shape, shape, ()))
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
    return _take(library, handle)


def layout_of(library: Any, descriptor: int) -> Layout:
    """Return the layout that a memory descriptor describes; 0 describes nothing.

    Raises:
        Declined: Only the library understands it, or it holds nothing.
    """
    shape, padded, strides, sizes, owners, _ = found = _find_arrangement(library, descriptor)
    parts = _parts(padded, strides, sizes, owners)
    size = found.size if library is None else library.dnnl_memory_desc_get_size(descriptor) // 4
    whole = padded == shape and size == math.prod(shape)
    if whole and parts == _parts(shape, c_order(shape), (), ()):
        return plain(library, shape)
    key: Key = (shape, tuple(parts), padded, size)
    known = _known.get(key)
    if known is None:
        if library is None:
            handle = _register(found)
        else:
            handle = create(library.dnnl_memory_desc_clone, descriptor)
        made = Layout(shape, handle, size, is_plain=False, key=key)
        known = _known.setdefault(key, made)
    return known


def _take(library: Any, descriptor: int) -> Layout:
    """Return the layout that a memory descriptor describes, and destroy the descriptor."""
    try:
        return layout_of(library, descriptor)
    finally:
        release(library, descriptor)


def _find_arrangement(library: Any, descriptor: int) -> Arrangement:
    """Return the arrangement that a memory descriptor describes."""
    if library is None:
        known = _arrangements.get(descriptor)
        if known is not None and (known.strides or not known.shape):
            return known
        axes = 0
    else:
        axes = _number(library, descriptor, Query.NDIMS) if descriptor else 0
    message = "an opaque layout; Steps need one of strides and blocks"
    decline_if(not axes or _number(library, descriptor, Query.FORMAT_KIND) != BLOCKED, message)
    blocks = _number(library, descriptor, Query.INNER_COUNT)
    return Arrangement(
        _sizes(library, descriptor, Query.DIMS, axes),
        _sizes(library, descriptor, Query.PADDED_DIMS, axes),
        _sizes(library, descriptor, Query.STRIDES, axes),
        _sizes(library, descriptor, Query.INNER_BLOCKS, blocks),
        _sizes(library, descriptor, Query.INNER_AXES, blocks),
    )


def _check_axes(shape: Shape) -> None:
    decline_if(len(shape) > MOST_AXES, f"{len(shape)} axes; oneDNN takes {MOST_AXES}")


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
