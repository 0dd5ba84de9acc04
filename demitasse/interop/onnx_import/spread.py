"""Arithmetic of a blob with what is spread over it, by ONNX's rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.draft import Draft, in_single
from demitasse.interop.onnx_import.source import Shape, Tensor

__all__ = ["add", "add_constant", "multiply", "multiply_constant"]


@dataclass(frozen=True)
class Block:
    """Those axes of a larger shape that an operand fills.

    Attributes:
        axis: The first.
        shape: Sizes of the operand there.
    """

    axis: int
    shape: Shape


def add(net: Draft, x: str, other: str, shape: Shape, *, to: Tensor | None = None) -> str:
    """Add the sum of two blobs: an Eltwise, or a Bias of one spread over the other."""
    return _blobs(net, "Bias", x, other, shape, to)


def multiply(net: Draft, x: str, other: str, shape: Shape, *, to: Tensor | None = None) -> str:
    """Add the product of two blobs: an Eltwise, or a Scale of one by the other."""
    return _blobs(net, "Scale", x, other, shape, to)


def _blobs(net: Draft, kind: str, x: str, other: str, shape: Shape, to: Tensor | None) -> str:
    if net.shapes[x] != shape:
        x, other = other, x
    x = net.expand(x, shape)
    have = net.shapes[other]
    if have == shape:
        return net.eltwise("SUM" if kind == "Bias" else "PROD", [x, other], to=to)
    block = _block(have, shape, keep_batch=True)
    inside = shape[block.axis : block.axis + len(block.shape)]
    other = net.expand(net.reshape(other, block.shape), inside)
    if inside == shape:
        return net.eltwise("SUM" if kind == "Bias" else "PROD", [x, other], to=to)
    fields: dict[str, Any] = {f"{kind.lower()}_param": {"axis": block.axis}}
    return net.add(kind, [x, other], shape, to=to, **fields)


def add_constant(
    net: Draft, x: str, array: np.ndarray, shape: Shape, *, to: Tensor | None = None
) -> str:
    """Add the sum of a blob and a constant: a Power, or a Bias."""
    x = net.expand(x, shape)
    if array.size == 1:
        return net.power(x, shift=float(array.reshape(())), to=to)
    return _constant(net, "Bias", x, array, shape, to)


def multiply_constant(
    net: Draft, x: str, array: np.ndarray, shape: Shape, *, to: Tensor | None = None
) -> str:
    """Add the product of a blob and a constant: a Power, or a Scale."""
    x = net.expand(x, shape)
    if array.size == 1:
        return net.power(x, scale=float(array.reshape(())), to=to)
    return _constant(net, "Scale", x, array, shape, to)


def _constant(
    net: Draft, kind: str, x: str, array: np.ndarray, shape: Shape, to: Tensor | None
) -> str:
    block = _block(array.shape, shape, keep_batch=False)
    inside = shape[block.axis : block.axis + len(block.shape)]
    weight = np.broadcast_to(in_single(array).reshape(block.shape), inside)
    fields: dict[str, Any] = {
        f"{kind.lower()}_param": {"axis": block.axis, "num_axes": len(inside)}
    }
    return net.add(kind, [x], shape, to=to, weights=[weight], **fields)


def _block(have: Shape, shape: Shape, *, keep_batch: bool) -> Block:
    """Return where an operand's sizes other than 1 lie.

    Args:
        have: Its shape.
        shape: That of what it is spread over.
        keep_batch: Whether a first axis of 1 counts where both have it, since it may grow.
    """
    full = (*(1,) * (len(shape) - len(have)), *have)
    axes = [axis for axis, size in enumerate(full) if size != 1]
    first, last = (axes[0], axes[-1]) if axes else (0, 0)
    if keep_batch and len(have) == len(shape) and have[0] == shape[0]:
        first = 0
    return Block(first, full[first : last + 1])
