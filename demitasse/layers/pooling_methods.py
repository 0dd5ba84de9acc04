"""The ways of pooling: MAX, AVE and STOCHASTIC, each with its gradient.

Source: Caffe, ``src/caffe/layers/pooling_layer.cpp``, ``pooling_layer.cu``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from demitasse.backends.arrays import Array
from demitasse.backends.ops import LOWEST
from demitasse.backends.windows import Shape
from demitasse.blob import Blob
from demitasse.layers.base import Blobs, Layer
from demitasse.layers.helpers.columns import Canvas
from demitasse.layers.helpers.floors import FLT_MIN

__all__ = ["METHODS", "Method"]


class Method(ABC):
    """One way of pooling, for bottoms of one size.

    Args:
        layer: The layer that pools; keeps state and makes arrays.
        canvas: Where the windows lie.

    Shapes: bottom (N, C, *spatial), top (N, C, *positions).
    """

    def __init__(self, layer: Layer, canvas: Canvas) -> None:
        self.layer, self.canvas = layer, canvas

    @abstractmethod
    def forward(self, bottom: Blob, top: Blobs) -> None:
        """Fill the tops."""

    @abstractmethod
    def backward(self, top: Blob, bottom: Blob) -> Array:
        """Return the bottom's gradient."""


class _Selecting(Method):
    """Methods whose result is one element of the window, remembered by its index in the plane."""

    def backward(self, top: Blob, bottom: Blob) -> Array:
        xp, canvas = self.layer.xp, self.canvas
        dy, index = top.read_diff(), self.layer.saved("index", top.shape, "int32").read()
        nothing = self.layer.zeros(())
        total = canvas.blank(*bottom.shape[:2])
        for tap in canvas.taps:
            total[canvas.at(tap)] += xp.where(index == self.index_of(tap), dy, nothing)
        return canvas.crop(total)

    def index_of(self, tap: Shape) -> Array:
        """Return the index, within its plane, of what a tap sees. Shape: (*positions), int32."""
        offset = sum(t * s for t, s in zip(tap, self._plane_strides(), strict=True))
        return self.layer.constant("index", self._key(), self._first_index) + offset

    def _key(self) -> object:
        return (self.canvas.window, self.canvas.spatial, self.canvas.out)

    def _plane_strides(self) -> list[int]:
        spatial = self.canvas.spatial
        return [math.prod(spatial[axis + 1 :]) for axis in range(len(spatial))]

    def _first_index(self) -> Array:
        """Return the index of what the first tap sees; padding has indices of neighbours."""
        layer, window, out = self.layer, self.canvas.window, self.canvas.out
        total = layer.zeros(out, "int32")
        for axis, step in enumerate(self._plane_strides()):
            positions = layer.arange(out[axis], "int32") * window.stride[axis] - window.pad[axis]
            shape = [1] * len(out)
            shape[axis] = out[axis]
            total = total + layer.xp.reshape(positions * step, tuple(shape))
        return total


class Max(_Selecting):
    """The largest element; the first of equals. NaN is never chosen."""

    def forward(self, bottom: Blob, top: Blobs) -> None:
        xp, layer = self.layer.xp, self.layer
        canvas = self.canvas.lay(bottom.read(), LOWEST)
        best = layer.full(top[0].shape, LOWEST)
        index = layer.full(top[0].shape, -1, "int32")
        for tap in self.canvas.taps:
            seen = canvas[self.canvas.at(tap)]
            better = seen > best
            best = xp.where(better, seen, best)
            index = xp.where(better, self.index_of(tap), index)
        top[0].write(best)
        layer.saved("index", top[0].shape, "int32").write(index)
        if len(top) > 1:
            top[1].write(layer.cast(index))


