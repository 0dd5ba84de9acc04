"""Converters of convolutions and poolings.

Layers of two axes have pads of each side. Unequal pads of one or three axes have no fields: the
first pad grows by multiples of the stride until the last window fits, and a Slice removes the
results of the additional windows.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from demitasse.backends.windows import Window
from demitasse.errors import ShapeError
from demitasse.interop.onnx_import.model import Node, Shape, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, Result
from demitasse.layers.windows import PAD_SIDES

IMAGE = 2
"""Number of axes of an image; Pooling reads a row as an image of one row."""

MOST_CUT = 64
"""Largest number of additional windows before the first one."""


def _window_of(node: Node, kernel: Shape, spatial: Shape) -> Window:
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
        refuse(
            f"got negative pads {list(pads)}, which Caffe's layers do not support", got=list(pads)
        )
    return Window(kernel, stride, pads[:axes], dilation, pads[axes:])


def _convolution(node: Node, net: NetBuilder) -> Result:
    """Add Convolution, and Slice layers for unequal pads of one or three axes."""
    x, weight, y = node.x, node.array(1, "weight"), node.y
    window = _window_of(node, weight.shape[2:], x.shape[2:])
    if len(window.kernel) == IMAGE:
        return _weighted(net, "Convolution", node, weight, len(weight), window, y.shape[2:], (0, 0))
    axes = zip(x.shape[2:], window.pad, window.extent, window.stride, y.shape[2:], strict=True)
    skipped = [  # each additional window before the first adds another behind the last
        max(0, out - 1 - (size + 2 * before - extent) // stride)
        for size, before, extent, stride, out in axes
    ]
    if max(skipped) >= MOST_CUT:
        refuse("the pads after the image are too much larger than those before for Caffe's layers")
    window = _grown(window, skipped)
    made = window.convolved(x.shape[2:])
    return _weighted(net, "Convolution", node, weight, weight.shape[0], window, made, skipped)


def _transposed(node: Node, net: NetBuilder) -> Result:
    """Add Deconvolution, with larger windows for outputs beyond the last window."""
    x, weight, out = node.x, node.array(1, "weight"), node.y.shape[2:]
    attributes = dict(node.attributes)
    rule = attributes.pop("auto_pad", b"NOTSET")  # differs in ConvTranspose
    more = attributes.get("output_padding") or [0] * len(out)
    if len(out) != len(x.shape[2:]):
        given = attributes.get("output_shape")
        refuse(f"got output_shape {given}, expected sizes of at least {list(x.shape[2:])}")
    if rule.startswith(b"SAME") and any(more) and "output_shape" not in attributes:
        refuse(f"got auto_pad {rule.decode()} with output_padding {more}; replace it by pads")
    plain = replace(node, attributes=attributes)
    window = _window_of(plain, weight.shape[2:], x.shape[2:])
    before = list(window.pad)
    window = replace(window, pad=(0,) * len(out), after=None)
    full = window.deconvolved(x.shape[2:])
    if rule != b"NOTSET" or "output_shape" in attributes:
        totals = [max(0, a + b - c) for a, b, c in zip(full, more, out, strict=True)]
        halves = [total // 2 for total in totals]
        before = [total - half for total, half in zip(totals, halves, strict=True)]
        before = halves if rule == b"SAME_UPPER" else before
    lacking = [max(0, a + b - size) for a, b, size in zip(before, out, full, strict=True)]
    if any(lacking):  # append weights of 0
        taps = [-(-lack // gap) for lack, gap in zip(lacking, window.dilation, strict=True)]
        weight = np.pad(weight, [(0, 0), (0, 0), *((0, count) for count in taps)])
        window = replace(window, kernel=weight.shape[2:])
        full = window.deconvolved(x.shape[2:])
    behind = [a - b - c for a, b, c in zip(full, before, out, strict=True)]
    pad = tuple(min(pair) for pair in zip(before, behind, strict=True))
    skipped = [a - b for a, b in zip(before, pad, strict=True)]
    outputs = weight.shape[1] * node.attributes.get("group", 1)
    window = replace(window, pad=pad)
    made = window.deconvolved(x.shape[2:])
    return _weighted(net, "Deconvolution", node, weight, outputs, window, made, skipped)


def _grown(window: Window, skipped: Sequence[int]) -> Window:
    """Return a window with equal pads, for a number of additional windows before the first one."""
    pad = zip(window.pad, skipped, window.stride, strict=True)
    return replace(
        window, pad=tuple(before + number * stride for before, number, stride in pad), after=None
    )


def _weighted(
    net: NetBuilder, kind: str, node: Node, weight: np.ndarray, outputs: int, window: Window,
    made: Shape, skipped: Sequence[int],
) -> str:  # fmt: skip
    """Add a layer with weights, and crop its top of size ``made`` to the node's output."""
    weights, has_bias = [weight], node.optional_input(2) is not None
    if has_bias:
        weights.append(node.array(2, "bias"))
    fields: dict[str, Any] = {"num_output": outputs, "kernel_size": _shortest(window.kernel)}
    pad = window.pad if window.pad == window.pad_after else ()
    for name, values, usual in (
        ("pad", pad, 0), ("stride", window.stride, 1), ("dilation", window.dilation, 1)
    ):  # fmt: skip
        if {*values} - {usual}:
            fields[name] = _shortest(values)
    fields |= _pads_of_sides(window)
    if (group := node.attributes.get("group", 1)) != 1:
        fields["group"] = group
    if not has_bias:
        fields["bias_term"] = False
    top = net.add(
        kind, [net.blob(node.x)], (*node.y.shape[:2], *made), weights=weights,
        convolution_param=fields,
    )  # fmt: skip
    return _cropped(net, top, skipped, node.y.shape[2:])


