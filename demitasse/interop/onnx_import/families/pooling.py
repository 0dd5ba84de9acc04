"""Poolings: windows with Caffe's rounding, whose mean divides as the model's does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse.backends.windows import Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.converter import Converter
from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.families.windows import MOST_CUT, Placed, cut_to, placed
from demitasse.interop.onnx_import.source import Node, Shape

__all__ = ["CONVERTERS"]

ROUNDINGS = ("CEIL", "FLOOR")
"""Pooling's, the usual one first."""

IMAGE = 2
"""Axes of an image, which Pooling takes."""


def max_pool(node: Node, net: Draft) -> None:
    """Add Pooling of the largest."""
    node.need_no(1)
    _pool(node, net, "MAX")


def average_pool(node: Node, net: Draft) -> None:
    """Add Pooling of the mean, and a factor for each window that Caffe divides otherwise."""
    _pool(node, net, "AVE")


def global_pool(method: str) -> Converter:
    """Return the converter of a pooling over whole images."""

    def convert(node: Node, net: Draft) -> None:
        shape = node.x.shape
        x = net.blob(node.x)
        flat = len(shape) == IMAGE + 2
        if not flat:
            x = net.reshape(x, (*shape[:2], 1, math.prod(shape[2:])))
        fields = {"pool": method, "global_pooling": True}
        out = (*shape[:2], 1, 1)
        found = net.add("Pooling", [x], out, to=node.y if flat else None, pooling_param=fields)
        if not flat:
            net.reshape(found, node.y.shape, to=node.y)

    return convert


def _pool(node: Node, net: Draft, method: str) -> None:
    """Add Pooling.

    Raises:
        NetError: Windows have gaps, or lie beyond the image, or images have three axes.
    """
    where = placed(node, tuple(node.attributes["kernel_shape"]), node.x.shape[2:])
    x, spatial, out = net.blob(node.x), node.x.shape[2:], node.y.shape[2:]
    flat = len(spatial) == IMAGE
    if len(spatial) > IMAGE:
        message = f"Pooling takes images of two axes, not {len(spatial)}"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if set(where.dilation) != {1}:
        message = f"Pooling takes windows without gaps, not dilations {list(where.dilation)}"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if not flat:
        x = net.reshape(x, (*node.x.shape[:2], 1, *spatial))
        where = Placed((1, *where.kernel), (1, *where.stride), (1, *where.dilation),
                       (0, *where.before), (0, *where.after))  # fmt: skip
        spatial, out = (1, *spatial), (1, *out)
    skipped, rounding = _fitting(where, spatial, out)
    pad = tuple(b + n * s for b, n, s in zip(where.before, skipped, where.stride, strict=True))
    window = Window(where.kernel, where.stride, pad, (1,) * IMAGE)
    made = window.pooled(spatial, ceil=rounding == "CEIL")
    factors = _factors(node, where, spatial, out, pad) if method == "AVE" else None
    last = flat and made == out and factors is None
    found = net.add(
        "Pooling", [x], (*node.y.shape[:2], *made), to=node.y if last else None,
        pooling_param=_fields(method, window, rounding),
    )  # fmt: skip
    if last:
        return
    plain = flat and factors is None
    if plain:
        cut_to(net, found, skipped, node)
        return
    for axis, (first, size) in enumerate(zip(skipped, out, strict=True)):
        found = net.cut(found, axis + 2, first, first + size)
    if factors is not None:
        fields = {"axis": 2, "num_axes": IMAGE}
        found = net.add("Scale", [found], net.shapes[found], to=node.y if flat else None,
                        weights=[factors], scale_param=fields)  # fmt: skip
    if not flat:
        net.reshape(found, node.y.shape, to=node.y)


def _fields(method: str, window: Window, rounding: str) -> dict[str, Any]:
    """Return the fields of a Pooling layer."""
    fields: dict[str, Any] = {"pool": method}
    for name, short, values, usual in (
        ("kernel", "kernel_size", window.kernel, None),
        ("stride", "stride", window.stride, 1),
        ("pad", "pad", window.pad, 0),
    ):
        if len(set(values)) == 1:
            if values[0] != usual:
                fields[short] = values[0]
        else:
            fields[f"{name}_h"], fields[f"{name}_w"] = values
    if rounding == "FLOOR":
        fields["round_mode"] = "FLOOR"
    return fields


def _fitting(where: Placed, spatial: Shape, out: Shape) -> tuple[Shape, str]:
    """Return how many windows to skip along each axis, and a rounding that makes the rest.

    Raises:
        NetError: None does.
    """
    beyond = any(
        (n - 1) * stride - before >= size
        for n, stride, before, size in zip(out, where.stride, where.before, spatial, strict=True)
    )
    fits = [] if beyond else [_skips(where, spatial, out, rounding) for rounding in ROUNDINGS]
    known = [one for one in fits if one is not None]
    if not known:
        message = (
            f"pads {[*where.before, *where.after]} with windows of {list(where.kernel)} at strides "
            f"of {list(where.stride)} are more than Caffe's Pooling can have"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    _, skipped, rounding = min(known, key=lambda fit: fit[0])
    return skipped, rounding


def _skips(
    where: Placed, spatial: Shape, out: Shape, rounding: str
) -> tuple[int, Shape, str] | None:
    """Return how many windows are too many, how many of them come first, and the rounding."""
    found = [_skip(where, axis, spatial, out, rounding) for axis in range(len(out))]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return sum(extra for _, extra in known), tuple(first for first, _ in known), rounding


def _skip(
    where: Placed, axis: int, spatial: Shape, out: Shape, rounding: str
) -> tuple[int, int] | None:
    """Return how many windows to skip before the first, and how many are made too much."""
    kernel, stride, before = where.kernel[axis], where.stride[axis], where.before[axis]
    number = 0
    while number < MOST_CUT and (pad := before + number * stride) < kernel:
        window = Window((kernel,), (stride,), (pad,), (1,))
        if spatial[axis] + 2 * pad >= kernel:
            [made] = window.pooled((spatial[axis],), ceil=rounding == "CEIL")
            if made >= number + out[axis]:
                return number, made - out[axis]
        number += 1
    return None


def _factors(
    node: Node, where: Placed, spatial: Shape, out: Shape, pad: Shape
) -> np.ndarray | None:
    """Return by what Caffe's means are multiplied, (H, W); None where by 1."""
    with_pads = bool(node.attributes.get("count_include_pad", 0))
    ours = theirs = np.ones((), np.float64)
    for axis, size in enumerate(spatial):
        starts = np.arange(out[axis]) * where.stride[axis] - where.before[axis]
        ends = starts + where.kernel[axis]
        ours = np.multiply.outer(ours, np.minimum(ends, size + pad[axis]) - starts)
        if with_pads:
            counted = np.minimum(ends, size + where.after[axis]) - starts
        else:
            counted = np.minimum(ends, size) - np.maximum(starts, 0)
        theirs = np.multiply.outer(theirs, counted)
    return None if np.array_equal(ours, theirs) else ours / theirs


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool("AVE"),
    "GlobalMaxPool": global_pool("MAX"),
    "MaxPool": max_pool,
}
