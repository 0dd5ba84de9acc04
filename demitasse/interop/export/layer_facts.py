"""Facts of layers that the converters of all formats need: parameters, shapes, axes and pads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from demitasse.backends.windows import Shape, Window
from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.export.sizes import Size
from demitasse.io.weights.batch_norm import running_averages
from demitasse.layers.batch_norm import BatchNorm
from demitasse.layers.exp_log_power import Power

S = TypeVar("S", bound=Size)


@dataclass(frozen=True)
class BatchNormParameters:
    """Parameters of a BatchNorm with its folded Scale. Shapes: (C,).

    Attributes:
        affine: True if the layers have scale or shift of their own.
        scale: Factor after the division, 1 by default.
        shift: Summand after the factor, 0 by default.
    """

    mean: np.ndarray
    variance: np.ndarray
    affine: bool
    scale: np.ndarray
    shift: np.ndarray


def batch_norm_parameters(node: LayerNode) -> BatchNormParameters:
    """Return the parameters of a BatchNorm and of its folded Scale."""
    layer = node.layer_as(BatchNorm)
    blobs, count = [blob.cpu_data() for blob in layer.blobs], layer.channels
    scale, shift = np.ones(count, np.float32), np.zeros(count, np.float32)
    if layer.scaled:
        scale, shift = blobs[3], blobs[4]
    if node.scale is not None:
        more = [blob.cpu_data().reshape(count) for blob in node.scale.blobs]
        scale, shift = scale * more[0], shift * more[0]
        if len(more) > 1:
            shift = shift + more[1]
    affine = layer.scaled or node.scale is not None
    return BatchNormParameters(*running_averages(blobs[:3]), affine, scale, shift)


def pads_to_fit(window: Window, size: Shape, out: Shape) -> list[int]:
    """Return the pads after an image with which the last window ends on the padded image.

    Caffe accepts a window that exceeds image and pads by less than a stride.
    """
    return [
        max(after, (n - 1) * stride + extent - length - before)
        for (before, after), n, stride, extent, length in zip(
            window.pads, out, window.stride, window.extent, size, strict=True
        )
    ]


def broadcast_sizes(x: Value, operand: Sequence[S], axis: int) -> tuple[S | int, ...]:
    """Return the sizes with which an operand for the axes of ``x`` from ``axis`` broadcasts."""
    behind = len(x.shape) - axis % len(x.shape) - len(operand) if operand else 0
    return (*operand, *(1,) * behind)


def channel_shape(count: int, x: Value) -> tuple[int, ...]:
    """Return the shape in which one value per channel broadcasts."""
    return (count, *(1,) * (len(x.shape) - 2))


def constant_power(layer: Power) -> float:
    """Return the value of a Power whose factor is 0."""
    return math.pow(layer.shift, layer.power) if layer.shift or layer.power >= 0 else math.inf


def crop_offsets(node: LayerNode) -> tuple[int, list[int]]:
    """Return the first axis that a Crop crops, and the offset along each axis from there."""
    p, axes = node.layer.param.crop_param, len(node.bottoms[0].shape)
    axis = p.axis % axes
    return axis, list(p.offset) if len(p.offset) > 1 else list(p.offset or [0]) * (axes - axis)


def reorg_blocks(node: LayerNode) -> tuple[list[Size], list[int]]:
    """Return the sizes of a Reorg's blocks of pixels or channels, and their new order."""
    p, [x] = node.layer.param.reorg_param, node.bottoms
    s, n, (c, h, w) = p.stride, x.sizes[0], x.shape[1:]
    less = c // (s * s)
    if p.reverse:
        return [n, s, s, less, h, w], [0, 3, 4, 1, 5, 2]
    return [n, less, h, s, w, s], [0, 3, 5, 1, 2, 4]


def tile_repeats(node: LayerNode) -> list[int]:
    """Return the number of repetitions of a Tile along each axis."""
    p, axes = node.layer.param.tile_param, len(node.bottoms[0].shape)
    repeats = [1] * axes
    repeats[p.axis % axes] = p.tiles
    return repeats


def prior_boxes(node: LayerNode) -> np.ndarray:
    """Return the boxes of a PriorBox, which depend on shapes alone."""
    place = node.place
    place.layer.run_forward(place.bottom, place.top)
    return np.array(place.top[0].cpu_data())