def _pads_of_sides(window: Window) -> dict[str, int]:
    """Return the fields of pads that differ between the sides of two axes."""
    if window.pad == window.pad_after:
        return {}
    return dict(zip(PAD_SIDES, (*window.pad, *window.pad_after), strict=True))


def _cropped(net: NetBuilder, x: str, skipped: Sequence[int], out: Shape) -> str:
    """Crop the spatial axes of a blob to a size, from ``skipped``."""
    for axis, (first, size) in enumerate(zip(skipped, out, strict=True), start=2):
        x = net.slice(x, axis, first, first + size)
    return x


def _shortest(values: Shape) -> list[int]:
    """Return one number if all are equal."""
    return [values[0]] if len(set(values)) == 1 else list(values)


# -- poolings ----------------------------------------------------------------------------------

ROUND_MODES = ("CEIL", "FLOOR")
"""Round modes of Pooling, the default first."""


def _global_pool(node: Node, net: NetBuilder, method: str) -> Result:
    shape, x = node.x.shape, net.blob(node.x)
    if len(shape) != IMAGE + 2:
        x = net.reshape(x, (*shape[:2], 1, math.prod(shape[2:])))
    fields = {"pool": method, "global_pooling": True}
    found = net.add("Pooling", [x], (*shape[:2], 1, 1), pooling_param=fields)
    return net.reshape(found, node.y.shape)


def _pool(node: Node, net: NetBuilder, method: str) -> Result:
    """Add Pooling, and for means a factor for each window with another divisor in Caffe."""
    node.refuse_outputs(1)
    x, spatial, out = net.blob(node.x), node.x.shape[2:], node.y.shape[2:]
    given = _window_of(node, tuple(node.attributes["kernel_shape"]), spatial)
    if set(given.dilation) != {1}:
        refuse(f"got dilations {list(given.dilation)}, which Pooling does not support")
    if len(spatial) < IMAGE:
        x = net.reshape(x, (*node.x.shape[:2], 1, *spatial))
        given = Window((1, *given.kernel), (1, *given.stride), (0, *given.pad),
                       (1, *given.dilation), (0, *given.pad_after))  # fmt: skip
        spatial, out = (1, *spatial), (1, *out)
    window, skipped, rounding = _plan_windows(given, spatial, out)
    factors = None
    if method == "AVE":
        with_pads = bool(node.attributes.get("count_include_pad", 0))
        ours = replace(given, after=window.pad_after).divisors(spatial, out, pads=True)
        theirs = given.divisors(spatial, out, pads=with_pads)
        if not np.array_equal(ours, theirs):
            method, factors = ("AVE", ours / theirs) if with_pads else ("AVE_EXC_PAD", None)
    made = window.pooled(spatial, ceil=rounding == "CEIL")
    fields = _fields(method, window, rounding)
    found = net.add("Pooling", [x], (*node.y.shape[:2], *made), pooling_param=fields)
    found = _cropped(net, found, skipped, out)
    if factors is not None:
        how = {"axis": 2, "num_axes": len(out)}
        found = net.add("Scale", [found], net.shapes[found], weights=[factors], scale_param=how)
    return net.reshape(found, node.y.shape)


