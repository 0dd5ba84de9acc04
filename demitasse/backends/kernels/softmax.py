"""Softmax over few classes of many rows: a vector holds one class of as many rows.

A row's elements lie side by side, or in planes of which each is a class: those of an image's pixels
in C order. A softmax whose exponential makes a number of everything would hide that a net has
diverged: ``NanRows`` writes NaN where a row holds NaN or infinity.
"""

from math import inf

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output, Struct
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    choose,
    chunk,
    clamp_min,
    fma,
    minimum,
)
from demitasse.backends.kernels.math_functions import exp
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

MOST = 32
"""Greatest number of classes; with more classes, a vector can hold a row's classes."""

FEWEST_EACH = 1 << 11
"""Elements of a thread at least."""


class ClassFields(Struct):
    """Rows of few elements, one behind the other, or in planes."""

    x: Address
    y: Output
    images: Word
    """Number of images of planes; 1 where rows are contiguous."""
    rows: Word
    """Rows of each image, at least as many as a vector holds."""
    length: Word
    """Elements of a row."""


@ClassFields.kernel("few_classes")
def _kernel(k: Kernel, f: ClassFields, *, planes: bool) -> None:
    width = k.width
    none, lowest, one, columns = k.constant(0.0), k.constant(-inf), k.constant(1.0), k.scratch(MOST)
    row_bytes, class_bytes = (FLOAT, f.rows * FLOAT) if planes else (f.length * FLOAT, FLOAT)
    groups = (f.rows + (width - 1)) // width
    begin, end = chunk(f.images * groups, *k.thread())
    with k.loop(end, begin) as group:
        # the last group begins early; what is then computed twice is the same
        row = minimum(group.i % groups * width, f.rows - width)
        first = row * row_bytes + group.i // groups * f.rows * f.length * FLOAT
        with k.loop(f.length, vectors=[lowest]) as each:
            at = f.x + first + each.i * class_bytes
            if planes:
                value = k.load(at)
            else:
                value = k.gather([at + row_bytes * lane for lane in range(width)])
            k.store(value, columns + each.i * k.vector_bytes)
            [largest] = each.vectors
            each.vectors = [choose(value > largest, value, largest)]
        [largest] = each.vectors
        with k.loop(f.length, vectors=[none]) as each:
            place = columns + each.i * k.vector_bytes
            value = exp(k, k.load(place) - largest)  # NaN of NaN, and of infinities
            k.store(value, place)
            each.vectors = [each.vectors[0] + value]
        by = one / each.vectors[0]
        with k.loop(f.length) as each:
            place, at = columns + each.i * k.vector_bytes, f.y + first + each.i * class_bytes
            value = k.load(place) * by
            if planes:
                k.store(value, at)
            else:
                k.store(value, place)
                for lane in range(width):
                    k.store(k.load_float(place + lane * FLOAT), at + row_bytes * lane)


def takes(rows: int, length: int, width: int) -> bool:
    """Return whether rows are many enough, and short enough."""
    return rows >= width and length <= MOST


class SmallAxisSoftmax(TunedKernel):
    """Softmax of rows; a row that holds NaN or infinity is NaN.

    Args:
        rows: Number of rows, contiguous or in each image.
        length: Elements of a row.
        images: Number of images of planes; None for contiguous rows.
    """

    kernel = "rows"

    def __init__(self, rows: int, length: int, tuning: Tuning, images: int | None = None) -> None:
        if not takes(rows, length, tuning.width):
            message = (
                f"{rows} rows of {length} were given; give {tuning.width} or more, of up to {MOST}"
            )
            raise ValueError(message)
        self.tuning, self._kernel = tuning, _kernel(tuning.width, planes=images is not None)
        count = 1 if images is None else images
        self._threads = max(1, min(tuning.threads, count * rows * length // FEWEST_EACH))
        self._arguments = Arguments(ClassFields.values(images=count, rows=rows, length=length))

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, another array than ``x``. Shapes: (images * rows * length,)."""
        self._arguments.run(self._kernel, self._threads, {"x": x, "y": y})


FEWEST_NAN_EACH = 1 << 15
"""Elements of a thread at least: to meet others takes as long as to look at so many."""


class NanRowsFields(Struct):
    """Rows, and what was made of them."""

    x: Address
    y: Output
    rows: Word
    length: Word
    """Elements of a row."""


@NanRowsFields.kernel("lost_rows")
def _nan_kernel(k: Kernel, f: NanRowsFields) -> None:
    none, noted = k.constant(0.0), k.scratch(1)
    row_bytes = f.length * FLOAT
    whole_bytes = row_bytes // k.vector_bytes * k.vector_bytes

    def marked(mark: Vector, x: Vector) -> Vector:
        """Return 0, or NaN from where x was NaN or infinite; minus infinity has no part in it."""
        return fma(clamp_min(x, none), none, mark)

    begin, end = chunk(f.rows, *k.thread())
    with k.loop(end, begin) as row:
        x, y = f.x + row.i * row_bytes, f.y + row.i * row_bytes
        with k.loop(whole_bytes, 0, k.vector_bytes, vectors=[none]) as place:
            place.vectors = [marked(place.vectors[0], k.load(x + place.i))]
        with k.loop(row_bytes, whole_bytes, FLOAT, vectors=place.vectors) as rest:
            rest.vectors = [marked(rest.vectors[0], k.broadcast(x + rest.i))]
        k.store(rest.vectors[0], noted)
        mark = none
        for lane in range(k.width):
            mark = mark + k.broadcast(noted + FLOAT * lane)
        k.store(mark, noted)
        is_lost = k.load_word(noted) // 2 > 0  # as an integer it is 0, or that of a NaN
        with k.when(is_lost), k.loop(row_bytes, 0, FLOAT) as place:
            k.store(k.load_float(noted), y + place.i)


class NanRows(TunedKernel):
    """Writes NaN into every row of results whose contiguous row of x holds NaN or infinity."""

    kernel = "NaN"

    def __init__(self, rows: int, length: int, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _nan_kernel(tuning.width)
        self._threads = max(1, min(tuning.threads, rows * length // FEWEST_NAN_EACH))
        self._arguments = Arguments(NanRowsFields.values(rows=rows, length=length))

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Look at the rows of ``x``; write to those of ``y``, which lie as they do."""
        self._arguments.run(self._kernel, self._threads, {"x": x, "y": y})
