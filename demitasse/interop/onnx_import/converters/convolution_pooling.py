"""Converters of convolutions and poolings.

Caffe pads both sides equally. For unequal pads, the first pad grows by multiples of the stride
until the last window fits, and a Slice removes the results of the additional windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demitasse.backends.windows import Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.model import Node, Shape
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder

MOST_CUT = 64
"""Largest number of additional windows before the first one."""


@dataclass(frozen=True)
class WindowGeometry:
    """Windows of a node, along each axis.

    Attributes:
        kernel: Kernel sizes.
        stride: Strides.
        dilation: Dilations.
        before: Pads before the image.
        after: Pads after the image.
    """

    kernel: Shape
    stride: Shape
    dilation: Shape
    before: Shape
    after: Shape

    @property
    def extent(self) -> Shape:
        """Sizes of dilated windows."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


def _window_geometry(node: Node, kernel: Shape, spatial: Shape) -> WindowGeometry:
    """Return the windows of a node, with pads computed for ``auto_pad``."""
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
        message = f"got negative pads {list(pads)}, which Caffe's layers do not support"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=list(pads))
    return WindowGeometry(kernel, stride, dilation, pads[:axes], pads[axes:])


def _convolution(node: Node, net: NetBuilder) -> None:
    """Add Convolution, and Slice layers for unequal pads."""
    x, weight, y = node.x, node.array(1, "weight"), node.y
    where = _window_geometry(node, weight.shape[2:], x.shape[2:])
    skipped = [
        _skipped(size, before, extent, stride, out)
        for size, before, extent, stride, out in zip(
            x.shape[2:], where.before, where.extent, where.stride, y.shape[2:], strict=True
        )
    ]
    pad = _grown_pads(where, skipped)
    window = Window(where.kernel, where.stride, pad, where.dilation)
    made = window.convolved(x.shape[2:])
    group = node.attributes.get("group", 1)
    _weighted(net, "Convolution", node, weight, weight.shape[0], pad, where, group, made, skipped)


