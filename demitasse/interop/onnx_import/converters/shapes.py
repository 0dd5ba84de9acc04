"""Converters of operators that reshape, move, select, pad or resize values."""

from collections.abc import Callable, Mapping
from itertools import accumulate

import numpy as np

from demitasse.errors import ErrorCode
from demitasse.interop.onnx_import.converters.arithmetic import add
from demitasse.interop.onnx_import.model import Node, Shape, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, Result


def _reshape(node: Node, net: NetBuilder) -> Result:
    """Add Flatten or Reshape."""
    x, y, have = net.blob(node.x), node.y, node.x.shape
    if node.op == "Flatten" and not node.axis(1):
        return net.reshape(x, y.shape, new_first=True)
    if len(y.shape) == 2 and len(have) > 2 and have[0] == y.shape[0]:
        return net.add("Flatten", [x], y.shape)
    axes = node.attribute_or_input("axes", 1) if node.op == "Unsqueeze" else None
    added = axes is not None and any(axis in {0, -len(y.shape)} for axis in axes.reshape(-1))
    return net.reshape(x, y.shape, new_first=added)


def _concat(node: Node, net: NetBuilder) -> Result:
    blobs = [net.blob(one) for one in node.inputs if one is not None]
    return net.concat(blobs, node.axis(1), node.y.shape)


