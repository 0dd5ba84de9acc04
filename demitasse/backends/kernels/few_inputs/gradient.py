"""The gradient of the filters of a direct convolution."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.few_inputs.bands import (
    BandFields,
    band_values,
    each_band,
    each_panel,
    window_sums,
)
from demitasse.backends.kernels.few_inputs.schedule import DirectSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue, compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Arguments
from demitasse.backends.kernels.language.words import FLOAT

__all__ = ["DirectGradient"]


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"direct_gradient{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = BandFields.read(k)
    with each_band(k, f, ones=True) as band, each_panel(k, f, band.filters) as panel:
        k.call_at(
            panel.product,
            band.copy,
            f.step_right * FLOAT,
            f.step_down * f.copied_columns * FLOAT,
            f.tap_table,
            f.taps,
            band.output,
            f.y.column_stride * FLOAT,
            f.y.row_stride * FLOAT,
            panel.places,
            panel.filters,
            f.y.columns,
            band.rows,
            panel.remainders,
        )
    k.done()


class DirectGradient:
    """The gradients of a convolution's weights and bias.

    The bias is the weight of a tap that is 1 in every window.

    Args:
        banding: The convolution.
        y: The gradient of its output.
        bias: Whether there is a bias.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        sums: What each chunk has summed. Shape: (chunks, taps * pixel_stride).

    Raises:
        ValueError: The gradient's channels are not contiguous.
    """

    def __init__(self, banding: DirectSchedule, y: Images, *, bias: bool) -> None:
        self.banding, width = banding, banding.width
        self._kernel = _kernel(width)
        self.scratch_size = banding.chunks * banding.copy_size
        self._taps = banding.taps + bias
        chunk = self._taps * banding.pixel_stride
        self.sums = aligned(banding.chunks * chunk).reshape(banding.chunks, chunk)
        self._arguments = Arguments(
            band_values(
                banding,
                y,
                window_sums(width),
                self._taps,
                banding.tap_table[: self._taps],
                self._taps,
                [place for _, place in y.vectors(width)],
                filters=self.sums,
                filter_chunk_stride=chunk,
                chunk_scratch=banding.copy_size,
            )
        )

    def __call__(
        self,
        source: np.ndarray,
        dy: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:
        """Write the gradients.

        Args:
            source: The images, in C order.
            dy: The gradient of the output, in the memory that ``y`` describes.
            weight: For the gradient of the weights, in C order.
            bias: For that of the bias, or None. Shape: (M,).
            scratch: At least :attr:`scratch_size` elements.
        """
        command_queue.enqueue(self._clear, (), None)
        each = {"x.at": source, "y.at": dy, "scratch": scratch}
        self._arguments.run(self._kernel, self.banding.tuning.threads, each)
        command_queue.enqueue(self._unpack, (weight, bias), None)

    def _clear(self) -> None:
        self.sums[...] = 0.0

    def _unpack(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """Write the sums to the parameters, whose filters come one by one."""
        banding, taps, sums = self.banding, self._taps, self.sums.sum(axis=0)
        m = banding.y[1]
        weight = weight[: m * banding.taps].reshape(m, banding.taps)
        for vectors, first in banding.panels:
            begin, columns = first * banding.width, vectors * banding.width
            part = sums[begin * taps : (begin + columns) * taps].reshape(taps, columns)
            # a filter that is in two vectors has the same sums in both
            some = banding.order[begin : begin + columns]
            weight[some] = part[: banding.taps].T
            if bias is not None:
                bias[some] = part[-1]

    @property
    def code(self) -> str:
        """Name of the code."""
        return self.banding.code
