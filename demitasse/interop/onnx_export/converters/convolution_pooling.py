"""Converters of convolution, pooling and other layers over feature maps.

Caffe rounds output sizes up. Its mean counts the pads of both sides, but not the rest of a window
beyond them. The converters express every size by pads alone, without ONNX's rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.backends.windows import Shape, Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.export.sizes import SymbolicSize
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
from demitasse.io.proto import PoolingParameter
from demitasse.layers.convolution import ConvolutionBase
from demitasse.layers.im2col import Im2col
from demitasse.layers.interp import Interp
from demitasse.layers.pooling import pooling_method, pooling_window
from demitasse.layers.spp import SPP
from demitasse.layers.upsample import Upsample


def _convolution(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a Conv for each bottom, with shared weights."""
    layer = node.layer_as(ConvolutionBase)
    for x, y in zip(node.bottoms, node.tops, strict=True):
        spatial = x.shape[layer.axis + 1 :]
        pads = _pads_of(layer.window, spatial, y.shape[layer.axis + 1 :])
        _product(graph, "Conv", layer, x, y, pads)


def _deconvolution(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a ConvTranspose for each bottom."""
    layer = node.layer_as(ConvolutionBase)
    for x, y in zip(node.bottoms, node.tops, strict=True):
        _product(graph, "ConvTranspose", layer, x, y, [*layer.window.pad, *layer.window.pad_after])


def _pads_of(window: Window, size: Shape, out: Shape) -> list[int]:
    """Return the pads before and after, so that the last window ends on the padded image.

    Caffe accepts a window that exceeds image and pads by less than a stride.
    """
    after = [
        max(after, (n - 1) * stride + extent - length - before)
        for (before, after), n, stride, extent, length in zip(
            window.pads, out, window.stride, window.extent, size, strict=True
        )
    ]
    return [*window.pad, *after]


def _product(
    graph: GraphBuilder, operator: str, layer: ConvolutionBase, x: Value, y: Value, pads: list[int]
) -> None:
    """Add a convolution, with all axes before the channels joined."""
    window, lead = layer.window, layer.axis != 1
    stored = [graph.param(layer.blobs[0], "weight")]
    if layer.has_bias:
        stored.append(graph.param(layer.blobs[1], "bias"))
    images = graph.reshape(x, [-1, *x.sizes[layer.axis :]]) if lead else x.name
    maps = graph.add(
        operator, images, *stored, to=None if lead else y, kernel_shape=list(window.kernel),
        strides=list(window.stride), pads=pads, dilations=list(window.dilation), group=layer.group,
    )  # fmt: skip
    if lead:
        graph.reshape(maps, y.sizes, to=y)


def _im2col(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a depthwise Conv with one-hot weights, one for each kernel element."""
    layer, [x], [y] = node.layer_as(Im2col), node.bottoms, node.tops
    window, channels, lead = layer.window, x.shape[layer.axis], layer.axis != 1
    taps = np.eye(window.size, dtype=np.float32).reshape(window.size, 1, *window.kernel)
    weight = graph.constant(np.tile(taps, (channels, *(1,) * (taps.ndim - 1))), "taps")
    images = graph.reshape(x, [-1, *x.sizes[layer.axis :]]) if lead else x.name
    columns = graph.add(
        "Conv", images, weight, to=None if lead else y, group=channels,
        kernel_shape=list(window.kernel), strides=list(window.stride),
        dilations=list(window.dilation),
        pads=_pads_of(window, x.shape[layer.axis + 1 :], y.shape[layer.axis + 1 :]),
    )  # fmt: skip
    if lead:
        graph.reshape(columns, y.sizes, to=y)


def _interp(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Resize, after a Slice for negative pads."""
    p, x, [y] = node.layer_as(Interp).param.interp_param, node.bottoms[0], node.tops
    image = x.name
    if p.pad_beg or p.pad_end:
        ends = [size + p.pad_end for size in x.shape[2:]]
        image = graph.add(
            "Slice", x, graph.ints([-p.pad_beg] * 2), graph.ints(ends), graph.ints([2, 3])
        )
    graph.add(
        "Resize", image, "", "", graph.sizes(y.sizes), to=y, mode="linear",
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip


def _upsample(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a repetition of pixels, or a scatter to the indices of a mask."""
    layer, x, [y] = node.layer_as(Upsample), node.bottoms[0], node.tops
    lead, (height, width) = x.sizes[:-2], x.shape[-2:]
    if len(node.bottoms) == 1:
        down, right = layer.scale
        blocks = graph.reshape(x, [*lead, height, 1, width, 1])
        ones = [1] * (len(lead) + 1)
        repeats = graph.ints([*ones, down, 1, right])
        graph.reshape(graph.add("Tile", blocks, repeats), y.sizes, to=y)
        return
    places = y.shape[-2] * y.shape[-1]
    empty = graph.add("ConstantOfShape", graph.sizes([*lead, places]), value=graph.tensor([0.0]))
    values = graph.reshape(x, [*lead, height * width])
    indices = graph.to_int(graph.reshape(node.bottoms[1], [*lead, height * width]))
    filled = graph.add("ScatterElements", empty, indices, values, axis=2)
    graph.reshape(filled, y.sizes, to=y)


LOWEST = float(np.finfo(np.float32).min)
TINY = float(np.finfo(np.float32).tiny)


# -- poolings ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """Placement of pooling windows on an image.

    Attributes:
        window: The window.
        size: Size of the image.
        out: Number of windows along each axis.
        counts_pads: Whether a mean counts the pads.
    """

    window: Window
    size: Shape
    out: Shape
    counts_pads: bool = True

    @property
    def over(self) -> Shape:
        """Pixels of the last window beyond the image, 0 or more."""
        window = self.window
        return tuple(
            max(0, (out - 1) * stride + length - size - pad)
            for out, stride, length, size, pad in zip(
                self.out, window.stride, window.kernel, self.size, window.pad, strict=True
            )
        )

    @property
    def some_empty(self) -> bool:
        """True if a window is outside of the image, which ONNX operators do not support."""
        return any(
            over >= length for over, length in zip(self.over, self.window.kernel, strict=True)
        )

    def divisor(self) -> np.ndarray:
        """Return the divisor of each window's sum; NaN for 0. Shape: (1, 1, *out)."""
        divisors = self.window.divisors(self.size, self.out, pads=self.counts_pads)
        return divisors.astype(np.float32)[None, None]


def _fit_of(p: PoolingParameter, spatial: Shape) -> Fit:
    """Return the placement of a layer's windows."""
    window = pooling_window(p, spatial)
    out = window.pooled(spatial, ceil=p.round_mode == PoolingParameter.CEIL)
    return Fit(window, spatial, out, pooling_method(p)[1])


def _pooling(node: LayerNode, graph: GraphBuilder) -> None:
    """Add MaxPool or AveragePool of a Pooling layer."""
    p, [x] = node.layer.param.pooling_param, node.bottoms
    top, *mask = node.tops
    if any(isinstance(size, SymbolicSize) for size in x.sizes[2:]) and not p.global_pooling:
        _pool_any_size(node, graph, x, p)
        return
    fit = _fit_of(p, x.shape[2:])
    method, _ = pooling_method(p)
    if method == "AVE":
        if p.global_pooling:
            graph.add("GlobalAveragePool", x, to=top)
        else:
            average(graph, x, fit, to=top)
    elif method == "STOCHASTIC":
        _stochastic(graph, x, fit, to=top)
    elif mask:
        _max_with_mask(graph, x, fit, top, mask[0])
    elif p.global_pooling:
        graph.add("GlobalMaxPool", x, to=top)
    else:
        _largest(graph, x, fit, to=top)


def _pool_any_size(node: LayerNode, graph: GraphBuilder, x: Value, p: PoolingParameter) -> None:
    """Add a pooling for any image size, with ONNX's rounding."""
    window = pooling_window(p, x.shape[2:])
    up = p.round_mode == PoolingParameter.CEIL and set(window.stride) != {1}
    ends, [top, *mask] = [*window.pad, *window.pad_after], node.tops
    method, counts_pads = pooling_method(p)
    gaps = any(s > k for s, k in zip(window.stride, window.kernel, strict=True))
    means = method != "MAX" and counts_pads
    if mask or (up and (gaps or (means and any(ends)))):
        message = (
            "this pooling is supported for one image size only: it has a mask, or rounds sizes up "
            "and has a stride above the kernel or a mean with pads"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED)

    def pool(operator: str, image: str | Value, **how: Any) -> str:
        return graph.add(operator, image, ceil_mode=int(up), pads=ends, **_window(window), **how)

    if method == "MAX":
        pool("MaxPool", x, to=top)
    elif method == "AVE":
        pool("AveragePool", x, to=top, count_include_pad=int(counts_pads and not up))
    else:
        squares = pool("AveragePool", graph.add("Mul", x, x), count_include_pad=0)
        mean = graph.add("Add", pool("AveragePool", x, count_include_pad=0), graph.scalar(TINY))
        graph.add("Div", squares, mean, to=top)


def _largest(graph: GraphBuilder, x: str | Value, fit: Fit, to: Value | None = None) -> str:
    if fit.some_empty:
        x = _padded(graph, x, (*fit.window.pad, *fit.over), LOWEST)
        return graph.add("MaxPool", x, to=to, **_window(fit.window))
    return graph.add("MaxPool", x, to=to, pads=_pads(fit), **_window(fit.window))


def _max_with_mask(graph: GraphBuilder, x: Value, fit: Fit, top: Value, mask: Value) -> None:
    """Add MaxPool, and the index of each maximum in its plane."""
    if fit.some_empty:
        message = "a mask of windows outside of the image has no ONNX form"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    indices = graph.name("indices")
    graph.add_several("MaxPool", x, to=[top, indices], pads=_pads(fit), **_window(fit.window))
    plane = graph.add("Mod", indices, graph.ints([math.prod(x.shape[2:])]))
    graph.to_float(plane, to=mask)


def average(graph: GraphBuilder, x: str | Value, fit: Fit, to: Value | None = None) -> str:
    """Add AveragePool with Caffe's divisors."""
    window = fit.window
    beyond = tuple(max(0, over - q) for over, q in zip(fit.over, window.pad_after, strict=True))
    if fit.some_empty:
        x = _padded(graph, x, (*window.pad, *fit.over), 0.0)
        mean = graph.add("AveragePool", x, **_window(window))
        return graph.add("Mul", mean, graph.constant(window.size / fit.divisor()), to=to)
    if not fit.counts_pads:
        return graph.add(
            "AveragePool", x, to=to, count_include_pad=0, pads=_pads(fit), **_window(window)
        )
    pads = [*window.pad, *window.pad_after]
    if not any(beyond):
        return graph.add("AveragePool", x, to=to, count_include_pad=1, pads=pads, **_window(window))
    if any(pads):
        x = _padded(graph, x, pads, 0.0)
    pads = [*(0,) * len(beyond), *beyond]
    return graph.add("AveragePool", x, to=to, count_include_pad=0, pads=pads, **_window(window))


def _stochastic(graph: GraphBuilder, x: str | Value, fit: Fit, to: Value | None = None) -> str:
    """Add the expected value of stochastic pooling: sum of squares over sum."""
    squares = average(graph, graph.add("Mul", x, x), fit)
    total = graph.add("Add", average(graph, x, fit), graph.scalar(TINY))
    return graph.add("Div", squares, total, to=to)


def _spp(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a pooling for each level, and Concat."""
    layer, [x], [top] = node.layer_as(SPP), node.bottoms, node.tops
    how = {
        PoolingParameter.MAX: _largest,
        PoolingParameter.AVE: average,
        PoolingParameter.STOCHASTIC: _stochastic,
    }[layer.param.spp_param.pool]
    fits = [_fit_of(pool.param.pooling_param, x.shape[2:]) for pool in layer.pools]
    if len(fits) == 1:
        how(graph, x, fits[0], to=top)
        return
    levels = [graph.add("Flatten", how(graph, x, fit), axis=1) for fit in fits]
    graph.add("Concat", *levels, to=top, axis=1)


def _window(window: Window) -> dict[str, Any]:
    return {"kernel_shape": list(window.kernel), "strides": list(window.stride)}


def _pads(fit: Fit) -> list[int]:
    return [*fit.window.pad, *fit.over]


def _padded(graph: GraphBuilder, x: str | Value, pads: Sequence[int], value: float) -> str:
    """Add Pad of spatial axes; ``pads`` are those before, then those after."""
    half = len(pads) // 2
    every = [0, 0, *pads[:half], 0, 0, *pads[half:]]
    return graph.add("Pad", x, graph.ints(every), graph.scalar(value))


CONVERTERS: Mapping[str, Converter] = {
    "Convolution": _convolution,
    "ConvolutionDepthwise": _convolution,
    "Deconvolution": _deconvolution,
    "DepthwiseConvolution": _convolution,
    "Im2col": _im2col,
    "Interp": _interp,
    "NdConvolution": _convolution,
    "NdPooling": _pooling,
    "Pooling": _pooling,
    "SPP": _spp,
    "Upsample": _upsample,
}
