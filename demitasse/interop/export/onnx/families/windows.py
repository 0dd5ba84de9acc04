"""Convolutions and other layers over maps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.backends.windows import Shape, Window
from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.walk import Step, Value
from demitasse.layers.convolution import ConvolutionBase
from demitasse.layers.im2col import Im2col
from demitasse.layers.interp import Interp
from demitasse.layers.upsample import Upsample

__all__ = ["CONVERTERS"]


def convolution(step: Step, graph: Graph) -> None:
    """Add a Conv for each bottom, all with the same weight."""
    layer = step.of(ConvolutionBase)
    for x, y in zip(step.bottoms, step.tops, strict=True):
        spatial = x.shape[layer.axis + 1 :]
        pads = pads_of(layer.window, spatial, y.shape[layer.axis + 1 :])
        _product(graph, "Conv", layer, x, y, pads)


def deconvolution(step: Step, graph: Graph) -> None:
    """Add a ConvTranspose for each bottom."""
    layer = step.of(ConvolutionBase)
    for x, y in zip(step.bottoms, step.tops, strict=True):
        _product(graph, "ConvTranspose", layer, x, y, [*layer.window.pad, *layer.window.pad])


def pads_of(window: Window, size: Shape, out: Shape) -> list[int]:
    """Return the pads before and after, which let the last window end on the image.

    Caffe takes a window that is longer than image and pads together by less than a stride.
    """
    after = [
        max(pad, (n - 1) * step + extent - length - pad)
        for pad, n, step, extent, length in zip(
            window.pad, out, window.stride, window.extent, size, strict=True
        )
    ]
    return [*window.pad, *after]


def _product(
    graph: Graph, operator: str, layer: ConvolutionBase, x: Value, y: Value, pads: list[int]
) -> None:
    """Add a convolution; all axes before the channels are one for ONNX."""
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


def im2col(step: Step, graph: Graph) -> None:
    """Add a Conv of each channel by itself whose weights choose one tap each."""
    layer, [x], [y] = step.of(Im2col), step.bottoms, step.tops
    window, channels, lead = layer.window, x.shape[layer.axis], layer.axis != 1
    taps = np.eye(window.size, dtype=np.float32).reshape(window.size, 1, *window.kernel)
    weight = graph.constant(np.tile(taps, (channels, *(1,) * (taps.ndim - 1))), "taps")
    images = graph.reshape(x, [-1, *x.sizes[layer.axis :]]) if lead else x.name
    columns = graph.add(
        "Conv", images, weight, to=None if lead else y, group=channels,
        kernel_shape=list(window.kernel), strides=list(window.stride),
        dilations=list(window.dilation),
        pads=pads_of(window, x.shape[layer.axis + 1 :], y.shape[layer.axis + 1 :]),
    )  # fmt: skip
    if lead:
        graph.reshape(columns, y.sizes, to=y)


def interp(step: Step, graph: Graph) -> None:
    """Add Resize, after a Slice where pads cut pixels off."""
    p, x, [y] = step.of(Interp).param.interp_param, step.bottoms[0], step.tops
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


def upsample(step: Step, graph: Graph) -> None:
    """Add a repetition of pixels, or a scatter to the places of a mask."""
    layer, x, [y] = step.of(Upsample), step.bottoms[0], step.tops
    lead, (height, width) = x.sizes[:-2], x.shape[-2:]
    if len(step.bottoms) == 1:
        down, right = layer.scale
        blocks = graph.reshape(x, [*lead, height, 1, width, 1])
        ones = [1] * (len(lead) + 1)
        repeats = graph.ints([*ones, down, 1, right])
        graph.reshape(graph.add("Tile", blocks, repeats), y.sizes, to=y)
        return
    places = y.shape[-2] * y.shape[-1]
    empty = graph.add("ConstantOfShape", graph.sizes([*lead, places]), value=graph.tensor([0.0]))
    values = graph.reshape(x, [*lead, height * width])
    indices = graph.integers(graph.reshape(step.bottoms[1], [*lead, height * width]))
    filled = graph.add("ScatterElements", empty, indices, values, axis=2)
    graph.reshape(filled, y.sizes, to=y)


CONVERTERS: Mapping[str, Converter] = {
    "Convolution": convolution,
    "ConvolutionDepthwise": convolution,
    "Deconvolution": deconvolution,
    "DepthwiseConvolution": convolution,
    "Im2col": im2col,
    "Interp": interp,
    "Upsample": upsample,
}
