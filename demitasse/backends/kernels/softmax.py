"""Softmax along an axis, and its gradient.

A vector holds elements of a row, or one class of adjacent rows. A softmax whose exponential makes a
number of everything would hide that a net has diverged: a row that holds NaN or infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf
from typing import Literal, NamedTuple

from demitasse.backends.kernels.bound import BoundKernel, each_vector, threads_for
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, OptionalAddress, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    clamp_min,
    fma,
    horizontal_sum,
    minimum,
)
from demitasse.backends.kernels.math_functions import exp
from demitasse.backends.kernels.tuning import Tuning

MOST_CLASSES = 32
"""Greatest number of classes of many rows; with more classes, a vector can hold a row's classes."""

VECTORS = 4
"""Vectors that are computed at a time: their sums do not wait for each other, and of planes, which
lie far apart, more than a cache line is read."""

FEWEST_EACH = 1 << 11
"""Elements of a thread at least."""


class SoftmaxFields(Struct):
    """Rows of elements that lie side by side, or in planes of which each is a class."""

    x: Address
    """The input, or the result whose gradient is computed."""
    dy: OptionalAddress
    """The gradient of the result."""
    y: Output
    outer: Word
    """Number of images of planes, or of rows."""
    length: Word
    """Elements of a row."""
    inner: Word
    """Elements of a plane."""


Kind = Literal["rows", "planes", "few"]
"""Rows of elements; planes; or short rows, of which a vector holds one class of as many rows."""

Join = Callable[[Vector, Vector], Vector]


class _Rows(NamedTuple):
    """One row, or vectors of rows in planes, in the kernel.

    Attributes:
        start: Bytes from the first element to the row's.
        planes: Number of vectors in planes; 0 for one row.
        some: Rows that exist of one vector of rows; None for all.
    """

    k: Kernel
    f: SoftmaxFields
    start: Word
    planes: int
    some: Condition | None

    def load(self, array: Word, place: Word, otherwise: float = 0.0) -> Vector:
        """Return a vector of an array, with another number in place of what does not exist."""
        vector = self.k.load(array + place, self.some)
        return vector if self.some is None else choose(self.some, vector, otherwise)

    def store(self, vector: Vector, place: Word) -> None:
        """Write a vector of the result."""
        self.k.store(vector, self.f.y + place, self.some)

    def each(
        self, join: Join, start_value: float, body: Callable[[_Rows, int, Vector, Word], Vector]
    ) -> list[Vector]:
        """Write a loop over the elements, and return what is joined of each row.

        ``body`` takes the rows, the number of a vector, what is joined so far, and bytes to the
        elements.
        """
        k, f, start, begin = self.k, self.f, self.start, self.k.constant(start_value)
        if self.planes:
            with k.loop(f.length, vectors=[begin] * self.planes, words=[start]) as element:
                [at] = element.words
                pairs = enumerate(element.vectors)
                element.vectors = [body(self, i, v, at + i * k.vector_bytes) for i, v in pairs]
                element.words = [at + f.inner * FLOAT]
            return element.vectors

        def rest(at: Word, some: Condition | None, found: Vector) -> list[Vector]:
            return [body(self._replace(some=some), 0, found, start + at)]

        step = VECTORS * k.vector_bytes
        whole = f.length * FLOAT // step * step
        with k.loop(whole, 0, step, vectors=[begin] * VECTORS) as element:
            at, pairs = start + element.i, enumerate(element.vectors)
            element.vectors = [body(self, 0, v, at + i * k.vector_bytes) for i, v in pairs]
        [found] = each_vector(k, f.length, rest, whole, [reduce(join, element.vectors)])
        return [horizontal_sum(found, join)]