def _transposed(node: Node, net: NetBuilder) -> None:
    """Add Deconvolution, with larger windows for outputs beyond the last window."""
    x, weight, y = node.x, node.array(1, "weight"), node.y
    axes = len(weight.shape[2:])
    where = _window_geometry(_without_rule(node), weight.shape[2:], x.shape[2:])
    more = node.attributes.get("output_padding") or [0] * axes
    before = _before(node, where, _full_size(where, x.shape), more, y.shape[2:])
    lacking = [
        max(0, first + out - size)
        for first, out, size in zip(before, y.shape[2:], _full_size(where, x.shape), strict=True)
    ]
    if any(lacking):  # append weights of 0
        taps = [-(-lack // gap) for lack, gap in zip(lacking, where.dilation, strict=True)]
        weight = np.pad(weight, [(0, 0), (0, 0), *((0, count) for count in taps)])
        where = replace(where, kernel=weight.shape[2:])
    full = _full_size(where, x.shape)
    behind = [a - b - out for a, b, out in zip(full, before, y.shape[2:], strict=True)]
    pad = tuple(min(pair) for pair in zip(before, behind, strict=True))
    skipped = [a - b for a, b in zip(before, pad, strict=True)]
    made = tuple(a - 2 * b for a, b in zip(full, pad, strict=True))
    group = node.attributes.get("group", 1)
    outputs = weight.shape[1] * group
    _weighted(net, "Deconvolution", node, weight, outputs, pad, where, group, made, skipped)


def _full_size(where: WindowGeometry, shape: Shape) -> list[int]:
    """Return the sizes that windows around all pixels cover."""
    return [
        (size - 1) * stride + extent
        for size, stride, extent in zip(shape[2:], where.stride, where.extent, strict=True)
    ]


def _without_rule(node: Node) -> Node:
    """Return a node without ``auto_pad``, which differs in ConvTranspose."""
    rest = {key: value for key, value in node.attributes.items() if key != "auto_pad"}
    return replace(node, attributes=rest)


def _before(
    node: Node, where: WindowGeometry, full: Sequence[int], more: Sequence[int], out: Shape
) -> list[int]:
    """Return the number of pixels to remove before the output."""
    rule = node.attributes.get("auto_pad", b"NOTSET")
    if rule == b"NOTSET" and "output_shape" not in node.attributes:
        return list(where.before)
    totals = [max(0, a + b - c) for a, b, c in zip(full, more, out, strict=True)]
    if rule == b"SAME_UPPER":
        return [total // 2 for total in totals]
    return [total - total // 2 for total in totals]


def _weighted(
    net: NetBuilder,
    kind: str,
    node: Node,
    weight: np.ndarray,
    outputs: int,
    pad: Shape,
    where: WindowGeometry,
    group: int,
    made: Shape,
    skipped: Sequence[int],
) -> None:
    """Add a layer with weights, and crop its top to the node's output."""
    weights = [weight]
    bias = node.optional_input(2)
    if bias is not None:
        weights.append(node.array(2, "bias"))
    fields: dict[str, Any] = {"num_output": outputs, "kernel_size": _shortest(where.kernel)}
    for name, values, usual in (
        ("pad", pad, 0), ("stride", where.stride, 1), ("dilation", where.dilation, 1)
    ):  # fmt: skip
        if set(values) != {usual}:
            fields[name] = _shortest(values)
    if group != 1:
        fields["group"] = group
    if bias is None:
        fields["bias_term"] = False
    full = made == node.y.shape[2:]
    top = net.add(
        kind, [net.blob(node.x)], (*node.y.shape[:2], *made), to=node.y if full else None,
        weights=weights, convolution_param=fields,
    )  # fmt: skip
    _crop_to(net, top, skipped, node)


def _crop_to(net: NetBuilder, x: str, skipped: Sequence[int], node: Node) -> None:
    """Crop a blob to the size of a node's output, from ``skipped``."""
    out = node.y.shape[2:]
    axes = [
        axis for axis, (first, size) in enumerate(zip(skipped, out, strict=True))
        if (first, size) != (0, net.shapes[x][axis + 2])
    ]  # fmt: skip
    for axis in axes:
        first = skipped[axis]
        to = node.y if axis == axes[-1] else None
        x = net.slice(x, axis + 2, first, first + out[axis], to=to)


def _shortest(values: Shape) -> list[int]:
    """Return one number if all are equal."""
    return [values[0]] if len(set(values)) == 1 else list(values)


def _grown_pads(where: WindowGeometry, skipped: Sequence[int]) -> Shape:
    return tuple(
        before + number * stride
        for before, number, stride in zip(where.before, skipped, where.stride, strict=True)
    )


def _skipped(size: int, before: int, extent: int, stride: int, out: int) -> int:
    """Return the number of additional windows before the first one."""
    for number in range(MOST_CUT):
        pad = before + number * stride
        if (size + 2 * pad - extent) // stride + 1 >= number + out:
            return number
    message = "the pads after the image are too much larger than those before for Caffe's layers"
    raise NetError(message, code=ErrorCode.UNSUPPORTED)


# -- poolings ----------------------------------------------------------------------------------

ROUND_MODES = ("CEIL", "FLOOR")
"""Round modes of Pooling, the default first."""

IMAGE = 2
"""Number of axes of an image; a row is read as an image of one row."""


def _max_pool(node: Node, net: NetBuilder) -> None:
    """Add max Pooling."""
    node.refuse_outputs(1)
    _pool(node, net, "MAX")


def _average_pool(node: Node, net: NetBuilder) -> None:
    """Add average Pooling, and a factor for each window with another divisor in Caffe."""
    _pool(node, net, "AVE")


def _global_pool(method: str) -> Converter:
    """Return a converter to global Pooling."""

    def convert(node: Node, net: NetBuilder) -> None:
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


def _pool(node: Node, net: NetBuilder, method: str) -> None:
    """Add Pooling."""
    where = _window_geometry(node, tuple(node.attributes["kernel_shape"]), node.x.shape[2:])
    x, spatial, out = net.blob(node.x), node.x.shape[2:], node.y.shape[2:]
    flat = len(spatial) >= IMAGE
    if set(where.dilation) != {1}:
        message = f"got dilations {list(where.dilation)}, which Pooling does not support"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if not flat:
        x = net.reshape(x, (*node.x.shape[:2], 1, *spatial))
        where = WindowGeometry((1, *where.kernel), (1, *where.stride), (1, *where.dilation),
                       (0, *where.before), (0, *where.after))  # fmt: skip
        spatial, out = (1, *spatial), (1, *out)
    skipped, rounding = _plan_windows(where, spatial, out)
    pad = tuple(b + n * s for b, n, s in zip(where.before, skipped, where.stride, strict=True))
    window = Window(where.kernel, where.stride, pad, (1,) * len(pad))
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
        _crop_to(net, found, skipped, node)
        return
    for axis, (first, size) in enumerate(zip(skipped, out, strict=True)):
        found = net.slice(found, axis + 2, first, first + size)
    if factors is not None:
        fields = {"axis": 2, "num_axes": len(pad)}
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
        elif len(values) != IMAGE:
            fields[f"{short}_3d"] = list(values)
        else:
            fields[f"{name}_h"], fields[f"{name}_w"] = values
    if rounding == "FLOOR":
        fields["round_mode"] = "FLOOR"
    return fields


def _plan_windows(where: WindowGeometry, spatial: Shape, out: Shape) -> tuple[Shape, str]:
    """Return the number of additional windows along each axis, and the round mode."""
    beyond = any(
        (n - 1) * stride - before >= size
        for n, stride, before, size in zip(out, where.stride, where.before, spatial, strict=True)
    )
    fits = [] if beyond else [_plan_mode(where, spatial, out, rounding) for rounding in ROUND_MODES]
    known = [one for one in fits if one is not None]
    if not known:
        message = (
            f"got pads {[*where.before, *where.after]} with kernel {list(where.kernel)} and stride "
            f"{list(where.stride)}, which exceed those of Caffe's Pooling"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    _, skipped, rounding = min(known, key=lambda fit: fit[0])
    return skipped, rounding


def _plan_mode(
    where: WindowGeometry, spatial: Shape, out: Shape, rounding: str
) -> tuple[int, Shape, str] | None:
    """Return the excess windows, those before the first one along each axis, and the mode."""
    found = [_plan_axis(where, axis, spatial, out, rounding) for axis in range(len(out))]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return sum(extra for _, extra in known), tuple(first for first, _ in known), rounding


def _plan_axis(
    where: WindowGeometry, axis: int, spatial: Shape, out: Shape, rounding: str
) -> tuple[int, int] | None:
    """Return the additional windows before the first one, and the excess windows."""
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
    node: Node, where: WindowGeometry, spatial: Shape, out: Shape, pad: Shape
) -> np.ndarray | None:
    """Return the factors of Caffe's means, (H, W); None if all are 1."""
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
    "AveragePool": _average_pool,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "GlobalAveragePool": _global_pool("AVE"),
    "GlobalMaxPool": _global_pool("MAX"),
    "MaxPool": _max_pool,
}