def _split(node: Node, net: NetBuilder) -> Result:
    """Add Slice, and a Silence for unused parts."""
    axis = node.axis(0)
    size, count = node.x.shape[axis], len(node.outputs)
    parts = node.attribute_or_input("split", 1)
    if parts is None:
        each = -(-size // count)
        sizes = [each] * (count - 1) + [size - each * (count - 1)]
    else:
        sizes = [int(part) for part in parts]
    if min(sizes) < 1:
        refuse(f"got parts of sizes {sizes}, expected sizes above 0")
    x, shape = net.blob(node.x), node.x.shape
    if count == 1:
        return x
    tops = net.add_several(
        "Slice", [x], [(*shape[:axis], part, *shape[axis + 1 :]) for part in sizes],
        slice_param={"axis": axis, "slice_point": list(accumulate(sizes))[:-1]},
    )  # fmt: skip
    net.silence([top for top, one in zip(tops, node.outputs, strict=True) if one is None])
    return tops


def _slice(node: Node, net: NetBuilder) -> Result:
    """Add Slice along each axis, or BatchReindex for steps other than 1."""
    shape = node.x.shape
    starts, ends = node.attribute_or_input("starts", 1), node.attribute_or_input("ends", 2)
    axes, steps = node.attribute_or_input("axes", 3), node.attribute_or_input("steps", 4)
    if starts is None or ends is None:
        refuse("starts or ends are missing", ErrorCode.MISSING)
    chosen = range(len(starts)) if axes is None else [int(axis) % len(shape) for axis in axes]
    along = [1] * len(starts) if steps is None else [int(step) for step in steps]
    x, chosen_by = net.blob(node.x), dict[int, np.ndarray]()
    for axis, start, end, step in zip(chosen, starts, ends, along, strict=True):
        chosen_by[axis] = np.arange(shape[axis])[int(start) : int(end) : step]
    if any(not len(one) for one in chosen_by.values()):
        refuse("the result has no elements, which blobs do not support")
    for axis, one in chosen_by.items():
        x = net.select(x, axis, one)
    return x


def _transpose(node: Node, net: NetBuilder) -> Result:
    axes = range(len(node.x.shape))
    order, x = list(node.attributes.get("perm") or axes[::-1]), net.blob(node.x)
    if order == list(axes):
        return x
    return net.permute(x, order)


def _shuffle(node: Node, net: NetBuilder) -> Result:
    group = {"group": node.attributes["group"]}
    return net.add("ShuffleChannel", [net.blob(node.x)], node.x.shape, shuffle_channel_param=group)


def _pad(node: Node, net: NetBuilder) -> Result:
    """Add a Convolution for constant pads, BatchReindex for others, and Slice for negative pads."""
    before, after = pads_of(node)
    x, mode = net.blob(node.x), node.attributes.get("mode", b"constant").decode()
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        x = net.slice(x, axis, max(0, -first), net.shapes[x][axis] - max(0, -last))
    low, high = ([max(0, size) for size in side] for side in (before, after))
    if mode == "constant" and any((*low, *high)):
        return _constant_pad(net, x, low, high, pad_value(node), node.y.shape)
    if mode not in {"constant", "edge", "reflect", "wrap"}:
        refuse(f"no layer pads by mode {mode!r}")
    for axis, (first, last) in enumerate(zip(low, high, strict=True)):
        if first or last:
            places = np.arange(net.shapes[x][axis])
            x = net.gather(x, axis, np.pad(places, (first, last), mode=mode))
    return x


def pads_of(node: Node) -> tuple[list[int], list[int]]:
    """Return the pads before and after along every axis; negative ones remove values."""
    axes = len(node.x.shape)
    pads = node.attribute_or_input("pads", 1)
    if pads is None:
        pads = np.asarray(node.attributes["paddings"])
    chosen = node.attribute_or_input("axes", 3)
    along = range(axes) if chosen is None else [int(axis) % axes for axis in chosen]
    before, after = [0] * axes, [0] * axes
    for number, axis in enumerate(along):
        before[axis], after[axis] = int(pads[number]), int(pads[len(along) + number])
    return before, after


def pad_value(node: Node) -> float:
    """Return the value of constant pads."""
    given = node.attribute_or_input("value", 2)
    return 0.0 if given is None or not given.size else float(given.reshape(()))


def _constant_pad(
    net: NetBuilder, x: str, low: list[int], high: list[int], value: float, out: Shape
) -> str:
    """Add an identity Convolution with pads, and a Bias for a pad value other than 0."""
    shape, axes = net.shapes[x], len(low)
    if axes < 3 or any((*low[:2], *high[:2])):
        refuse("got pads along batch or channels, expected pads of images only")
    both = [max(pair) for pair in zip(low, high, strict=True)]
    channels, ones = shape[1], (1,) * (axes - 2)
    whole = tuple(size + 2 * more for size, more in zip(shape, both, strict=True))
    fields = {"num_output": channels, "group": channels, "bias_term": False,
              "kernel_size": ones, "pad": both[2:]}  # fmt: skip
    weights = [np.ones((channels, 1, *ones))]
    x = net.add("Convolution", [x], whole, weights=weights, convolution_param=fields)
    for axis in range(axes):
        first = both[axis] - low[axis]
        x = net.slice(x, axis, first, first + out[axis])
    if not value:
        return x
    frame = np.full(out[2:], value, np.float32)
    frame[tuple(slice(a, a + b) for a, b in zip(low[2:], shape[2:], strict=True))] = 0
    return add(net, x, frame, out)


def _blocks_moved(node: Node, net: NetBuilder) -> Result:
    """Add Permute of blocks of channels (DepthToSpace) or of pixels (SpaceToDepth)."""
    (n, c, h, w), s = node.x.shape, node.attributes["blocksize"]
    crd, less = node.attributes.get("mode", b"DCR") == b"CRD", c // (s * s)
    if node.op == "SpaceToDepth":
        blocks, order = (n, c, h // s, s, w // s, s), [0, 3, 5, 1, 2, 4]
        order = [0, 1, 3, 5, 2, 4] if crd else order
    elif crd:
        blocks, order = (n, less, s, s, h, w), [0, 1, 4, 2, 5, 3]
    else:
        blocks, order = (n, s, s, less, h, w), [0, 3, 4, 1, 5, 2]
    turned = net.permute(net.reshape(net.blob(node.x), blocks), order)
    return net.reshape(turned, node.y.shape)


# -- resizing ----------------------------------------------------------------------------------

TIE = 1e-6
"""Largest distance, in pixels, of a position from the middle of two that counts as the middle."""

ROUNDINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda positions: np.floor(positions + 0.5 + TIE),
    "round_prefer_floor": lambda positions: np.ceil(positions - 0.5 - TIE),
}
"""Mode -> rounding of positions to the nearest pixel."""

MOST = 2**28
"""Largest number of elements of a resizing matrix."""

INTEGER_TOLERANCE = 1e-4
"""Largest distance of a size from an integer, in pixels."""


def _resize(node: Node, net: NetBuilder) -> Result:
    """Add Upsample, Interp, or an InnerProduct with a resizing matrix for each axis."""
    shape, out, at = node.x.shape, node.y.shape, node.attributes
    mode = at.get("mode", b"nearest").decode().replace("bilinear", "linear")
    how = at.get("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = at.get("nearest_mode", b"round_prefer_floor").decode()
    early = node.op == "Upsample" or node.opset < 11
    if early:
        how, rounding = "asymmetric", "floor"
    if len(shape) != 4 or shape[:2] != out[:2] or mode not in {"linear", "nearest"}:
        refuse(f"got {mode} resizing of {shape} to {out}, expected linear or nearest, of images")
    if at.get("antialias") or at.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        refuse("no layer supports antialias or keep_aspect_ratio_policy")
    x = net.blob(node.x)
    if shape == out:
        return x
    scales = _scales(node)
    sizes = [size * scale for size, scale in zip(shape, scales, strict=True)]
    whole = all(abs(size - round(size)) <= INTEGER_TOLERANCE for size in sizes)
    if how == "align_corners" and not whole:
        refuse("align_corners with a non-integer size is ambiguous")
    if max(a * b for a, b in zip(shape[2:], out[2:], strict=True)) > MOST:
        fault = f"resizing {shape[2:]} to {out[2:]} needs a matrix of more than {MOST} elements"
        refuse(fault, ErrorCode.LIMIT)
    positions = [_positions(shape[axis], out[axis], scales[axis], how) for axis in (2, 3)]
    (n, c, h, w), (down, right) = shape, (out[2] // shape[2], out[3] // shape[3])
    if mode == "linear" and how == "align_corners":
        return net.add("Interp", [x], out, interp_param={"height": out[2], "width": out[3]})
    if mode == "linear":
        rows, columns = _linear(positions[0], h), _linear(positions[1], w)
    else:
        ways = ["ceil" if early and scale < 1 else rounding for scale in scales[2:]]
        nearest = [  # the nearest input pixel of each output pixel
            np.clip(ROUNDINGS[way](places), 0, size - 1).astype(np.int64)
            for way, places, size in zip(ways, positions, (h, w), strict=True)
        ]
        repeats = all(
            factor and np.array_equal(chosen, np.arange(len(chosen)) // factor)
            for chosen, factor in zip(nearest, (down, right), strict=True)
        )
        if repeats and down == right:
            return net.add("Upsample", [x], out, upsample_param={"scale": down})
        if repeats:
            blocks = net.expand(net.reshape(x, (n, c, h, 1, w, 1)), (n, c, h, down, w, right))
            return net.reshape(blocks, out)
        rows, columns = (
            np.eye(size, dtype=np.float32)[chosen]
            for size, chosen in zip((h, w), nearest, strict=True)
        )
    for matrix in (columns, rows):
        between = (*net.shapes[x][:3], len(matrix))
        fields = {"num_output": len(matrix), "axis": 3, "bias_term": False}
        x = net.add("InnerProduct", [x], between, weights=[matrix], inner_product_param=fields)
        x = net.permute(x, [0, 1, 3, 2])
    return x


def _scales(node: Node) -> list[float]:
    """Return the factor of each axis."""
    sizes = [b / a for a, b in zip(node.x.shape, node.y.shape, strict=True)]
    position = 1 if node.op == "Upsample" or node.opset < 11 else 2
    given = node.attribute_or_input("scales", position)
    if given is None or len(given) == 0:
        return sizes
    scales = [1.0] * len(sizes)
    for axis, scale in zip(node.attributes.get("axes", range(len(sizes))), given, strict=True):
        scales[axis] = float(scale)
    return scales


def _positions(size: int, out: int, scale: float, how: str) -> np.ndarray:
    """Return the position in the input of each output pixel, rounded as in ONNX Runtime."""
    at, factor = np.arange(out, dtype=np.float32), np.float32(scale)
    if out == 1 and how in {"align_corners", "pytorch_half_pixel"}:
        return np.zeros(1)
    if how == "align_corners":
        at = at * np.float32(size - 1) / np.float32(out - 1)
    elif how == "asymmetric":
        at = at / factor
    elif how in {"half_pixel", "pytorch_half_pixel"}:
        at = (at + np.float32(0.5)) / factor - np.float32(0.5)
    else:
        refuse(f"no layer supports coordinate_transformation_mode {how}")
    return at.astype(np.float64)


def _linear(positions: np.ndarray, size: int) -> np.ndarray:
    """Return the interpolation matrix, (out, size)."""
    inside = np.clip(positions, 0, size - 1)
    low = np.floor(inside).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    part = inside - low
    matrix = np.zeros((len(positions), size))
    every = np.arange(len(positions))
    np.add.at(matrix, (every, low), 1 - part)
    np.add.at(matrix, (every, high), part)
    return matrix.astype(np.float32)


CONVERTERS: Mapping[str, Converter] = {
    "Concat": _concat,
    "DepthToSpace": _blocks_moved,
    "Expand": lambda node, net: net.expand(net.blob(node.x), node.y.shape),
    "Flatten": _reshape,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "ShuffleChannel": _shuffle,
    "Slice": _slice,
    "SpaceToDepth": _blocks_moved,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": lambda node, net: net.tile(
        net.blob(node.x), [int(count) for count in node.array(1, "repeats")]
    ),
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
    "Upsample": _resize,
}
