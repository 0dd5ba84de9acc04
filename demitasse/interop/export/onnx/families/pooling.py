"""Pooling with Caffe's windows, and what is made of it.

Caffe rounds sizes up, and its mean counts the pads of both sides but not what a window has beyond
them. Here every size is said by pads alone, so that no rounding of ONNX's takes part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.backends.windows import Shape, Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.sizes import Free
from demitasse.interop.export.walk import Step, Value
from demitasse.io.proto import PoolingParameter
from demitasse.layers.pooling import pooling_window
from demitasse.layers.spp import SPP

__all__ = ["CONVERTERS"]

LOWEST = float(np.finfo(np.float32).min)
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Fit:
    """How windows lie on an image.

    Attributes:
        window: The window.
        size: Size of the image.
        out: How many windows there are along each axis.
    """

    window: Window
    size: Shape
    out: Shape

    @property
    def over(self) -> Shape:
        """By how much the last window is longer than the image and its first pad; 0 or more."""
        window = self.window
        return tuple(
            max(0, (out - 1) * step + length - size - pad)
            for out, step, length, size, pad in zip(
                self.out, window.stride, window.kernel, self.size, window.pad, strict=True
            )
        )

    @property
    def some_empty(self) -> bool:
        """Whether a window lies beyond the image, which operators of ONNX do not take."""
        return any(
            over >= length for over, length in zip(self.over, self.window.kernel, strict=True)
        )

    def divisor(self) -> np.ndarray:
        """Return by what each sum is divided; NaN for 0. Shape: (1, 1, *out)."""
        total = np.ones((), np.float32)
        window = self.window
        for size, out, step, length, pad in zip(
            self.size, self.out, window.stride, window.kernel, window.pad, strict=True
        ):
            starts = np.arange(out) * step - pad
            total = np.multiply.outer(total, np.minimum(starts + length, size + pad) - starts)
        return np.where(total == 0, np.nan, total).astype(np.float32)[None, None]


def fit_of(p: PoolingParameter, spatial: Shape) -> Fit:
    """Return how the windows of a layer lie on an image."""
    window = pooling_window(p, spatial)
    return Fit(window, spatial, window.pooled(spatial, ceil=p.round_mode == PoolingParameter.CEIL))


def pooling(step: Step, graph: Graph) -> None:
    """Add the pooling of a Pooling layer."""
    p, [x] = step.layer.param.pooling_param, step.bottoms
    top, *mask = step.tops
    if any(isinstance(size, Free) for size in x.sizes[2:]) and not p.global_pooling:
        _of_any_size(graph, x, p, step)
        return
    fit = fit_of(p, x.shape[2:])
    if p.pool == PoolingParameter.AVE:
        if p.global_pooling:
            graph.add("GlobalAveragePool", x, to=top)
        else:
            average(graph, x, fit, to=top)
    elif p.pool == PoolingParameter.STOCHASTIC:
        stochastic(graph, x, fit, to=top)
    elif mask:
        _max_with_mask(graph, x, fit, top, mask[0])
    elif p.global_pooling:
        graph.add("GlobalMaxPool", x, to=top)
    else:
        largest(graph, x, fit, to=top)


def _of_any_size(graph: Graph, x: Value, p: PoolingParameter, step: Step) -> None:
    """Add a pooling for images of any size, whose rounding is left to ONNX.

    Raises:
        NetError: ONNX would round or divide otherwise than Caffe, or there is a mask.
    """
    window = pooling_window(p, x.shape[2:])
    up = p.round_mode == PoolingParameter.CEIL and set(window.stride) != {1}
    ends, [top, *mask] = [*window.pad, *window.pad], step.tops
    gaps = any(s > k for s, k in zip(window.stride, window.kernel, strict=True))
    means = p.pool != PoolingParameter.MAX
    if mask or (up and (gaps or (means and any(window.pad)))):
        message = (
            "a mask, and with sizes that are rounded up a mean with pads or a stride above the "
            "kernel, is written for one size of images alone"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED)

    def pool(operator: str, image: str | Value, **how: Any) -> str:
        return graph.add(operator, image, ceil_mode=int(up), pads=ends, **_window(window), **how)

    if p.pool == PoolingParameter.MAX:
        pool("MaxPool", x, to=top)
    elif p.pool == PoolingParameter.AVE:
        pool("AveragePool", x, to=top, count_include_pad=int(not up))
    else:
        squares = pool("AveragePool", graph.add("Mul", x, x), count_include_pad=0)
        mean = graph.add("Add", pool("AveragePool", x, count_include_pad=0), graph.number(TINY))
        graph.add("Div", squares, mean, to=top)


def largest(graph: Graph, x: str | Value, fit: Fit, to: Value | None = None) -> str:
    """Add MaxPool."""
    if fit.some_empty:
        x = _padded(graph, x, (*fit.window.pad, *fit.over), LOWEST)
        return graph.add("MaxPool", x, to=to, **_window(fit.window))
    return graph.add("MaxPool", x, to=to, pads=_pads(fit), **_window(fit.window))


def _max_with_mask(graph: Graph, x: Value, fit: Fit, top: Value, mask: Value) -> None:
    """Add MaxPool and the index of each maximum in its plane."""
    if fit.some_empty:
        message = "windows beyond the image have no index; ONNX cannot say its mask"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    indices = graph.name("indices")
    graph.add_several("MaxPool", x, to=[top, indices], pads=_pads(fit), **_window(fit.window))
    plane = graph.add("Mod", indices, graph.ints([math.prod(x.shape[2:])]))
    graph.floats(plane, to=mask)


def average(graph: Graph, x: str | Value, fit: Fit, to: Value | None = None) -> str:
    """Add AveragePool, which divides as Caffe does."""
    window = fit.window
    beyond = tuple(max(0, over - pad) for over, pad in zip(fit.over, window.pad, strict=True))
    if fit.some_empty:
        x = _padded(graph, x, (*window.pad, *fit.over), 0.0)
        mean = graph.add("AveragePool", x, **_window(window))
        return graph.add("Mul", mean, graph.constant(window.size / fit.divisor()), to=to)
    if not any(beyond):
        return graph.add(
            "AveragePool", x, to=to, count_include_pad=1, pads=[*window.pad, *window.pad],
            **_window(window),
        )  # fmt: skip
    if any(window.pad):
        x = _padded(graph, x, (*window.pad, *window.pad), 0.0)
    pads = [*(0,) * len(beyond), *beyond]
    return graph.add("AveragePool", x, to=to, count_include_pad=0, pads=pads, **_window(window))


def stochastic(graph: Graph, x: str | Value, fit: Fit, to: Value | None = None) -> str:
    """Add what is expected of a random choice: the sum of squares over the sum."""
    squares = average(graph, graph.add("Mul", x, x), fit)
    total = graph.add("Add", average(graph, x, fit), graph.number(TINY))
    return graph.add("Div", squares, total, to=to)


def spp(step: Step, graph: Graph) -> None:
    """Add a pooling for each level, and join them."""
    layer, [x], [top] = step.of(SPP), step.bottoms, step.tops
    how = {
        PoolingParameter.MAX: largest,
        PoolingParameter.AVE: average,
        PoolingParameter.STOCHASTIC: stochastic,
    }[layer.param.spp_param.pool]
    fits = [fit_of(pool.param.pooling_param, x.shape[2:]) for pool in layer.pools]
    if len(fits) == 1:
        how(graph, x, fits[0], to=top)
        return
    levels = [graph.add("Flatten", how(graph, x, fit), axis=1) for fit in fits]
    graph.add("Concat", *levels, to=top, axis=1)


def _window(window: Window) -> dict[str, Any]:
    return {"kernel_shape": list(window.kernel), "strides": list(window.stride)}


def _pads(fit: Fit) -> list[int]:
    return [*fit.window.pad, *fit.over]


def _padded(graph: Graph, x: str | Value, pads: Sequence[int], value: float) -> str:
    """Add pads before and after all spatial axes: first those before, then those after."""
    half = len(pads) // 2
    every = [0, 0, *pads[:half], 0, 0, *pads[half:]]
    return graph.add("Pad", x, graph.ints(every), graph.number(value))


CONVERTERS: Mapping[str, Converter] = {"Pooling": pooling, "SPP": spp}
