"""The three products of convolution, over any number of samples, chunk by chunk."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.columns import Chunk, any_axes
from demitasse.backends.cupy.library.convolutions import Result
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.library.gemm import Product
from demitasse.backends.cupy.pointwise import PointwiseGradient
from demitasse.backends.storage import array_dtype
from demitasse.backends.windows import ConvGeometry

__all__ = ["Correlation"]


class Correlation:
    """Image to map, map to image, and the gradient of the weight between them.

    Args:
        engine: Runs it.
        geometry: Image, map and window.
        dtype: Of all arrays.

    Shapes: image (n, C, *spatial), maps (n, M, *positions), weight (M, C / group, *kernel),
        bias (M,).
    """

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        g = self.g = geometry
        self.engine, self.dtype, self.samples = engine, dtype, g.n
        sample = (g.group * g.height + g.maps) * g.map_plane * np.dtype(array_dtype(dtype)).itemsize
        most = max(1, engine.column_budget // sample)
        number = max(1, -(-g.n // most))
        self.step = max(1, -(-g.n // number))
        self._axes = engine.asarray(any_axes(g))
        self._chunks: dict[int, Chunk] = {}
        self.direct = g.window.is_pointwise and g.group == 1
        """True if products with the weight read and write images themselves, without columns."""
        sides = (g.maps, g.map_plane, g.channels)
        self._direct = Product(dtype, *sides, batch=g.n, step_a=0)
        sides = (g.channels, g.map_plane, g.maps)
        self._direct_transposed = Product(dtype, *sides, transpose_a=True, batch=g.n, step_a=0)
        self._pointwise: PointwiseGradient | None = None
        if PointwiseGradient.pays(g):
            self._pointwise = PointwiseGradient(engine, g, dtype)

    @property
    def map_code(self) -> str:
        """Name of the code that computes the map."""
        return "cuBLAS" if self.direct else "im2col + cuBLAS"

    @property
    def image_code(self) -> str:
        """Name of the code that computes the image."""
        return "cuBLAS" if self.direct else "cuBLAS + col2im"

    def backward_code(self, results: Collection[Result]) -> str:
        """Return what computes these products, in a word."""
        unfolds = "weight" in results and self._pointwise is None
        return "cuBLAS" if self.direct and not unfolds else "im2col + cuBLAS"

    def forward(self, image: Array, weight: Array, bias: Array | None, maps: Array) -> None:
        """Compute the map of an image."""
        if self.direct:
            self.engine.multiply(self._direct, weight, image, maps)
            if bias is not None:
                self._chunk(self.samples).add_bias(maps, bias)
            return
        self._make_room()
        for chunk, (source, target) in self._parts(image, maps):
            columns, rows = chunk.scratch()
            chunk.unfold(source, columns)
            self.engine.multiply(chunk.to_rows, weight, columns, target if chunk.alone else rows)
            if bias is None and not chunk.alone:
                chunk.scatter(rows, target)
            elif bias is not None and not chunk.alone:
                chunk.scatter_with_bias(rows, bias, target)
            elif bias is not None:
                chunk.add_bias(target, bias)

    def backward(
        self,
        maps: Array,
        weight: Array,
        *,
        image: Array | None = None,
        total: Array | None = None,
        spread: Array | None = None,
    ) -> None:
        """Compute the two products that begin with a map: for the weight and for the image.

        Args:
            maps: A convolution's top gradient; a deconvolution's bottom.
            weight: The weight.
            image: What the map is multiplied with for ``total``; else not needed.
            total: The weight's gradient, which is added to; None where it is not wanted.
            spread: An image that is overwritten: a convolution's bottom gradient, a deconvolution's
                top. None where it is not wanted.
        """
        if self.direct and spread is not None:
            self.engine.multiply(self._direct_transposed, weight, maps, spread)
            spread = None
        if self._pointwise is not None and total is not None:
            self._pointwise.add(maps, image, total)
            total = None
        if total is None and spread is None:
            return
        self._make_room()
        for chunk, (own, seen, target) in self._parts(maps, image, spread):
            columns, scratch = chunk.scratch()
            rows = own if chunk.alone else scratch
            if not chunk.alone:
                chunk.gather(own, rows)
            if total is not None:
                chunk.unfold(seen, columns)
                self.engine.multiply(chunk.to_weight, rows, columns, total)
            if target is not None:
                self.engine.multiply(chunk.to_columns, weight, rows, columns)
                chunk.fold(columns, target)

    def _make_room(self) -> None:
        """Work on fewer samples at once where there is no room for the columns of as many.

        Raises:
            MemoryError: There is no room for a single sample's.
        """
        while self.samples:
            try:
                self._chunk(min(self.step, self.samples)).scratch()
            except MemoryError:
                if self.step == 1:
                    raise
                self.step = -(-self.step // 2)
            else:
                return

    def _parts(self, *arrays: Array) -> Iterator[tuple[Chunk, tuple[Array, ...]]]:
        """Cut arrays (N, ...), or None, into chunks of samples."""
        if self.step >= self.samples:
            if self.samples:
                yield self._chunk(self.samples), arrays
            return
        flat = [None if a is None else a.reshape(self.samples, -1) for a in arrays]
        for first in range(0, self.samples, self.step):
            part = slice(first, min(first + self.step, self.samples))
            chunk = self._chunk(part.stop - first)
            yield chunk, tuple(None if a is None else a[part] for a in flat)

    def _chunk(self, samples: int) -> Chunk:
        if samples not in self._chunks:
            self._chunks[samples] = Chunk(self.engine, self.g, self.dtype, samples, self._axes)
        return self._chunks[samples]
