"""Operators that move values, and those that leave some out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Literal

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.converter import Converter
from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.source import Node
from demitasse.interop.onnx_import.spread import add_constant

__all__ = ["CONVERTERS"]

PAD_MODES: Mapping[str, Literal["edge", "reflect", "wrap"]] = {
    "edge": "edge", "reflect": "reflect", "wrap": "wrap"
}  # fmt: skip
"""What numpy calls the rules by which pads repeat pixels."""


def reshape(node: Node, net: Draft) -> None:
    """Add Reshape, or Flatten where it is one."""
    x, y = net.blob(node.x), node.y
    have = node.x.shape
    if len(y.shape) == 2 and len(have) > 2 and have[0] == y.shape[0]:
        net.add("Flatten", [x], y.shape, to=y)
    else:
        net.reshape(x, y.shape, to=y)


def concat(node: Node, net: Draft) -> None:
    """Add Concat."""
    blobs = [net.blob(one) for one in node.inputs if one is not None]
    if len(blobs) == 1:
        net.same(node.y, blobs[0])
        return
    net.add("Concat", blobs, node.y.shape, to=node.y, concat_param={"axis": node.axis(1)})


def split(node: Node, net: Draft) -> None:
    """Add Slice; parts that nobody reads go to a Silence."""
    axis = node.axis(0)
    size, count = node.x.shape[axis], len(node.outputs)
    parts = node.given("split", 1)
    if parts is None:
        each = -(-size // count)
        sizes = [each] * (count - 1) + [size - each * (count - 1)]
    else:
        sizes = [int(part) for part in parts]
    if min(sizes) < 1:
        message = f"parts of {sizes} are empty, and blobs are not"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    x, shape = net.blob(node.x), node.x.shape
    if count == 1:
        net.same(node.y, x)
        return
    tops = net.add_several(
        "Slice", [x], [(*shape[:axis], part, *shape[axis + 1 :]) for part in sizes],
        to=list(node.outputs),
        slice_param={"axis": axis, "slice_point": list(accumulate(sizes))[:-1]},
    )  # fmt: skip
    net.silence([top for top, one in zip(tops, node.outputs, strict=True) if one is None])


def slice_(node: Node, net: Draft) -> None:
    """Add Slice along each axis that is cut; BatchReindex where it goes in steps or backwards.

    Raises:
        NetError: Nothing is left.
    """
    shape = node.x.shape
    starts, ends = node.given("starts", 1), node.given("ends", 2)
    axes, steps = node.given("axes", 3), node.given("steps", 4)
    if starts is None or ends is None:
        message = "it does not say where it starts and ends"
        raise NetError(message, code=ErrorCode.MISSING)
    chosen = range(len(starts)) if axes is None else [int(axis) % len(shape) for axis in axes]
    along = [1] * len(starts) if steps is None else [int(step) for step in steps]
    x, chosen_by = net.blob(node.x), dict[int, np.ndarray]()
    for axis, start, end, step in zip(chosen, starts, ends, along, strict=True):
        chosen_by[axis] = np.arange(shape[axis])[int(start) : int(end) : step]
    if any(not len(one) for one in chosen_by.values()):
        message = "nothing is left, and blobs have elements"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    parts = {axis: one for axis, one in chosen_by.items() if len(one) < shape[axis] or one[0] > 0}
    for axis, one in parts.items():
        if np.array_equal(one, one[0] + np.arange(len(one))):
            to = node.y if axis == list(parts)[-1] else None
            x = net.cut(x, axis, int(one[0]), int(one[-1]) + 1, to=to)
        else:
            x = net.choose(x, axis, one)
    if node.y.name not in net.blobs:
        net.same(node.y, x)


def transpose(node: Node, net: Draft) -> None:
    """Add Permute."""
    axes = len(node.x.shape)
    order = list(node.attributes.get("perm") or range(axes)[::-1])
    x = net.blob(node.x)
    if order == list(range(axes)):
        net.same(node.y, x)
    else:
        net.permute(x, order, to=node.y)


def expand(node: Node, net: Draft) -> None:
    """Add Tile."""
    x = net.expand(net.blob(node.x), node.y.shape, to=node.y)
    net.same(node.y, x)


def tile(node: Node, net: Draft) -> None:
    """Add Tile along each axis that is repeated."""
    repeats = [int(count) for count in node.array(1, "repeats")]
    x, shape = net.blob(node.x), list(node.x.shape)
    axes = [axis for axis, count in enumerate(repeats) if count != 1]
    for axis in axes:
        shape[axis] *= repeats[axis]
        to = node.y if axis == axes[-1] else None
        how = {"axis": axis, "tiles": repeats[axis]}
        x = net.add("Tile", [x], tuple(shape), to=to, tile_param=how)
    net.same(node.y, x)


def pad(node: Node, net: Draft) -> None:
    """Add what puts pixels around images, or takes some off.

    Raises:
        NetError: Constant pads lie along other axes than those of images.
    """
    before, after = _pads(node)
    x, mode = net.blob(node.x), node.attributes.get("mode", b"constant").decode()
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        x = net.cut(x, axis, max(0, -first), net.shapes[x][axis] - max(0, -last))
    low, high = ([max(0, size) for size in side] for side in (before, after))
    if mode == "constant" and any((*low, *high)):
        given = node.given("value", 2)
        value = 0.0 if given is None or not given.size else float(given.reshape(()))
        _around(net, x, low, high, value, node)
        return
    for axis, (first, last) in enumerate(zip(low, high, strict=True)):
        if first or last:
            places = np.arange(net.shapes[x][axis])
            x = net.choose(x, axis, np.pad(places, (first, last), mode=PAD_MODES[mode]))
    net.same(node.y, x)


def _pads(node: Node) -> tuple[list[int], list[int]]:
    """Return the pads before and after along every axis; those below 0 cut off."""
    axes = len(node.x.shape)
    pads = node.given("pads", 1)
    if pads is None:
        pads = np.asarray(node.attributes["paddings"])
    chosen = None if node.get(3) is None else node.array(3, "axes")
    along = range(axes) if chosen is None else [int(axis) % axes for axis in chosen]
    before, after = [0] * axes, [0] * axes
    for number, axis in enumerate(along):
        before[axis], after[axis] = int(pads[number]), int(pads[len(along) + number])
    return before, after


def _around(net: Draft, x: str, low: list[int], high: list[int], value: float, node: Node) -> None:
    """Add a Convolution that keeps every pixel, with pads, and a Bias where these are not 0.

    Raises:
        NetError: Pads lie along other axes than those of images.
    """
    shape, out, axes = net.shapes[x], node.y.shape, len(low)
    if axes < 3 or any((*low[:2], *high[:2])):
        message = "only pads of images, behind batch and channels, have a layer"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    both = [max(pair) for pair in zip(low, high, strict=True)]
    channels, ones = shape[1], (1,) * (axes - 2)
    whole = tuple(size + 2 * more for size, more in zip(shape, both, strict=True))
    fields = {"num_output": channels, "group": channels, "bias_term": False,
              "kernel_size": ones, "pad": both[2:]}  # fmt: skip
    cuts = [axis for axis in range(axes) if whole[axis] != out[axis]]
    x = net.add("Convolution", [x], whole, to=None if cuts or value else node.y,
                weights=[np.ones((channels, 1, *ones))], convolution_param=fields)  # fmt: skip
    for axis in cuts:
        first = both[axis] - low[axis]
        to = node.y if axis == cuts[-1] and not value else None
        x = net.cut(x, axis, first, first + out[axis], to=to)
    if value:
        inside = tuple(slice(first, first + size)
                       for first, size in zip(low[2:], shape[2:], strict=True))  # fmt: skip
        frame = np.full(out[2:], value, np.float32)
        frame[inside] = 0
        add_constant(net, x, frame, out, to=node.y)


def depth_to_space(node: Node, net: Draft) -> None:
    """Add Permute of blocks of channels."""
    (n, c, h, w), s = node.x.shape, node.attributes["blocksize"]
    less = c // (s * s)
    if node.attributes.get("mode", b"DCR") == b"CRD":
        blocks, order = (n, less, s, s, h, w), [0, 1, 4, 2, 5, 3]
    else:
        blocks, order = (n, s, s, less, h, w), [0, 3, 4, 1, 5, 2]
    turned = net.permute(net.reshape(net.blob(node.x), blocks), order)
    net.reshape(turned, node.y.shape, to=node.y)


def space_to_depth(node: Node, net: Draft) -> None:
    """Add Permute of blocks of pixels."""
    (n, c, h, w), s = node.x.shape, node.attributes["blocksize"]
    blocks = net.reshape(net.blob(node.x), (n, c, h // s, s, w // s, s))
    crd = node.attributes.get("mode", b"DCR") == b"CRD"
    order = [0, 1, 3, 5, 2, 4] if crd else [0, 3, 5, 1, 2, 4]
    net.reshape(net.permute(blocks, order), node.y.shape, to=node.y)


CONVERTERS: Mapping[str, Converter] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": reshape,
    "Pad": pad,
    "Reshape": reshape,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": reshape,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": reshape,
}