def _fields(method: str, window: Window, rounding: str) -> dict[str, Any]:
    """Return the fields of a Pooling layer."""
    fields: dict[str, Any] = {"pool": method}
    pad = window.pad if window.pad == window.pad_after else ()
    for name, short, values, usual in (
        ("kernel", "kernel_size", window.kernel, None),
        ("stride", "stride", window.stride, 1),
        ("pad", "pad", pad, 0),
    ):
        if len(set(values)) <= 1:
            if {*values} - {usual}:
                fields[short] = values[0]
        elif len(values) != IMAGE:
            fields[f"{short}_3d"] = list(values)
        else:
            fields[f"{name}_h"], fields[f"{name}_w"] = values
    if rounding == "FLOOR":
        fields["round_mode"] = "FLOOR"
    return fields | _pads_of_sides(window)


def _plan_windows(window: Window, spatial: Shape, out: Shape) -> tuple[Window, Shape, str]:
    """Return windows, those of them before the first wanted along each axis, and the round mode.

    Of the modes that fit, the one with fewer excess windows is returned.
    """
    fits_kernel = all(max(pair) < k for pair, k in zip(window.pads, window.kernel, strict=True))
    for rounding in ROUND_MODES if len(out) == IMAGE and fits_kernel else ():
        with suppress(ShapeError):
            if window.pooled(spatial, ceil=rounding == "CEIL") == out:
                return window, (0, 0), rounding
    beyond = any(
        (n - 1) * stride - before >= size
        for n, stride, before, size in zip(out, window.stride, window.pad, spatial, strict=True)
    )
    fits = []
    for rounding in () if beyond else ROUND_MODES:
        axes = [_plan_axis(window, axis, spatial, out, rounding) for axis in range(len(out))]
        known = [one for one in axes if one is not None]
        if len(known) == len(axes):
            excess = sum(extra for _, extra in known)
            fits.append((excess, tuple(first for first, _ in known), rounding))
    if not fits:
        refuse(
            f"got pads {[*window.pad, *window.pad_after]} with kernel {list(window.kernel)} and "
            f"stride {list(window.stride)}, which exceed those of Caffe's Pooling"
        )
    _, skipped, rounding = min(fits, key=lambda fit: fit[0])
    return _grown(window, skipped), skipped, rounding


def _plan_axis(
    window: Window, axis: int, spatial: Shape, out: Shape, rounding: str
) -> tuple[int, int] | None:
    """Return the additional windows before the first one, and the excess windows."""
    kernel, stride, before = window.kernel[axis], window.stride[axis], window.pad[axis]
    for number in range(MOST_CUT):
        pad = before + number * stride
        if pad >= kernel:
            return None
        if spatial[axis] + 2 * pad >= kernel:
            grown = Window((kernel,), (stride,), (pad,), (1,))
            [made] = grown.pooled((spatial[axis],), ceil=rounding == "CEIL")
            if made >= number + out[axis]:
                return number, made - out[axis]
    return None


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": partial(_pool, method="AVE"),
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "GlobalAveragePool": partial(_global_pool, method="AVE"),
    "GlobalMaxPool": partial(_global_pool, method="MAX"),
    "MaxPool": partial(_pool, method="MAX"),
}
