"""Converters of convolution, pooling and other layers over feature maps.

Caffe rounds output sizes up. Its mean counts the pads of both sides, but not the rest of a window
beyond them. The converters express every size by pads alone, without ONNX's rounding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from demitasse.backends.windows import Shape, Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.layer_graph import LayerNode, Value, pads_to_fit
from demitasse.interop.export.sizes import SymbolicSize
from demitasse.interop.onnx_export.graph import END, Array, Converter, GraphBuilder, Result
from demitasse.io.proto import PoolingParameter
from demitasse.layers.convolution import ConvolutionBase
from demitasse.layers.im2col import Im2col
from demitasse.layers.interp import Interp
from demitasse.layers.pooling import pooling_method, pooling_window
from demitasse.layers.spp import SPP
from demitasse.layers.upsample import Upsample

LOWEST = float(np.finfo(np.float32).min)
TINY = float(np.finfo(np.float32).tiny)


def _convolution(node: LayerNode, graph: GraphBuilder, operator: str = "Conv") -> Result:
    """Add a Conv or ConvTranspose for each bottom, with shared weights."""
    layer = node.layer_as(ConvolutionBase)
    window, axis, results = layer.window, layer.axis, []
    for x, y in zip(node.bottoms, node.tops, strict=True):
        stored = [graph.param(layer.blobs[0], "weight")]
        if layer.has_bias:
            stored.append(graph.param(layer.blobs[1], "bias"))
        after: Sequence[int] = window.pad_after
        if operator == "Conv":
            after = pads_to_fit(window, x.shape[axis + 1 :], y.shape[axis + 1 :])
        results.append(_windowed(graph, operator, window, axis, x, y, stored, layer.group, after))
    return results


def _im2col(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a depthwise Conv with one-hot weights, one for each kernel element."""
    layer, [x], [y] = node.layer_as(Im2col), node.bottoms, node.tops
    window, axis = layer.window, layer.axis
    taps = np.eye(window.size, dtype=np.float32).reshape(window.size, 1, *window.kernel)
    channels = x.shape[axis]
    weight = graph.constant(np.tile(taps, (channels, *(1,) * (taps.ndim - 1))), "taps")
    after = pads_to_fit(window, x.shape[axis + 1 :], y.shape[axis + 1 :])
    return _windowed(graph, "Conv", window, axis, x, y, [weight], channels, after)


def _windowed(
    graph: GraphBuilder, operator: str, window: Window, axis: int, x: Value, y: Value,
    stored: Sequence[Array], group: int, after: Sequence[int],
) -> Array:  # fmt: skip
    """Add a convolution, with all axes before the channels joined."""
    if not window.kernel:
        message = "got a convolution over 0 axes, ONNX supports 1 and more"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=0)
    lead = axis != 1
    maps = graph.add(
        operator, graph.reshape(x, [-1, *x.sizes[axis:]]) if lead else x, *stored,
        dilations=list(window.dilation), group=group, pads=[*window.pad, *after], **_window(window),
    )  # fmt: skip
    return graph.reshape(maps, y.sizes) if lead else maps


