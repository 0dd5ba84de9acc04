"""Filters at the points: made from a parameter, and again when it has changed; and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import address, aligned
from demitasse.backends.kernels.language import Arguments, compiled
from demitasse.backends.kernels.language.kernel import FLOAT, WIDE, Kernel, Value
from demitasse.backends.kernels.winograd.matrices import matrices
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.kernels.winograd.transforms import transform
from demitasse.backends.onednn.steps.conv_operands import refreshed

__all__ = ["FilterGradient", "Filters"]

FIELDS = (
    "weights", "points", "group", "point", "groups", "inputs", "outputs", "group_step",
    "input_step", "output_step", "panels", "count", "parts", "part",
)  # fmt: skip
"""Addresses of the parameter, in C order, and of its values at the points; elements from one group
to the next there, and from one point to the next. In a group: inputs and outputs, and elements of
the parameter from one to the next; the table of the panels, vectors and first output of each, and
how many there are. For the way back: how many stacks of values are summed, and elements from one to
the next."""


@cache
def _kernel(taps: int, width: int, *, turned: bool = False, back: bool = False) -> int:
    """Return the address of a kernel for filters of so many taps.

    Args:
        taps: Their rows and columns.
        width: Filters of a vector.
        turned: Whether they are turned round.
        back: Whether points are taken to taps.
    """
    name = f"{'taps' if back else 'filters'}{taps}x{width}{'turned' if turned else ''}"
    matrix = matrices(taps).filter
    if turned:
        matrix = np.ascontiguousarray(matrix[:, ::-1])

    def write(module: Any) -> None:
        (_write_taps if back else _write_filters)(module, name, matrix, width)

    return compiled(name, write, name)[name]


@contextmanager
def _vectors(k: Kernel, f: Any) -> Iterator[tuple[Value, Value, Value]]:
    """Write what is done to each vector of filters of a channel; each thread has some channels.

    Yields:
        The first filter's number, where its taps begin, and where the vector at the first point is.
    """
    begin, end = k.part(f.inputs, *k.thread())
    with k.loop(f.groups) as group, k.loop(f.count) as panel:
        entry = k.add(f.panels, k.times(panel.i, 2 * WIDE))
        vectors, first = (k.load_word(k.add(entry, WIDE * word)) for word in range(2))
        values = k.add(k.times(group.i, f.group), k.times(first, f.inputs))
        # a panel's rows lie one behind the other, and so do the taps of a filter's channels
        with k.loop(end, begin) as channel, k.loop(vectors) as vector:
            output = k.add(first, k.times(vector.i, k.width))
            place = k.add(k.times(channel.i, vectors), vector.i)
            taps = k.add(
                k.times(group.i, f.group_step),
                k.times(output, f.output_step),
                k.times(channel.i, f.input_step),
            )
            yield (
                output,
                k.at(f.weights, taps),
                k.at(f.points, k.add(values, k.times(place, k.width))),
            )


def _write_filters(module: Any, name: str, matrix: np.ndarray, width: int) -> None:
    side, taps = matrix.shape
    forth = transform(module, "forth", matrix, width)
    k = Kernel(module, name, 1, width, exported=True)
    f, size = k.fields(FIELDS), FLOAT * width
    tile = k.scratch(taps * taps)
    own = k.scratch(side * taps)
    last = k.minus(f.outputs, 1)
    with _vectors(k, f) as (output, first, point):
        # beyond the last one, the last one again
        filters = [
            k.add(
                first,
                k.bytes(k.times(k.minus(k.least(k.add(output, n), last), output), f.output_step)),
            )
            for n in range(width)
        ]
        for tap in range(taps * taps):
            k.store(k.gather([k.add(one, FLOAT * tap) for one in filters]), k.add(tile, tap * size))
        k.call(forth, tile, taps * size, size, point, k.bytes(f.point), own)
    k.done()


def _write_taps(module: Any, name: str, matrix: np.ndarray, width: int) -> None:
    side, taps = matrix.shape
    back = transform(module, "back", np.ascontiguousarray(matrix.T), width)
    k = Kernel(module, name, 1, width, exported=True)
    f, size = k.fields(FIELDS), FLOAT * width
    total, result, own = k.scratch(side * side), k.scratch(taps * taps), k.scratch(side * taps)
    with _vectors(k, f) as (output, first, points):
        with k.loop(side * side) as point:
            here = k.at(points, k.times(point.i, f.point))
            with k.loop(f.parts, 1, carry=[k.load(here)]) as part:
                more = k.load(k.at(here, k.times(part.i, f.part)))
                part.next = [k.plus(part.values[0], more)]
            k.store(part.out[0], k.add(total, k.times(point.i, size)))
        k.call(back, total, side * size, size, result, size, own)
        with k.loop(k.least(width, k.minus(f.outputs, output))) as lane:
            target = k.at(first, k.times(lane.i, f.output_step))
            for tap in range(taps * taps):
                number = k.load_number(k.add(result, tap * size, k.bytes(lane.i)))
                k.store(number, k.add(target, FLOAT * tap))
    k.done()


def _values(tiling: Tiling, table: np.ndarray, *, backward: bool = False) -> dict[str, int]:
    """Return the fields that follow from the sizes.

    Backward, what the outputs are made of are the convolution's own outputs.
    """
    groups, area = tiling.groups, tiling.matrices.taps**2
    inputs, outputs = tiling.channels // groups, tiling.filters // groups
    return {
        "group": tiling.group, "point": tiling.weights, "groups": groups, "inputs": inputs,
        "outputs": outputs, "group_step": inputs * outputs * area,
        "input_step": outputs * area if backward else area,
        "output_step": area if backward else inputs * area,
        "panels": address(table), "count": len(table),
    }  # fmt: skip


class Filters:
    """The filters of a convolution at all points, as matrices (points, groups, inputs, outputs).

    Args:
        tiling: The convolution, or that which is the gradient of its input.
        backward: For that gradient: the filters are turned round.

    Attributes:
        points: Them. Shape: (points * tiling.weights,).
    """

    def __init__(self, tiling: Tiling, *, backward: bool = False) -> None:
        self.threads = tiling.threads
        self.kernel = _kernel(tiling.matrices.taps, tiling.width, turned=backward)
        self.points = aligned(tiling.points * tiling.weights)
        self._table = np.array(tiling.panels, np.int64)
        values = _values(tiling, self._table, backward=backward)
        self.arguments = Arguments(FIELDS, **values, points=address(self.points))
        self.version = (-1, -1)

    def of(self, blob: Any) -> np.ndarray:
        """Return the filters of a parameter, transformed."""
        self.version = refreshed(blob.data_memory, self.version, self.update)
        return self.points

    def update(self, weights: np.ndarray) -> None:
        """Transform ``weights``, in C order."""
        self.arguments.set(weights=address(weights))
        self.arguments.run(self.kernel, self.threads)


class FilterGradient:
    """From the gradient at the points, of which each lane has a part, to that of the parameter.

    Args:
        tiling: The convolution.
        parts: How many parts there are.
    """

    def __init__(self, tiling: Tiling, parts: int) -> None:
        self.threads = tiling.threads
        self.kernel = _kernel(tiling.matrices.taps, tiling.width, back=True)
        self._table = np.array(tiling.panels, np.int64)
        values = _values(tiling, self._table)
        self.arguments = Arguments(
            FIELDS, **values, parts=parts, part=tiling.points * tiling.weights
        )

    def __call__(self, points: int, target: int) -> None:
        """Write the gradient to ``target``, in C order."""
        self.arguments.set(points=points, weights=target)
        self.arguments.run(self.kernel, self.threads)
