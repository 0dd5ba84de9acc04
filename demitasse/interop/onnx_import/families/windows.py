"""Convolutions, and poolings with the geometry they share.

Caffe pads both sides alike. Where a model does not, the first pad grows by whole strides until the
last window fits, and what the windows before give is cut off: the others lie where they should.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demitasse.backends.windows import Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.converter import Converter
from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.source import Node, Shape

__all__ = ["CONVERTERS", "MOST_CUT", "Placed", "cut_to", "placed"]

MOST_CUT = 64
"""Windows before the first one that are computed and cut off, at most."""


@dataclass(frozen=True)
class Placed:
    """Where a node's windows lie.

    Attributes:
        kernel, stride, dilation: Of the windows, along each axis.
        before, after: Pads.
    """

    kernel: Shape
    stride: Shape
    dilation: Shape
    before: Shape
    after: Shape

    @property
    def extent(self) -> Shape:
        """Size of a window with its gaps."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


def placed(node: Node, kernel: Shape, spatial: Shape) -> Placed:
    """Return where windows lie, pads worked out where the node leaves them to a rule."""
    axes, at = len(kernel), node.attributes
    stride = tuple(at.get("strides") or [1] * axes)
    dilation = tuple(at.get("dilations") or [1] * axes)
    pads = tuple(at.get("pads") or [0] * 2 * axes)
    rule = at.get("auto_pad", b"NOTSET")
    if rule in {b"SAME_UPPER", b"SAME_LOWER"}:
        totals = [
            max(0, (math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size)
            for size, s, k, d in zip(spatial, stride, kernel, dilation, strict=True)
        ]
        low = tuple(total // 2 for total in totals)
        high = tuple(total - half for total, half in zip(totals, low, strict=True))
        pads = (*low, *high) if rule == b"SAME_UPPER" else (*high, *low)
    elif rule == b"VALID":
        pads = (0,) * 2 * axes
    if min(pads) < 0:
        message = f"pads {list(pads)} cut off, which Caffe's layers do not"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=list(pads))
    return Placed(kernel, stride, dilation, pads[:axes], pads[axes:])


def convolution(node: Node, net: Draft) -> None:
    """Add Convolution; with other pads before than after, what cuts off the excess."""
    x, weight, y = node.x, node.array(1, "weight"), node.y
    where = placed(node, weight.shape[2:], x.shape[2:])
    skipped = [
        _skipped(size, before, extent, stride, out)
        for size, before, extent, stride, out in zip(
            x.shape[2:], where.before, where.extent, where.stride, y.shape[2:], strict=True
        )
    ]
    pad = _grown(where, skipped)
    window = Window(where.kernel, where.stride, pad, where.dilation)
    made = window.convolved(x.shape[2:])
    group = node.attributes.get("group", 1)
    _weighted(net, "Convolution", node, weight, weight.shape[0], pad, where, group, made, skipped)


def transposed(node: Node, net: Draft) -> None:
    """Add Deconvolution; where the output goes on behind the last window, with larger ones."""
    x, weight, y = node.x, node.array(1, "weight"), node.y
    axes = len(weight.shape[2:])
    where = placed(_without_rule(node), weight.shape[2:], x.shape[2:])
    more = node.attributes.get("output_padding") or [0] * axes
    before = _before(node, where, _whole(where, x.shape), more, y.shape[2:])
    lacking = [
        max(0, first + out - size)
        for first, out, size in zip(before, y.shape[2:], _whole(where, x.shape), strict=True)
    ]
    if any(lacking):  # taps of 0 behind those that are there
        taps = [-(-lack // gap) for lack, gap in zip(lacking, where.dilation, strict=True)]
        weight = np.pad(weight, [(0, 0), (0, 0), *((0, count) for count in taps)])
        where = replace(where, kernel=weight.shape[2:])
    whole = _whole(where, x.shape)
    behind = [a - b - out for a, b, out in zip(whole, before, y.shape[2:], strict=True)]
    pad = tuple(min(pair) for pair in zip(before, behind, strict=True))
    skipped = [a - b for a, b in zip(before, pad, strict=True)]
    made = tuple(a - 2 * b for a, b in zip(whole, pad, strict=True))
    group = node.attributes.get("group", 1)
    outputs = weight.shape[1] * group
    _weighted(net, "Deconvolution", node, weight, outputs, pad, where, group, made, skipped)


def _whole(where: Placed, shape: Shape) -> list[int]:
    """Return what windows around all pixels cover."""
    return [
        (size - 1) * stride + extent
        for size, stride, extent in zip(shape[2:], where.stride, where.extent, strict=True)
    ]


def _without_rule(node: Node) -> Node:
    """Return a node without ``auto_pad``, which means something else in ConvTranspose."""
    rest = {key: value for key, value in node.attributes.items() if key != "auto_pad"}
    return replace(node, attributes=rest)


def _before(
    node: Node, where: Placed, whole: Sequence[int], more: Sequence[int], out: Shape
) -> list[int]:
    """Return what is cut off before the output."""
    rule = node.attributes.get("auto_pad", b"NOTSET")
    if rule == b"NOTSET" and "output_shape" not in node.attributes:
        return list(where.before)
    totals = [max(0, a + b - c) for a, b, c in zip(whole, more, out, strict=True)]
    if rule == b"SAME_UPPER":
        return [total // 2 for total in totals]
    return [total - total // 2 for total in totals]


def _weighted(
    net: Draft,
    kind: str,
    node: Node,
    weight: np.ndarray,
    outputs: int,
    pad: Shape,
    where: Placed,
    group: int,
    made: Shape,
    skipped: Sequence[int],
) -> None:
    """Add a layer with weights, and cut off what it makes too much."""
    weights = [weight]
    bias = node.get(2)
    if bias is not None:
        weights.append(node.array(2, "bias"))
    fields: dict[str, Any] = {"num_output": outputs, "kernel_size": _short(where.kernel)}
    for name, values, usual in (
        ("pad", pad, 0), ("stride", where.stride, 1), ("dilation", where.dilation, 1)
    ):  # fmt: skip
        if set(values) != {usual}:
            fields[name] = _short(values)
    if group != 1:
        fields["group"] = group
    if bias is None:
        fields["bias_term"] = False
    whole = made == node.y.shape[2:]
    top = net.add(
        kind, [net.blob(node.x)], (*node.y.shape[:2], *made), to=node.y if whole else None,
        weights=weights, convolution_param=fields,
    )  # fmt: skip
    cut_to(net, top, skipped, node)


def cut_to(net: Draft, x: str, skipped: Sequence[int], node: Node) -> None:
    """Cut a blob to the size of a node's output, beginning at ``skipped``."""
    out = node.y.shape[2:]
    axes = [
        axis for axis, (first, size) in enumerate(zip(skipped, out, strict=True))
        if (first, size) != (0, net.shapes[x][axis + 2])
    ]  # fmt: skip
    for axis in axes:
        first = skipped[axis]
        to = node.y if axis == axes[-1] else None
        x = net.cut(x, axis + 2, first, first + out[axis], to=to)


def _short(values: Shape) -> list[int]:
    """Return one number where all are equal."""
    return [values[0]] if len(set(values)) == 1 else list(values)


def _grown(where: Placed, skipped: Sequence[int]) -> Shape:
    return tuple(
        before + number * stride
        for before, number, stride in zip(where.before, skipped, where.stride, strict=True)
    )


def _skipped(size: int, before: int, extent: int, stride: int, out: int) -> int:
    """Return how many windows must lie before the first one for the last one to be there.

    Raises:
        NetError: Too many.
    """
    for number in range(MOST_CUT):
        pad = before + number * stride
        if (size + 2 * pad - extent) // stride + 1 >= number + out:
            return number
    message = "the pads after are so much larger than those before that Caffe cannot have them"
    raise NetError(message, code=ErrorCode.UNSUPPORTED)


CONVERTERS: Mapping[str, Converter] = {"Conv": convolution, "ConvTranspose": transposed}