def _interp(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Resize, after a Slice for negative pads."""
    p, x, [y] = node.layer_as(Interp).param.interp_param, node.bottoms[0], node.tops
    image: Value | Array = x
    if p.pad_beg or p.pad_end:
        image = graph.add("Slice", x, [-p.pad_beg] * 2, [p.pad_end or END] * 2, [2, 3])
    return graph.add(
        "Resize", image, None, None, graph.sizes(y.sizes), mode="linear",
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip


def _upsample(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a repetition of pixels, or a scatter to the indices of a mask."""
    layer, x, [y] = node.layer_as(Upsample), node.bottoms[0], node.tops
    lead, (height, width) = x.sizes[:-2], x.shape[-2:]
    if len(node.bottoms) == 1:
        down, right = layer.scale
        blocks = graph.reshape(x, [*lead, height, 1, width, 1])
        repeats = [*[1] * (len(lead) + 1), down, 1, right]
        return graph.reshape(graph.add("Tile", blocks, repeats), y.sizes)
    places = y.shape[-2] * y.shape[-1]
    empty = graph.add("ConstantOfShape", graph.sizes([*lead, places]), value=graph.tensor(0.0))
    values = graph.reshape(x, [*lead, height * width])
    indices = graph.reshape(graph.to_int(node.bottoms[1]), [*lead, height * width])
    filled = graph.add("ScatterElements", empty, indices, values, axis=2)
    return graph.reshape(filled, y.sizes)


# -- poolings ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """Placement of pooling windows on an image.

    Attributes:
        size: Size of the image.
        out: Number of windows along each axis.
        counts_pads: True if a mean counts the pads.
    """

    window: Window
    size: Shape
    out: Shape
    counts_pads: bool = True

    @property
    def over(self) -> Shape:
        """Pixels of the last window beyond the image, 0 or more."""
        window = replace(self.window, after=(0,) * len(self.size))
        return tuple(pads_to_fit(window, self.size, self.out))

    @property
    def pads(self) -> list[int]:
        """Pads before and after, up to the end of the last window."""
        return [*self.window.pad, *self.over]

    @property
    def some_empty(self) -> bool:
        """True if a window is outside of the image, which ONNX operators do not support."""
        return any(
            over >= length for over, length in zip(self.over, self.window.kernel, strict=True)
        )


def _fit_of(p: PoolingParameter, spatial: Shape) -> Fit:
    """Return the placement of a layer's windows."""
    window = pooling_window(p, spatial)
    out = window.pooled(spatial, ceil=p.round_mode == PoolingParameter.CEIL)
    return Fit(window, spatial, out, pooling_method(p)[1])


def _pooling(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add the operators of a Pooling layer."""
    p, [x] = node.layer.param.pooling_param, node.bottoms
    method, _ = pooling_method(p)
    has_mask = len(node.tops) > 1
    if p.global_pooling and not has_mask:
        return GLOBAL_POOLS[method](graph, x)
    if any(isinstance(size, SymbolicSize) for size in x.sizes[2:]):
        return _pool_any_size(graph, x, p, has_mask=has_mask)
    fit = _fit_of(p, x.shape[2:])
    return _max_with_mask(graph, x, fit) if has_mask else POOLS[method](graph, x, fit)


def _pool_any_size(graph: GraphBuilder, x: Value, p: PoolingParameter, *, has_mask: bool) -> Array:
    """Add a pooling for any image size, with ONNX's rounding."""
    window = pooling_window(p, x.shape[2:])
    up = p.round_mode == PoolingParameter.CEIL and set(window.stride) != {1}
    ends = [*window.pad, *window.pad_after]
    method, counts_pads = pooling_method(p)
    gaps = any(s > k for s, k in zip(window.stride, window.kernel, strict=True))
    means = method != "MAX" and counts_pads
    if has_mask or (up and (gaps or (means and any(ends)))):
        message = (
            "this pooling is supported for one image size only: it has a mask, or rounds sizes up "
            "and has a stride above the kernel or a mean with pads"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED)

    def pool(operator: str, image: Array | Value, **how: Any) -> Array:
        return graph.add(operator, image, ceil_mode=int(up), pads=ends, **_window(window), **how)

    if method == "MAX":
        return pool("MaxPool", x)
    if method == "AVE":
        return pool("AveragePool", x, count_include_pad=int(counts_pads and not up))
    return _stochastic(graph, x, partial(pool, "AveragePool", count_include_pad=0))


def _largest(graph: GraphBuilder, x: Array | Value, fit: Fit) -> Array:
    empty = fit.some_empty
    x = _padded(graph, x, fit.pads, LOWEST) if empty else x
    return graph.add("MaxPool", x, pads=None if empty else fit.pads, **_window(fit.window))


def _max_with_mask(graph: GraphBuilder, x: Value, fit: Fit) -> Result:
    """Add MaxPool, and the index of each maximum in its plane."""
    if fit.some_empty:
        message = "a mask of windows outside of the image has no ONNX form"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    largest, indices = graph.add_several(
        "MaxPool", x, names=["largest", "indices"], pads=fit.pads, **_window(fit.window)
    )
    return largest, graph.to_float(graph.add("Mod", indices, [math.prod(x.shape[2:])]))


def average(graph: GraphBuilder, x: Array | Value, fit: Fit) -> Array:
    """Add AveragePool with Caffe's divisors."""
    window = fit.window
    pool = partial(graph.add, "AveragePool", **_window(window))
    if fit.some_empty:
        divisors = window.divisors(fit.size, fit.out, pads=fit.counts_pads)  # NaN for 0
        factors = window.size / divisors.astype(np.float32)[None, None]
        return pool(_padded(graph, x, fit.pads, 0.0)) * graph.constant(factors)
    if not fit.counts_pads:
        return pool(x, count_include_pad=0, pads=fit.pads)
    pads = [*window.pad, *window.pad_after]
    beyond = [max(0, over - q) for over, q in zip(fit.over, window.pad_after, strict=True)]
    if not any(beyond):
        return pool(x, count_include_pad=1, pads=pads)
    if any(pads):
        x = _padded(graph, x, pads, 0.0)
    return pool(x, count_include_pad=0, pads=[*(0,) * len(beyond), *beyond])


def _stochastic(
    graph: GraphBuilder, x: Array | Value, mean: Callable[[Array | Value], Array]
) -> Array:
    """Add the expected value of stochastic pooling: mean of squares over mean."""
    squares = mean(graph.add("Mul", x, x))
    return squares / (mean(x) + TINY)


POOLS: Mapping[str, Callable[[GraphBuilder, Value, Fit], Array]] = {
    "AVE": average,
    "MAX": _largest,
    "STOCHASTIC": lambda graph, x, fit: _stochastic(
        graph, x, lambda values: average(graph, values, fit)
    ),
}

GLOBAL_POOLS: Mapping[str, Callable[[GraphBuilder, Value], Array]] = {
    "AVE": lambda graph, x: graph.add("GlobalAveragePool", x),
    "MAX": lambda graph, x: graph.add("GlobalMaxPool", x),
    "STOCHASTIC": lambda graph, x: _stochastic(graph, x, partial(graph.add, "GlobalAveragePool")),
}


def _spp(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a pooling for each level, and Concat."""
    layer, [x] = node.layer_as(SPP), node.bottoms
    pool = POOLS[PoolingParameter.PoolMethod.Name(layer.param.spp_param.pool)]
    fits = [_fit_of(pool.param.pooling_param, x.shape[2:]) for pool in layer.pools]
    if len(fits) == 1:
        return pool(graph, x, fits[0])
    levels = [graph.add("Flatten", pool(graph, x, fit), axis=1) for fit in fits]
    return graph.add("Concat", *levels, axis=1)


def _window(window: Window) -> dict[str, Any]:
    return {"kernel_shape": list(window.kernel), "strides": list(window.stride)}


def _padded(graph: GraphBuilder, x: Array | Value, pads: Sequence[int], value: float) -> Array:
    """Add Pad of spatial axes; ``pads`` are those before, then those after."""
    half = len(pads) // 2
    return graph.add("Pad", x, [0, 0, *pads[:half], 0, 0, *pads[half:]], value)


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(
        ("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "NdConvolution"),
        _convolution,
    ),
    **dict.fromkeys(("NdPooling", "Pooling"), _pooling),
    "Deconvolution": partial(_convolution, operator="ConvTranspose"),
    "Im2col": _im2col,
    "Interp": _interp,
    "SPP": _spp,
    "Upsample": _upsample,
}
