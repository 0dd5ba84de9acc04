"""Converters of normalization operators."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.converters.arithmetic import add, multiply
from demitasse.interop.onnx_import.model import Node, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, Result

SAME_AXES = 13
"""First opset whose Softmax is along one axis; earlier ones join all axes from one on."""


def _batch_normalization(node: Node, net: NetBuilder) -> Result:
    """Add BatchNorm, and Scale unless scale and shift are trivial."""
    node.refuse_outputs(1, 2, 3, 4)
    if node.attributes.get("training_mode") or node.attributes.get("is_test", 1) == 0:
        refuse("training_mode updates running averages in each run")
    names = ("scale", "shift", "mean", "variance")
    scale, shift, mean, variance = (
        node.array(number, name) for number, name in enumerate(names, start=1)
    )
    plain = bool(np.all(scale == 1) and np.all(shift == 0))
    blob = net.add(
        "BatchNorm", [net.blob(node.x)], node.x.shape,
        weights=[mean, variance, np.ones(1, np.float32)],
        batch_norm_param={"eps": node.attributes.get("epsilon", 1e-5)},
    )  # fmt: skip
    return blob if plain else _scale(net, blob, scale, shift)


def _scale(net: NetBuilder, x: str, scale: np.ndarray, shift: np.ndarray) -> str:
    fields = {"bias_term": True}
    return net.add("Scale", [x], net.shapes[x], weights=[scale, shift], scale_param=fields)


def _normalized(node: Node, net: NetBuilder, count: int) -> str:
    """Add the normalization of each of ``count`` equal parts of a node's input, in any batch.

    MVN alone would add epsilon to the standard deviation; ONNX adds it to the variance.
    """
    shape, epsilon = node.x.shape, node.attributes.get("epsilon", 1e-5)
    items, size = math.gcd(count, shape[0]), math.prod(shape) // count
    rows = net.reshape(net.blob(node.x), (items, count // items, size, 1))  # MVN has four axes
    full = net.shapes[rows]
    centred = net.add("MVN", [rows], full, mvn_param={"normalize_variance": False})
    square = {"operation": "SUMSQ", "axis": 2, "coeff": 1 / size}
    variance = net.add("Reduction", [centred], full[:2], reduction_param=square)
    inverse = net.power(variance, power=-0.5, shift=epsilon)
    unit = net.add("Scale", [centred, inverse], full, scale_param={"axis": 0})
    return net.reshape(unit, shape)


def _group_normalization(node: Node, net: NetBuilder) -> Result:
    """Normalize each group of channels (each channel without groups), and add Scale."""
    scale, shift = node.array(1, "scale"), node.array(2, "shift")
    if scale.size != node.x.shape[1]:
        refuse("its scale is not per channel")
    instances = node.op == "InstanceNormalization"
    groups = scale.size if instances else node.attributes["num_groups"]
    unit = _normalized(node, net, node.x.shape[0] * groups)
    return _scale(net, unit, scale, shift)


def _layer_normalization(node: Node, net: NetBuilder) -> Result:
    """Normalize each row, and add its scale and shift."""
    node.refuse_outputs(1, 2)
    shape = node.x.shape
    unit = _normalized(node, net, math.prod(shape[: node.axis(-1)]))
    scaled = multiply(net, unit, node.array(1, "scale"), shape)
    if node.optional_input(2) is None:
        return scaled
    return add(net, scaled, node.array(2, "shift"), shape)


def _lrn(node: Node, net: NetBuilder) -> Result:
    at = node.attributes
    if at["size"] % 2 == 0:
        refuse(f"got an LRN window of size {at['size']}, expected an odd size", got=at["size"])
    fields = {"local_size": at["size"], "alpha": at.get("alpha", 1e-4),
              "beta": at.get("beta", 0.75), "k": at.get("bias", 1.0)}  # fmt: skip
    x, shape = net.blob(node.x), node.x.shape
    if len(shape) != len("NCHW"):
        x = net.reshape(x, (*shape[:2], 1, math.prod(shape[2:])))
    return net.reshape(net.add("LRN", [x], net.shapes[x], lrn_param=fields), shape)


def _softmax(node: Node, net: NetBuilder) -> str:
    shape, x = node.x.shape, net.blob(node.x)
    joint = node.opset < SAME_AXES
    axis = node.axis(1 if joint else -1)
    fields: dict[str, Any] = {} if axis == 1 else {"axis": axis}
    if joint and any(size != 1 for size in shape[axis + 1 :]):
        x = net.reshape(x, (*shape[:axis], math.prod(shape[axis:])))
    found = net.add("Softmax", [x], net.shapes[x], softmax_param=fields)
    return net.reshape(found, shape)


def _log_softmax(node: Node, net: NetBuilder) -> Result:
    net.notes.append(f"{node.label} becomes Softmax and Log: values below -87 are inexact or -inf")
    return net.same("Log", _softmax(node, net))


CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _group_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax,
    "Softmax": _softmax,
}
