"""Coordinate maps between blobs, through convolutions, pooling and crops.

A map is ``coordinate -> scale * coordinate + shift``, in pixels, for the spatial axes after
``axis``; ``axis`` None means every axis. ``crop`` uses maps to align a blob with another one.

Source: Caffe, ``python/caffe/coord_map.py``.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

from demitasse.compat.pycaffe.net_spec import Function, Top

Map = tuple[int | None, np.ndarray | float, np.ndarray | float]
"""Axis, scale and shift; scale and shift are numbers, or arrays with one number for each axis."""

IDENTITY: Map = (None, 1, 0)

PASS_THROUGH_LAYERS = [
    "AbsVal", "BatchNorm", "Bias", "BNLL", "Dropout", "Eltwise", "ELU", "Log", "LRN", "Exp", "MVN",
    "Power", "ReLU", "PReLU", "Scale", "Sigmoid", "Split", "TanH", "Threshold",
]  # fmt: skip
"""Types of layers whose map is the identity."""

LEGACY = {f"{name}_{side}" for name in ("pad", "kernel", "stride") for side in "hw"}


class UndefinedMapException(Exception):
    """A layer has no map from points of its bottom to points of its top."""


class AxisMismatchException(Exception):
    """Two maps have different axes."""


def conv_params(fn: Function) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return the window geometry of a Convolution, Deconvolution, Pooling or Im2col layer.

    The axis before the spatial ones; then stride, window and padding in pixels, each of shape (1,)
    or with one number for each spatial axis. The window counts the gaps of dilation.

    Raises:
        AssertionError: The layer uses ``kernel_h`` or similar fields.
        KeyError: The layer has no ``kernel_size``.
    """
    nested = fn.params.get("convolution_param") or fn.params.get("pooling_param")
    params = nested or fn.params
    legacy = sorted(LEGACY & {*params, *fn.params})
    if legacy:
        message = (
            f"{fn.type_name} is given by {', '.join(legacy)}; write kernel_size, stride and pad, "
            "which may be lists"
        )
        raise AssertionError(message)
    window = np.atleast_1d(params["kernel_size"])
    dilation = np.atleast_1d(params.get("dilation", 1))
    stride, pad = np.atleast_1d(params.get("stride", 1)), np.atleast_1d(params.get("pad", 0))
    return params.get("axis", 1), stride, (window - 1) * dilation + 1, pad


def crop_params(fn: Function) -> tuple[int, np.ndarray]:
    """Return the first axis that a Crop layer crops, and its offsets in pixels."""
    params = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.atleast_1d(params.get("offset", 0))


def coord_map(fn: Function) -> Map:
    """Return the map of one layer from bottom to top; see ``UndefinedMapException``."""
    if fn.type_name in {"Convolution", "Pooling", "Im2col"}:
        axis, stride, window, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (window - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, window, pad = conv_params(fn)
        return axis, stride, (window - 1) / 2 - pad
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset
    if fn.type_name in PASS_THROUGH_LAYERS:
        return IDENTITY
    message = f"layers of type {fn.type_name} do not say where a point of their bottom goes"
    raise UndefinedMapException(message)


def compose(base_map: Map, next_map: Map) -> Map:
    """Return the map that applies ``next_map`` and then ``base_map``, which have equal axes."""
    axis, scale, shift = base_map
    next_axis, next_scale, next_shift = next_map
    if axis is None:
        axis = next_axis
    elif next_axis not in {None, axis}:
        message = f"one map is of axis {axis}, the other of axis {next_axis}"
        raise AxisMismatchException(message)
    return axis, scale * next_scale, scale * next_shift + shift


def inverse(coord_map: Map) -> Map:
    """Return the inverse map."""
    axis, scale, shift = coord_map
    return axis, 1 / scale, -shift / scale


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """Return the map from one blob of a net to another, through a common ancestor.

    Raises:
        RuntimeError: The blobs have no common ancestor, or a layer in between has no map.
        AxisMismatchException: Layers in between have different axes.
    """
    from_maps = dict(_maps_back(top_from))
    for top, to_map in _maps_back(top_to):
        if top in from_maps:
            return compose(to_map, inverse(from_maps[top]))
    message = (
        "the tops are not connected by layers that map points: "
        f"one is of a {top_from.fn.type_name} layer, the other of a {top_to.fn.type_name} layer"
    )
    raise RuntimeError(message)


def _maps_back(top: Top) -> Iterator[tuple[Top, Map]]:
    """Yield the ancestors of a blob once each, nearest first, with the map from the ancestor.

    The shortest path to an ancestor counts: in a valid net the maps of all paths are equal.
    """
    found = {top: IDENTITY}
    waiting = deque([top])
    while waiting:
        here = waiting.popleft()
        yield here, found[here]
        bottoms = here.fn.inputs
        if here.fn.type_name == "Crop":  # its second bottom only sets a size
            bottoms = bottoms[:1]
        try:
            step = coord_map(here.fn) if bottoms else IDENTITY
        except UndefinedMapException:
            continue
        for bottom in bottoms:
            composed = compose(found[here], step)
            if bottom not in found:
                found[bottom] = composed
                waiting.append(bottom)


def crop(top_from: Top, top_to: Top) -> Top:
    """Return a Crop layer that aligns one blob with another.

    Raises:
        AssertionError: The scales differ, or the offset is negative or not a whole number.
        RuntimeError: The blobs are not connected, see ``coord_map_from_to``.
    """
    axis, scale, shift = coord_map_from_to(top_from, top_to)
    offset = -np.atleast_1d(shift)
    reason = ""
    if np.any(np.asarray(scale) != 1):
        reason = f"their scales differ by {scale}; check the strides in between"
    elif np.any(offset < 0):
        reason = f"its offset would be {offset}, below 0: it is the smaller one; pad it more"
    elif np.any(offset != np.round(offset)):
        reason = f"its offset would be {offset}, no whole number of pixels"
    if reason:
        message = f"one blob cannot be cropped to the other: {reason}"
        raise AssertionError(message)
    crop_param = {
        "axis": 2 if axis is None else axis + 1,
        "offset": [int(pixels) for pixels in offset],
    }
    return Function("Crop", (top_from, top_to), {"crop_param": crop_param}).tops[0]
