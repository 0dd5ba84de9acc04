"""The gradient of the filters of a convolution of pictures."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import address, aligned
from demitasse.backends.kernels.axes import Axes
from demitasse.backends.kernels.direct.bands import BANDS, band_values, bands, panels
from demitasse.backends.kernels.direct.products import window_sums
from demitasse.backends.kernels.direct.windows import Windows
from demitasse.backends.kernels.language import Arguments, compiled
from demitasse.backends.kernels.language.kernel import FLOAT, Kernel
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Gradient, Port, Reader, converted_bytes

__all__ = ["PictureGradient"]


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"picture_gradient{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = k.fields(BANDS)
    with (
        bands(k, f, ones=True) as band,
        panels(k, f, band.filters) as (multiply, filters, _, places),
    ):
        k.call_at(
            multiply,
            band.copy, k.bytes(f.step_right), k.bytes(k.times(f.step_down, f.wide)),
            f.taps, f.length,
            band.output, k.bytes(f.y_column), k.bytes(f.y_row), places,
            filters, f.right, band.rows,
        )  # fmt: skip
    k.done()


class PictureGradient:
    """What a Step calls to get the gradients of weights and bias.

    The bias is a tap that is 1 in every window.

    Args:
        engine: The engine.
        windows: The convolution.
        source: Its input, in C order.
        gradient: The gradient of its output.
        weight: The gradient of its weights, in C order.
        bias: The gradient of its bias, or None.

    Raises:
        Declined: The gradient's channels do not lie side by side.
    """

    def __init__(
        self,
        engine: Engine,
        windows: Windows,
        source: Reader,
        gradient: Reader,
        weight: Gradient,
        bias: Gradient | None,
    ) -> None:
        self.engine, self.windows = engine, windows
        self.ports: tuple[Port, ...] = (source, gradient, weight, *([bias] if bias else []))
        self.source, self.gradient, self.weight, self.bias = source, gradient, weight, bias
        for port in self.ports:
            port.engine = engine
        axes, width = Axes(gradient.layout, windows.width), windows.width
        self.kernel = _kernel(width)
        self.taps = windows.taps + (bias is not None)
        places = [place for _, place in axes.vectors]
        values, self._panels = band_values(windows, axes, window_sums(width), self.taps, places)
        lane = self.taps * len(windows.order)
        self.sums = aligned(windows.lanes * lane).reshape(windows.lanes, lane)
        self.arguments = Arguments(
            BANDS, **values, filters=address(self.sums), filter_lane=lane,
            scratch_size=FLOAT * windows.copy,
        )  # fmt: skip

    def __call__(self) -> None:
        source, gradient = self.source.array(), self.gradient.array()
        windows = self.windows
        [scratch] = self.engine.workspaces(windows.lanes * windows.copy)
        self.sums[...] = 0.0
        self.arguments.set(x_at=address(source), y_at=address(gradient), scratch=address(scratch))
        self.arguments.run(self.kernel, windows.threads)
        self._unpack(self.sums.sum(axis=0))

    def _unpack(self, sums: np.ndarray) -> None:
        """Write the sums to the parameters, whose filters come one by one."""
        windows, taps = self.windows, self.taps
        m = windows.y[1]
        weight = self.weight.array()[: m * windows.taps].reshape(m, windows.taps)
        bias = self.bias.array() if self.bias else None
        for vectors, first in windows.panels:
            begin, columns = first * windows.width, vectors * windows.width
            part = sums[begin * taps : (begin + columns) * taps].reshape(taps, columns)
            # a filter that is in two vectors has the same sums in both
            some = windows.order[begin : begin + columns]
            weight[some] = part[: windows.taps].T
            if bias is not None:
                bias[some] = part[-1]
        self.weight.done()
        if self.bias:
            self.bias.done()

    @property
    def implementations(self) -> list[str]:
        """Names of the code that it runs."""
        return ["llvm:pictures"]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        return self.sums.nbytes + converted_bytes(self.ports)
