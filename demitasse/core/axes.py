"""Axes of a blob: sizes, counts, legacy names, offsets of elements.

Source: Caffe, ``include/caffe/blob.hpp``.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from demitasse.errors import ErrorCode, ShapeError

MAX_AXES = 32
MAX_COUNT = 1 << 47  # largest number of elements in a blob
LEGACY = ("num", "channels", "height", "width")


def shape_string(shape: Sequence[int]) -> str:
    """Return ``"64 3 227 227 (9893568)"``: the axes and the count."""
    return "".join(f"{n} " for n in shape) + f"({math.prod(shape)})"


class Axes:
    """A shape with Caffe's accessors.

    Args:
        shape: Sizes of the axes, each at least 0; at most 32 of them.
        name: Name of the blob, for messages.

    Raises:
        ShapeError: An axis is negative, or there are too many.
    """

    def __init__(self, shape: Sequence[int] = (), name: str = "") -> None:
        self.name = name
        self._shape: tuple[int, ...] = checked_shape(shape)
        self._count = math.prod(self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._shape

    @property
    def count(self) -> int:
        """Number of elements: the product of the axes, 1 for a scalar."""
        return self._count

    @property
    def num_axes(self) -> int:
        """Number of axes."""
        return len(self._shape)

    @property
    def shape_string(self) -> str:
        """The shape and the count, as Caffe's log shows them."""
        return shape_string(self._shape)

    def _label(self) -> str:
        return f"blob {self.name!r}" if self.name else "blob"

    def _fault(self, code: ErrorCode, text: str, **details: object) -> ShapeError:
        message = f"{text} {self._label()} {self.shape_string}"
        return ShapeError(message, code=code, blob=self.name, **details)

    def canonical_axis(self, axis: int) -> int:
        """Return ``axis`` counted from the front; -1 is the last.

        Raises:
            ShapeError: The blob has no such axis.
        """
        n = self.num_axes
        if not -n <= axis < n:
            text = f"axis {axis} is none of the {n} axes of"
            raise self._fault(ErrorCode.OUT_OF_RANGE, text, axis=axis, axes=n)
        return axis + n if axis < 0 else axis

    def count_between(self, start: int, end: int) -> int:
        """Return the product of the axes ``start`` to ``end``, the latter excluded.

        Raises:
            ShapeError: Not 0 <= start <= end <= num_axes.
        """
        if not 0 <= start <= end <= self.num_axes:
            text = f"no axes [{start}, {end}) in"
            raise self._fault(ErrorCode.OUT_OF_RANGE, text)
        return math.prod(self._shape[start:end])

    def count_from(self, start: int) -> int:
        """Return the product of the axes ``start`` and after."""
        return self.count_between(start, self.num_axes)

    def count_to(self, end: int) -> int:
        """Return the product of the axes before ``end``."""
        return self.count_between(0, end)

    def legacy_shape(self, index: int) -> int:
        """Return axis ``index`` of the 4-D view (num, channels, height, width); 1 where absent.

        Raises:
            ShapeError: The blob has more than 4 axes, or the index is not in [-4, 4).
        """
        if self.num_axes > 4 or not -4 <= index < 4:
            text = f"blobs of at most 4 axes have legacy axes -4 to 3; got axis {index} of"
            raise self._fault(ErrorCode.OUT_OF_RANGE, text, axis=index)
        if index >= self.num_axes or index < -self.num_axes:
            return 1
        return self._shape[index]

    num = property(lambda self: self.legacy_shape(0), doc="Legacy axis 0.")
    channels = property(lambda self: self.legacy_shape(1), doc="Legacy axis 1.")
    height = property(lambda self: self.legacy_shape(2), doc="Legacy axis 2.")
    width = property(lambda self: self.legacy_shape(3), doc="Legacy axis 3.")

    def offset(self, *indices: int | Sequence[int]) -> int:
        """Return the flat index of an element; missing trailing indices are 0.

        Raises:
            ShapeError: Too many indices, or one outside its axis.
        """
        given = [int(i) for i in flat_list(indices)]
        if len(given) > self.num_axes:
            text = f"{len(given)} indices for"
            raise self._fault(ErrorCode.COUNT_MISMATCH, text, got=len(given))
        position = 0
        for axis, size in enumerate(self._shape):
            index = given[axis] if axis < len(given) else 0
            if not 0 <= index < size:
                text = f"index {index} is outside axis {axis} of"
                raise self._fault(ErrorCode.OUT_OF_RANGE, text, axis=axis)
            position = position * size + index
        return position


def flat_list(values: Iterable[Any]) -> list[Any]:
    """Return the items; a single iterable argument is unpacked."""
    given = list(values)
    if len(given) == 1 and isinstance(given[0], Iterable):
        return list(given[0])
    return given


def check_range(name: str, low: float, high: float, stop: int, counted: str) -> None:
    """Raise ShapeError unless all indices of a blob, ``low`` to ``high``, are in [0, ``stop``).

    NaN is not. ``counted`` names the items that the indices count.
    """
    if not (low > -1 and high < stop):
        wrong = low if low <= -1 else high
        message = (
            f"bottom {name!r} holds the index {wrong:g}, but there are {stop} {counted}, "
            "counted from 0"
        )
        raise ShapeError(message, code=ErrorCode.OUT_OF_RANGE, blob=name, got=float(wrong))


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of integers.

    Raises:
        ShapeError: The shape is not of whole numbers, negative, or too large.
    """
    try:
        sizes = tuple(int(n) for n in shape)
        if sizes != tuple(shape):
            raise ValueError
    except (OverflowError, TypeError, ValueError):
        message = f"a shape consists of whole numbers, got {shape!r}"
        raise ShapeError(message, code=ErrorCode.INVALID) from None
    if len(sizes) > MAX_AXES:
        message = f"a blob has at most {MAX_AXES} axes, got {len(sizes)}"
        raise ShapeError(message, code=ErrorCode.LIMIT, axes=len(sizes))
    if any(n < 0 for n in sizes):
        message = f"a blob cannot have a negative axis: {sizes}"
        raise ShapeError(message, code=ErrorCode.OUT_OF_RANGE, shape=sizes)
    if math.prod(sizes) > MAX_COUNT:
        message = f"a blob has at most {MAX_COUNT} elements; {sizes} has {math.prod(sizes)}"
        raise ShapeError(message, code=ErrorCode.LIMIT, shape=sizes)
    return sizes
