"""The three products of convolution, over any number of samples, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator

from demitasse.backends.base import Array
from demitasse.backends.cupy.columns import Chunk, Windows
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.library.gemm import Product

__all__ = ["Correlation"]


class Correlation:
    """Image to map, map to image, and the gradient of the weight between them.

    Args:
        engine: Runs it.
        windows: The window.
        samples: N.

    Shapes: image (N, C, *size), maps (N, M, *places), weight (M, C / group, *kernel), bias (M,).
    """

    def __init__(self, engine: Engine, windows: Windows, samples: int) -> None:
        self.engine, self.windows, self.samples = engine, windows, samples
        most = max(1, engine.column_budget // windows.sample_bytes)
        number = max(1, -(-samples // most))
        self.step = max(1, -(-samples // number))
        self._geometry = engine.asarray(windows.geometry())
        self._chunks: dict[int, Chunk] = {}
        self.direct = windows.is_pointwise and windows.group == 1
        """An image is its own columns, sample by sample: nothing is laid out anew."""
        sides = (windows.maps, windows.places, windows.channels)
        self._direct = Product(windows.dtype, *sides, batch=samples, step_a=0)
        sides = (windows.channels, windows.places, windows.maps)
        self._direct_transposed = Product(
            windows.dtype, *sides, transpose_a=True, batch=samples, step_a=0
        )

    def forward(self, image: Array, weight: Array, bias: Array | None, maps: Array) -> None:
        """Compute the map of an image."""
        if self.direct:
            self.engine.multiply(self._direct, weight, image, maps)
            if bias is not None:
                self._chunk(self.samples).add_bias(maps, bias)
            return
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
        """Compute what a map brings to the weight and to the image.

        Args:
            maps: The map, or its gradient.
            weight: The weight.
            image: The image; needed for ``total``.
            total: Where the products of map and image, summed over samples and places, are added;
                shaped like the weight. None where they are not wanted.
            spread: The image that the map is spread over. None where it is not wanted.
        """
        if self.direct and spread is not None:
            self.engine.multiply(self._direct_transposed, weight, maps, spread)
            spread = None
        if total is None and spread is None:
            return
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
            self._chunks[samples] = Chunk(self.engine, self.windows, samples, self._geometry)
        return self._chunks[samples]
