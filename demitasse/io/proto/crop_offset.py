"""Offsets of Crop layers that align the coordinates of two blobs.

A convolution or pooling maps a pixel ``x`` of its top to ``scale * x + shift`` of its bottom. Two
blobs are aligned through their nearest common ancestor along first bottoms.

Source: FCN's first release (longjon/caffe, branch ``future``), ``src/caffe/layers/crop_layer.cpp``,
``include/caffe/util/coords.hpp``.
"""

from collections.abc import Iterator
from fractions import Fraction

from demitasse.io.proto.caffe_pb2 import (
    ConvolutionParameter,
    LayerParameter,
    NetParameter,
    PoolingParameter,
)

Map = tuple[Fraction, Fraction]
"""Scale and shift along one axis."""

SIDES = ("h", "w")


def crop_offset(net: NetParameter, index: int) -> list[int] | None:
    """Return where the second bottom of a Crop layer begins on the first: row and column.

    None if the bottoms have no common ancestor or different scales, or if an offset is negative or
    not a whole number.
    """
    maps = dict(_ancestors(net, index, 0))
    for blob, reference in _ancestors(net, index, 1):
        if blob in maps:
            offsets = [_offset(a, b) for a, b in zip(maps[blob], reference, strict=True)]
            known = [offset for offset in offsets if offset is not None]
            return known if len(known) == len(offsets) else None
    return None


def _offset(cropped: Map, reference: Map) -> int | None:
    """Return the pixel of the cropped blob at the reference's first pixel, along one axis."""
    if cropped[0] != reference[0]:
        return None
    offset = (reference[1] - cropped[1]) / cropped[0]
    return int(offset) if offset >= 0 and offset.denominator == 1 else None


def _ancestors(
    net: NetParameter, index: int, bottom: int
) -> Iterator[tuple[tuple[int, str], list[Map]]]:
    """Yield a bottom and its ancestors, nearest first, and the maps of its pixels to theirs.

    A blob is named by the layer that writes it, -1 for an input, and by its name.
    """
    blob, maps = net.layer[index].bottom[bottom], [(Fraction(1), Fraction(0))] * len(SIDES)
    while True:
        index = next((i for i in reversed(range(index)) if blob in net.layer[i].top), -1)
        yield (index, blob), maps
        if index < 0 or not net.layer[index].bottom:
            return
        steps = [_map_of(net.layer[index], axis) for axis in range(len(SIDES))]
        maps = [
            (by * scale, by * shift + start)
            for step, (scale, shift) in zip(steps, maps, strict=True)
            if step is not None
            for by, start in (step,)
        ]
        if len(maps) < len(SIDES):
            return
        blob = net.layer[index].bottom[0]


def _map_of(layer: LayerParameter, axis: int) -> Map | None:
    """Return the map from a layer's top to its first bottom; None if unknown."""
    if layer.type == "Crop":
        offsets = layer.crop_param.offset
        return Fraction(1), Fraction(offsets[axis % len(offsets)] if offsets else 0)
    p: ConvolutionParameter | PoolingParameter
    if layer.type in {"Convolution", "Deconvolution"}:
        p = layer.convolution_param
        dilation = _side(p, "dilation", "dilation", axis, 1)
        extent = (_side(p, "kernel_size", "kernel", axis, 0) - 1) * dilation + 1
    elif layer.type == "Pooling":
        p = layer.pooling_param
        extent = _side(p, "kernel_size", "kernel", axis, 0)
    else:
        return Fraction(1), Fraction(0)
    stride, pad = _side(p, "stride", "stride", axis, 1), _side(p, "pad", "pad", axis, 0)
    if extent <= 0 or stride <= 0:
        return None
    start = Fraction(extent - 1, 2) - pad
    if layer.type == "Deconvolution":
        return Fraction(1, stride), -start / stride
    return Fraction(stride), start


def _side(
    p: ConvolutionParameter | PoolingParameter, square: str, name: str, axis: int, default: int
) -> int:
    """Return a window's value along one axis."""
    side = f"{name}_{SIDES[axis]}"
    if p.HasField(side):
        return int(getattr(p, side))
    values = getattr(p, square)
    if isinstance(values, int):
        return values
    return int(values[axis % len(values)]) if values else default
