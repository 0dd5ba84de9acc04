"""Converters of normalization operators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.converters.arithmetic import add_constant, multiply_constant
from demitasse.interop.onnx_import.model import Node, Tensor
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder

SAME_AXES = 13
"""First opset whose Softmax is along one axis; earlier ones join all axes from one on."""


def _batch_normalization(node: Node, net: NetBuilder) -> None:
    """Add BatchNorm, and Scale unless scale and shift are trivial."""
    node.refuse_outputs(1, 2, 3, 4)
    if node.attributes.get("training_mode") or node.attributes.get("is_test", 1) == 0:
        message = "training_mode updates running averages in each run"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    names = ("scale", "shift", "mean", "variance")
    scale, shift, mean, variance = (
        node.array(number, name) for number, name in enumerate(names, start=1)
    )
    plain = bool(np.all(scale == 1) and np.all(shift == 0))
    blob = _batch_norm(net, node, net.blob(node.x), mean, variance, to=node.y if plain else None)
    if not plain:
        _scale(net, blob, scale, shift, node.y)


def _batch_norm(
    net: NetBuilder,
    node: Node,
    x: str,
    mean: np.ndarray,
    variance: np.ndarray,
    *,
    to: Tensor | None,
) -> str:
    weights = [mean, variance, np.ones(1, np.float32)]
    fields = {"eps": node.attributes.get("epsilon", 1e-5)}
    return net.add("BatchNorm", [x], net.shapes[x], to=to, weights=weights, batch_norm_param=fields)


def _scale(net: NetBuilder, x: str, scale: np.ndarray, shift: np.ndarray, to: Tensor) -> None:
    net.add("Scale", [x], to.shape, to=to, weights=[scale, shift], scale_param={"bias_term": True})


def _instance_normalization(node: Node, net: NetBuilder) -> None:
    """Add BatchNorm for each channel of each item, and Scale."""
    shape = node.x.shape
    x = net.blob(node.x)
    whole = math.prod(shape[2:])
    rows = net.reshape(x, (1, math.prod(shape[:2]), whole))
    scale, shift = node.array(1, "scale"), node.array(2, "shift")
    done = net.reshape(_own(net, node, rows), shape)
    _scale(net, done, scale, shift, node.y)


def _own(net: NetBuilder, node: Node, rows: str) -> str:
    """Add a BatchNorm by batch statistics."""
    channels = net.shapes[rows][1]
    empty = np.zeros(channels, np.float32)
    fields = {"eps": node.attributes.get("epsilon", 1e-5), "use_global_stats": False}
    return net.add(
        "BatchNorm", [rows], net.shapes[rows], weights=[empty, empty, np.zeros(1, np.float32)],
        batch_norm_param=fields,
    )  # fmt: skip


def _group_normalization(node: Node, net: NetBuilder) -> None:
    """Add BatchNorm for each group of each item, and Scale."""
    shape, groups = node.x.shape, node.attributes["num_groups"]
    scale, shift = node.array(1, "scale"), node.array(2, "shift")
    if scale.size != shape[1]:
        message = "its scale is not per channel"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    count = math.prod(shape[1:]) // groups
    rows = net.reshape(net.blob(node.x), (1, shape[0] * groups, count))
    _scale(net, net.reshape(_own(net, node, rows), shape), scale, shift, node.y)


def _layer_normalization(node: Node, net: NetBuilder) -> None:
    """Add BatchNorm for each row, and its scale and shift."""
    node.refuse_outputs(1, 2)
    shape, axis = node.x.shape, node.axis(-1)
    count = math.prod(shape[axis:])
    rows = net.reshape(net.blob(node.x), (1, math.prod(shape[:axis]), count))
    done = net.reshape(_own(net, node, rows), shape)
    shift = node.optional_input(2)
    scaled = multiply_constant(
        net, done, node.array(1, "scale"), shape, to=node.y if shift is None else None
    )
    if shift is not None:
        add_constant(net, scaled, node.array(2, "shift"), shape, to=node.y)


def _lrn(node: Node, net: NetBuilder) -> None:
    """Add LRN across channels."""
    at = node.attributes
    if at["size"] % 2 == 0:
        message = f"got an LRN window of size {at['size']}, expected an odd size"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=at["size"])
    fields = {"local_size": at["size"], "alpha": at.get("alpha", 1e-4),
              "beta": at.get("beta", 0.75), "k": at.get("bias", 1.0)}  # fmt: skip
    net.add("LRN", [net.blob(node.x)], node.y.shape, to=node.y, lrn_param=fields)


def _softmax(node: Node, net: NetBuilder) -> None:
    """Add Softmax."""
    _add_softmax(node, net, node.y)


def _log_softmax(node: Node, net: NetBuilder) -> None:
    """Add Softmax and Log."""
    net.add("Log", [_add_softmax(node, net, None)], node.y.shape, to=node.y)
    net.notes.append(f"{node.label} becomes Softmax and Log: values below -87 are inexact or -inf")


def _add_softmax(node: Node, net: NetBuilder, to: Tensor | None) -> str:
    shape, x = node.x.shape, net.blob(node.x)
    joint = node.opset < SAME_AXES
    axis = node.axis(1 if joint else -1)
    fields: dict[str, Any] = {} if axis == 1 else {"axis": axis}
    if not joint or all(size == 1 for size in shape[axis + 1 :]):
        return net.add("Softmax", [x], shape, to=to, softmax_param=fields)
    rows = net.reshape(x, (*shape[:axis], math.prod(shape[axis:])))
    found = net.add("Softmax", [rows], net.shapes[rows], softmax_param=fields)
    return net.reshape(found, shape, to=to)


CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax,
    "Softmax": _softmax,
}