class Average(Method):
    """The sum divided by the size of the window's part on image and pads."""

    def forward(self, bottom: Blob, top: Blobs) -> None:
        total = self.canvas.lay(bottom.read())
        for _, taps in self._sweeps():
            total = sum((total[tap] for tap in taps[1:]), start=total[taps[0]])
        top[0].write(total / self._divisor())

    def backward(self, top: Blob, bottom: Blob) -> Array:
        total = top.read_diff() / self._divisor()
        for axis, taps in reversed(self._sweeps()):
            shape = list(total.shape)
            shape[axis] = self.canvas.size[axis - 2]
            wider = self.layer.zeros(tuple(shape))
            for tap in taps:
                wider[tap] += total
            total = wider
        return self.canvas.crop(total)

    def _sweeps(self) -> list[tuple[int, list[tuple[slice, ...]]]]:
        """Return, for each spatial axis, the index of what each tap along it alone sees."""
        everything = [slice(None)] * (2 + len(self.canvas.out))
        sweeps = []
        for axis, taps in enumerate(self.canvas.window.kernel, start=2):
            index = []
            for tap in range(taps):
                one = list(everything)
                reach = self.canvas.window.reach((tap,) * len(self.canvas.out), self.canvas.out)
                one[axis] = reach[axis - 2]
                index.append(tuple(one))
            sweeps.append((axis, index))
        return sweeps

    def _divisor(self) -> Array:
        key = (self.canvas.window, self.canvas.spatial, self.canvas.out)
        return self.layer.constant("divisor", key, self._make_divisor)

    def _make_divisor(self) -> Array:
        layer, window = self.layer, self.canvas.window
        total = layer.full(self.canvas.out, 1)
        for axis, (n, k, s, p, o) in enumerate(
            zip(
                self.canvas.spatial,
                window.kernel,
                window.stride,
                window.pad,
                self.canvas.out,
                strict=True,
            )
        ):
            starts = layer.arange(o, "int32") * s - p
            length = layer.xp.minimum(starts + k, layer.full((), n + p, "int32")) - starts
            shape = [1] * len(self.canvas.out)
            shape[axis] = o
            total = total * layer.xp.reshape(layer.cast(length), tuple(shape))
        # an empty window is 0 / 0; a divisor of NaN gives NaN without a warning
        return layer.xp.where(total == 0, layer.full((), math.nan), total)


class Stochastic(_Selecting):
    """TRAIN: one element, drawn with a chance proportional to it. TEST: the expected value."""

    def forward(self, bottom: Blob, top: Blobs) -> None:
        canvas = self.canvas.lay(bottom.read())
        if self.layer.phase == "TRAIN":
            self._draw(canvas, top[0])
        else:
            total, squares = self._sums(canvas)
            top[0].write(squares / total)

    def backward(self, top: Blob, bottom: Blob) -> Array:
        if self.layer.phase == "TRAIN":
            return super().backward(top, bottom)
        canvas = self.canvas.lay(bottom.read())
        share = top.read_diff() / self._sums(canvas)[0]
        result = self.canvas.blank(*bottom.shape[:2])
        for tap in self.canvas.taps:
            at = self.canvas.at(tap)
            result[at] += share * (2 * canvas[at] - top.read())
        return self.canvas.crop(result)

    def _sums(self, canvas: Array) -> tuple[Array, Array]:
        # FLT_MIN: against 0 / 0, as in Caffe
        least = self.layer.full((*canvas.shape[:2], *self.canvas.out), FLT_MIN)
        seen = [canvas[self.canvas.at(tap)] for tap in self.canvas.taps]
        return sum(seen, start=least), sum(x * x for x in seen)

    def _draw(self, canvas: Array, top: Blob) -> None:
        xp, layer = self.layer.xp, self.layer
        total = self.layer.zeros(top.shape)
        for tap in self.canvas.taps:
            total = total + canvas[self.canvas.at(tap)]
        threshold = self._uniform(top) * total
        running, chosen = self.layer.zeros(top.shape), self.layer.zeros(top.shape)
        index = layer.full(top.shape, -1, "int32")
        for tap in self.canvas.taps:
            seen = canvas[self.canvas.at(tap)]
            running = running + seen
            hit = (running >= threshold) & (index == -1)
            chosen = xp.where(hit, seen, chosen)
            index = xp.where(hit, self.index_of(tap), index)
        top.write(chosen)
        layer.saved("index", top.shape, "int32").write(index)

    def _uniform(self, top: Blob) -> Array:
        """Return a random number in (0, 1] for each window."""
        return (self.layer.cast(self.layer.random_words(top.shape)) + 1) * 2.0**-32


METHODS: dict[str, type[Method]] = {"MAX": Max, "AVE": Average, "STOCHASTIC": Stochastic}
