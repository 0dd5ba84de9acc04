"""The net for ONNX Runtime and OpenVINO: a model file, from our message."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from demitasse.io.proto import NetParameter
from peers.recipe import Operation, operations

__all__ = ["write_onnx"]

OPSET, IR = 21, 10


def write_onnx(path: Path, net: NetParameter, weights: Mapping[str, np.ndarray]) -> None:
    """Write the model; its input is "data", its output "prob"."""
    nodes, stored = [], {}
    for operation in operations(net):
        nodes += _nodes(operation, weights, stored)
    [shape] = [layer.input_param.shape[0].dim for layer in net.layer if layer.name == "data"]
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, list(shape))
    prob = helper.make_tensor_value_info("prob", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.ascontiguousarray(a), key) for key, a in stored.items()]
    graph = helper.make_graph(nodes, net.name, [data], [prob], tensors)
    opset = [helper.make_opsetid("", OPSET)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=IR), path)


def _nodes(
    operation: Operation, weights: Mapping[str, np.ndarray], stored: dict[str, np.ndarray]
) -> list[Any]:
    f, name, inputs = operation.fields, operation.name, list(operation.inputs)

    def node(kind: str, *more: str, **attributes: Any) -> list[Any]:
        return [helper.make_node(kind, [*inputs, *more], [name], name, **attributes)]

    if operation.kind == "lstm":
        return _lstm(operation, weights, stored)
    stored.update({key: weights[key] for key in operation.weights})
    match operation.kind:
        case "conv" | "deconv":
            kind = "Conv" if operation.kind == "conv" else "ConvTranspose"
            return node(
                kind, *operation.weights, kernel_shape=[f["kernel"]] * 2,
                strides=[f["stride"]] * 2, pads=[f["pad"]] * 4, dilations=[f["dilation"]] * 2,
                group=f["group"],
            )  # fmt: skip
        case "ip" if f["axis"] > 1:
            weight, bias = operation.weights
            stored[weight] = weights[weight].T
            product = helper.make_node("MatMul", [*inputs, weight], [f"{name}/product"])
            return [product, helper.make_node("Add", [f"{name}/product", bias], [name], name)]
        case "ip":
            flat = helper.make_node("Flatten", inputs, [f"{name}/flat"], axis=1)
            rows = [f"{name}/flat", *operation.weights]
            return [flat, helper.make_node("Gemm", rows, [name], name, transB=1)]
        case "max" | "ave" if "everything" in f:
            return node("GlobalMaxPool" if operation.kind == "max" else "GlobalAveragePool")
        case "max" | "ave":
            window = {"kernel_shape": [f["kernel"]] * 2, "strides": [f["stride"]] * 2}
            window |= {"pads": [f["pad"]] * 4, "ceil_mode": 1}
            if operation.kind == "max":
                tops = [name, f"{name}/mask"][: 1 + f["mask"]]
                return [helper.make_node("MaxPool", inputs, tops, name, **window)]
            return node("AveragePool", count_include_pad=int(f["pad"] > 0), **window)
        case "bn":
            scale, bias, mean, variance, factor = operation.weights
            by = weights[factor].item() or 1.0
            stored |= {mean: weights[mean] / by, variance: weights[variance] / by}
            stored.pop(factor)
            return node("BatchNormalization", scale, bias, mean, variance, epsilon=f["eps"])
        case "unpool":
            return node("MaxUnpool", kernel_shape=[f["scale"]] * 2, strides=[f["scale"]] * 2)
        case "crop":
            end = [f["offset"] + size for size in f["size"]]
            for key, values in (("from", [f["offset"]] * 2), ("to", end), ("axes", [2, 3])):
                stored[f"{name}/{key}"] = np.array(values)
            return node("Slice", f"{name}/from", f"{name}/to", f"{name}/axes")
        case "reshape":
            stored[f"{name}/shape"] = np.array(f["shape"])
            return node("Reshape", f"{name}/shape")
        case "permute":
            return node("Transpose", perm=f["order"])
        case "softmax":
            return node("Softmax", axis=f["axis"])
        case "lrn":
            lrn = {"alpha": f["alpha"], "beta": f["beta"], "bias": f["k"], "size": f["size"]}
            return node("LRN", **lrn)
    kind, attributes = {
        "relu": ("Relu", {}),
        "concat": ("Concat", {"axis": 1}),
        "add": ("Add", {}),
        "flatten": ("Flatten", {"axis": 1}),
    }[operation.kind]
    return node(kind, **attributes)


def _lstm(
    operation: Operation, weights: Mapping[str, np.ndarray], stored: dict[str, np.ndarray]
) -> list[Any]:
    """Return the nodes of an LSTM; ONNX has its gates in the order input, output, forget, new."""
    x, bias, h = (weights[key] for key in operation.weights)
    count, name = operation.fields["outputs"], operation.name
    order = np.arange(4 * count).reshape(4, count)[[0, 2, 1, 3]].reshape(-1)
    both = np.concatenate([bias[order], np.zeros_like(bias)])
    keys = [f"{name}/{key}" for key in ("W", "R", "B")]
    stored |= zip(keys, (x[order][None], h[order][None], both[None]), strict=True)
    stored[f"{name}/direction"] = np.array([1])
    inputs = [*operation.inputs, *keys]
    return [
        helper.make_node("LSTM", inputs, [f"{name}/all"], name, hidden_size=count),
        helper.make_node("Squeeze", [f"{name}/all", f"{name}/direction"], [name]),
    ]
