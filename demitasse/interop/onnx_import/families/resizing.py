"""Images made larger or smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.converter import Converter
from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.source import Node, Tensor

__all__ = ["CONVERTERS"]

ROUNDINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda positions: np.floor(positions + 0.5),
    "round_prefer_floor": lambda positions: np.ceil(positions - 0.5),
}
"""By which pixel is the nearest."""

MOST = 2**28
"""Elements of a matrix by which an axis is multiplied."""

WHOLE = 1e-4
"""By how much a size may be off a whole number, in pixels."""


def resize(node: Node, net: Draft) -> None:
    """Add Upsample or Interp where they do it, else a product with a matrix for each axis.

    Raises:
        NetError: It is no bilinear or nearest resizing of images.
    """
    at = node.attributes
    mode = at.get("mode", b"nearest")
    how = at.get("coordinate_transformation_mode", b"half_pixel").decode()
    legacy = node.op == "Upsample" or node.opset < 11
    _resize(
        node, net, mode="linear" if mode in {b"linear", b"bilinear"} else mode.decode(),
        how="asymmetric" if legacy else how,
        rounding="floor" if legacy else at.get("nearest_mode", b"round_prefer_floor").decode(),
    )  # fmt: skip


def _resize(node: Node, net: Draft, *, mode: str, how: str, rounding: str) -> None:
    shape, out, y = node.x.shape, node.y.shape, node.y
    if len(shape) != 4 or shape[:2] != out[:2] or mode not in {"linear", "nearest"}:
        message = f"layers resize images alone, bilinear or nearest; not {shape} to {out}, {mode}"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    policy = node.attributes.get("keep_aspect_ratio_policy", b"stretch")
    if node.attributes.get("antialias") or policy != b"stretch":
        message = "antialias and keep_aspect_ratio_policy have no layer"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    x = net.blob(node.x)
    if shape == out:
        net.same(y, x)
        return
    scales = _scales(node)
    sizes = [size * scale for size, scale in zip(shape, scales, strict=True)]
    if how == "align_corners" and any(abs(size - round(size)) > WHOLE for size in sizes):
        message = "align_corners with a size that is no whole number is read in several ways"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if max(a * b for a, b in zip(shape[2:], out[2:], strict=True)) > MOST:
        message = f"images of {shape[2:]} to {out[2:]} need matrices of more than {MOST} elements"
        raise NetError(message, code=ErrorCode.LIMIT)
    positions = [_positions(shape[axis], out[axis], scales[axis], how) for axis in (2, 3)]
    if mode == "linear":
        if how == "align_corners":
            net.add("Interp", [x], out, to=y, interp_param={"height": out[2], "width": out[3]})
            return
        matrices = [_linear(p, n) for p, n in zip(positions, shape[2:], strict=True)]
    else:
        chosen = [_nearest(p, n, rounding) for p, n in zip(positions, shape[2:], strict=True)]
        factors = [b // a for a, b in zip(shape[2:], out[2:], strict=True)]
        repeated = [np.arange(b) // f if f else None
                    for b, f in zip(out[2:], factors, strict=True)]  # fmt: skip
        if all(r is not None and np.array_equal(c, r)
               for c, r in zip(chosen, repeated, strict=True)):  # fmt: skip
            down, right = factors
            if down == right:
                net.add("Upsample", [x], out, to=y, upsample_param={"scale": down})
            else:
                _repeated(net, x, down, right, y)
            return
        matrices = [np.eye(n, dtype=np.float32)[c] for c, n in zip(chosen, shape[2:], strict=True)]
    _by_matrices(net, x, matrices, y)


def _repeated(net: Draft, x: str, down: int, right: int, to: Tensor) -> None:
    """Add repetitions of pixels that are not as many in both directions."""
    n, c, h, w = net.shapes[x]
    blocks = net.expand(net.reshape(x, (n, c, h, 1, w, 1)), (n, c, h, down, w, right))
    net.reshape(blocks, to.shape, to=to)


def _by_matrices(net: Draft, x: str, matrices: list[np.ndarray], to: Tensor) -> None:
    """Add an InnerProduct along the columns and one along the rows."""
    rows, columns = matrices
    for matrix, last in ((columns, None), (rows, to)):
        shape = (*net.shapes[x][:3], len(matrix))
        fields = {"num_output": len(matrix), "axis": 3, "bias_term": False}
        x = net.add("InnerProduct", [x], shape, weights=[matrix], inner_product_param=fields)
        x = net.permute(x, [0, 1, 3, 2], to=last)


def _scales(node: Node) -> list[float]:
    """Return by how much each axis grows."""
    sizes = [b / a for a, b in zip(node.x.shape, node.y.shape, strict=True)]
    given = node.attributes.get("scales")
    if given is None:
        position = 1 if node.op == "Upsample" or node.opset < 11 else 2
        found = node.get(position)
        given = None if found is None else node.array(position, "scales")
    if given is None or len(given) == 0 or "axes" in node.attributes:
        return sizes
    return [float(scale) for scale in given]


def _positions(size: int, out: int, scale: float, how: str) -> np.ndarray:
    """Return where each pixel of the output lies in the input.

    Raises:
        NetError: Nobody says where.
    """
    at = np.arange(out, dtype=np.float64)
    if how in {"half_pixel", "pytorch_half_pixel"}:
        one = how.startswith("pytorch") and out == 1
        return np.zeros(1) if one else (at + 0.5) / scale - 0.5
    if how == "asymmetric":
        return at / scale
    if how == "align_corners":
        return at * ((size - 1) / (out - 1)) if out > 1 else np.zeros(1)
    message = f"coordinate_transformation_mode {how} has no layer"
    raise NetError(message, code=ErrorCode.UNSUPPORTED)


def _linear(positions: np.ndarray, size: int) -> np.ndarray:
    """Return the matrix of an interpolation, (out, size)."""
    inside = np.clip(positions, 0, size - 1)
    low = np.floor(inside).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    part = inside - low
    matrix = np.zeros((len(positions), size))
    every = np.arange(len(positions))
    np.add.at(matrix, (every, low), 1 - part)
    np.add.at(matrix, (every, high), part)
    return matrix.astype(np.float32)


def _nearest(positions: np.ndarray, size: int, rounding: str) -> np.ndarray:
    """Return the pixel that each pixel of the output is."""
    found: np.ndarray = np.clip(ROUNDINGS[rounding](positions), 0, size - 1).astype(np.int64)
    return found


CONVERTERS: Mapping[str, Converter] = {"Resize": resize, "Upsample": resize}
