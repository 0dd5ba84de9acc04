"""Sums over everything but the channels, in one pass or two."""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.parts import Parts

__all__ = ["ChannelSums"]


class ChannelSums:
    """Adds sums of a gradient, and of its products with another array, to parameters' gradients.

    Args:
        engine: Runs the kernels.
        dtype: Of all arrays.
        sizes: Samples, channels and plane.
        flat: Whether the sums of the gradient are wanted.
        along: Whether those of the products are wanted.

    Shapes: arrays (samples, channels, plane), sums (channels,).
    """

    def __init__(
        self,
        engine: Engine,
        dtype: str,
        sizes: tuple[int, int, int],
        *,
        flat: bool = True,
        along: bool = False,
    ) -> None:
        samples, channels, plane = sizes
        self.engine, self.dtype = engine, dtype
        self.parts = parts = Parts.of(channels, samples * plane)
        wanted, add = (int(flat), int(along)), int(parts.one)
        self._sums = engine.rows(
            *("sums", "channel_sums", dtype, parts.total, parts.length),
            *(channels, samples, plane, parts.count, parts.length, *wanted, add),
            reach=samples * channels * plane,
        )
        self._finish = engine.rows(
            *("sums", "sum_parts", dtype, channels, parts.count),
            *(channels, parts.count, *wanted, 1),
        )

    def __call__(
        self, dy: Array, flat: Array | None, x: Array | None = None, along: Array | None = None
    ) -> None:
        """Add the sums of ``dy`` to ``flat`` and those of ``dy * x`` to ``along``.

        Nothing is read or written where something is None; it must not be wanted then.
        """
        # the kernels do not touch what stands for an array that is not there
        x, flat, along = (dy if array is None else array for array in (x, flat, along))
        if self.parts.one:
            self._sums(x, dy, flat, along)
            return
        one, two = self.engine.scratch(self.dtype, self.parts.total, self.parts.total)
        self._sums(x, dy, one, two)
        self._finish(one, two, flat, along)