def _each_row(k: Kernel, f: SoftmaxFields, kind: Kind, body: Callable[[_Rows], None]) -> None:
    """Write a loop over this thread's rows, or vectors of rows."""
    most, width = VECTORS * k.width, k.width
    if kind == "rows":
        with k.parallel_loop(f.outer) as [row]:
            body(_Rows(k, f, row * f.length * FLOAT, 0, None))
    elif kind == "planes":
        with k.parallel_loop(f.outer, (f.inner + (most - 1)) // most) as (image, group):
            first = group * most
            start = image * f.inner * f.length * FLOAT
            with k.cases(choose(f.inner - first >= most, 1, 0)) as case:
                case(1)
                body(_Rows(k, f, start + first * FLOAT, VECTORS, None))
                case(0)
                with k.loop(f.inner, first, width) as few:
                    some = k.lane_mask(f.inner - few.i)
                    body(_Rows(k, f, start + few.i * FLOAT, 1, some))
    else:
        columns, row_bytes, turned = k.scratch(MOST_CLASSES), f.length * FLOAT, SoftmaxFields()
        vars(turned).update(x=columns, y=columns, length=f.length, inner=k.word(width))
        with k.parallel_loop((f.outer + (width - 1)) // width) as [group]:
            # the last group begins early; what is then computed twice is the same
            first = minimum(group * width, f.outer - width) * row_bytes
            with k.loop(f.length) as each:
                at = f.x + first + each.i * FLOAT
                rows = k.gather([at + row_bytes * lane for lane in range(width)])
                k.store(rows, columns + each.i * k.vector_bytes)
            body(_Rows(k, turned, k.word(0), 1, None))
            with k.loop(f.length) as each:
                place, at = columns + each.i * k.vector_bytes, f.y + first + each.i * FLOAT
                for lane in range(width):
                    k.store(k.load_float(place + lane * FLOAT), at + row_bytes * lane)


@SoftmaxFields.kernel("softmax")
def _kernel(k: Kernel, f: SoftmaxFields, kind: Kind) -> None:
    def write(rows: _Rows) -> None:
        x, y = rows.f.x, rows.f.y

        def larger(some: _Rows, _: int, found: Vector, at: Word) -> Vector:
            return clamp_min(found, some.load(x, at, -inf))

        largest = rows.each(clamp_min, -inf, larger)

        def add(some: _Rows, row: int, total: Vector, at: Word) -> Vector:
            value = exp(some.load(x, at, -inf) - largest[row])  # NaN of NaN and infinity
            some.store(value, at)
            return total + value

        shares = [1.0 / total for total in rows.each(Vector.__add__, 0.0, add)]

        def scale(some: _Rows, row: int, carried: Vector, at: Word) -> Vector:
            some.store(some.load(y, at) * shares[row], at)
            return carried

        rows.each(Vector.__add__, 0.0, scale)

    _each_row(k, f, kind, write)


@SoftmaxFields.kernel("softmax_gradient")
def _gradient_kernel(k: Kernel, f: SoftmaxFields, kind: Kind) -> None:
    def write(rows: _Rows) -> None:
        def add(some: _Rows, _: int, total: Vector, at: Word) -> Vector:
            return fma(some.load(f.x, at), some.load(f.dy, at), total)

        totals = rows.each(Vector.__add__, 0.0, add)

        def multiply(some: _Rows, row: int, carried: Vector, at: Word) -> Vector:
            slope = some.load(f.dy, at) - totals[row]
            some.store(some.load(f.x, at) * slope, at)
            return carried

        rows.each(Vector.__add__, 0.0, multiply)

    _each_row(k, f, kind, write)


class Softmax:
    """Softmax of rows; a row that holds NaN or infinity is NaN.

    Shapes: (outer, length, inner), of which ``length`` are the elements of a row.

    Attributes:
        forward: Takes x and y, another array than x.
        backward: Takes y, dy and dx, the gradient of the input.
    """

    def __init__(self, outer: int, length: int, inner: int, tuning: Tuning) -> None:
        width = tuning.width
        kind: Kind = "planes" if inner > 1 else "rows"
        few = "few_classes" not in tuning.without and outer >= width and length <= MOST_CLASSES
        few = few and kind == "rows"
        kernel, name = _kernel(width, "few" if few else kind), "softmax" + " of few" * few
        sizes = {"outer": outer, "length": length, "inner": inner}
        threads = threads_for(tuning, outer * length * inner, FEWEST_EACH)
        values = SoftmaxFields.values(dy=None, **sizes)
        self.forward = BoundKernel(name, kernel, values, tuning, threads)
        self.backward = BoundKernel(
            "softmax", _gradient_kernel(width, kind), SoftmaxFields.values(**sizes),
            tuning, threads,
        )  # fmt: skip
