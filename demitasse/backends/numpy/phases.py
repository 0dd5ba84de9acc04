"""Planes split by stride, so that the elements under one tap are contiguous.

With stride 2, for example, even and odd columns go to separate arrays, the phases. A tap then reads
one phase from some element on, and whole planes are compared in a few long operations.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine

__all__ = ["Phases"]

Shape = tuple[int, ...]


class Phases:
    """Layout of the phases of a plane.

    Args:
        engine: Lends working memory.
        op: The pooling.
        spatial: Size of a plane.
        positions: How many windows there are along each axis.

    Attributes:
        size: Size of a phase: all output positions, and room for the later taps of the last window.
        taps: For each tap, in order, its phase and how far along it begins.
        windows: Index of the first tap's positions in (planes, *size).
    """

    def __init__(self, engine: Engine, op: ops.Pool, spatial: Shape, positions: Shape) -> None:
        self.engine = engine
        sides = list(zip(op.kernel, op.stride, strict=True))
        self.dtype = op.dtype
        self.size = tuple(o + (k - 1) // s for o, (k, s) in zip(positions, sides, strict=True))
        residues = list(product(*(range(min(k, s)) for k, s in sides)))
        steps = [math.prod(self.size[axis + 1 :]) for axis in range(len(self.size))]
        self.taps = []
        for tap in product(*(range(k) for k in op.kernel)):
            pairs = [divmod(t, s) for t, s in zip(tap, op.stride, strict=True)]
            shift = sum(far * step for (far, _), step in zip(pairs, steps, strict=True))
            self.taps.append((residues.index(tuple(r for _, r in pairs)), shift))
        self.windows = (slice(None), *(slice(0, o) for o in positions))
        self._copies = [self._copy(residue, op, spatial) for residue in residues]
        self._whole = set(op.stride) == {1} and self.size == spatial and not any(op.pad)

    def lay(self, planes: np.ndarray, around: float) -> list[np.ndarray]:
        """Return the phases of some planes, each as one row.

        Shapes: (planes, *spatial) -> (planes * prod(size),) each.
        """
        if self._whole:
            return [planes.reshape(-1)]
        rows = []
        for i, (target, source) in enumerate(self._copies):
            phase = self.engine.scratch(f"phase{i}", (len(planes), *self.size), self.dtype)
            if phase[target].shape != phase.shape:
                phase.fill(around)
            phase[target] = planes[source]
            rows.append(phase.reshape(-1))
        return rows

    def _copy(
        self, residue: Shape, op: ops.Pool, spatial: Shape
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return which elements of a phase come from which elements of a plane."""
        target, source = [slice(None)], [slice(None)]
        for axis, r in enumerate(residue):
            stride, pad = op.stride[axis], op.pad[axis]
            first = -(-max(0, pad - r) // stride)  # of the phase, that is not in the padding
            begin = r + first * stride - pad
            count = min(self.size[axis] - first, -(-(spatial[axis] - begin) // stride))
            count = max(0, count)
            target.append(slice(first, first + count))
            source.append(slice(begin, begin + count * stride, stride))
        return tuple(target), tuple(source)
