"""The net for PyTorch: a module whose forward is straight-line code, from our message."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from demitasse.io.proto import NetParameter
from peers.recipe import Operation, operations

__all__ = ["twin"]


def twin(net: NetParameter, weights: Mapping[str, np.ndarray], train: bool) -> nn.Module:
    """Return the module: of "data", and of "label" where it trains, to its only result.

    Parameters have an attribute ``key``, the name they have in ``weights``.
    """
    graph, parts = fx.Graph(), nn.Module()
    made = {"data": graph.placeholder("data")}
    if train:
        made["label"] = graph.placeholder("label")
    last = ""
    for operation in operations(net):
        inputs = [made[name] for name in operation.inputs]
        made |= _tops(graph, operation, _add(graph, parts, operation, inputs, weights))
        last = operation.name
    graph.output(made[last])
    return fx.GraphModule(parts, graph).train(train)


def _add(
    graph: fx.Graph, parts: nn.Module, operation: Operation, inputs: list[fx.Node],
    weights: Mapping[str, np.ndarray],
) -> fx.Node:  # fmt: skip
    f = operation.fields
    match operation.kind:
        case "concat":
            return graph.call_function(torch.cat, (inputs, 1))
        case "permute":
            return graph.call_function(torch.permute, (inputs[0], f["order"]))
        case "reshape":
            return graph.call_function(_reshaped, (inputs[0], f["shape"]))
        case "crop":
            return graph.call_function(_cut, (inputs[0], f["offset"], f["size"]))
        case "add":
            total = inputs[0]
            for one in inputs[1:]:
                total = graph.call_function(torch.add, (total, one))
            return total
        case "flatten":
            return graph.call_function(torch.flatten, (inputs[0], 1))
        case "softmax":
            return graph.call_function(torch.softmax, (inputs[0], f["axis"]))
        case "loss":
            return graph.call_function(nn.functional.cross_entropy, tuple(inputs))
        case "ip" if f["axis"] == 1:
            inputs = [graph.call_function(torch.flatten, (inputs[0], 1))]
    name = operation.name.replace("/", "_")
    parts.add_module(name, _module(operation, weights))
    return graph.call_module(name, tuple(inputs))


def _tops(graph: fx.Graph, operation: Operation, node: fx.Node) -> dict[str, fx.Node]:
    """Return the results by name; modules of some kinds return two."""
    if operation.kind != "lstm" and not operation.fields.get("mask"):
        return {operation.name: node}
    names = (operation.name, f"{operation.name}/mask")
    return {
        name: graph.call_function(operator.getitem, (node, at)) for at, name in enumerate(names)
    }


def _reshaped(x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Reshape as Caffe does, where 0 is the size that the axis has."""
    return x.reshape([size or x.shape[axis] for axis, size in enumerate(shape)])


def _cut(x: torch.Tensor, offset: int, size: tuple[int, int]) -> torch.Tensor:
    return x[..., offset : offset + size[0], offset : offset + size[1]]


def _module(operation: Operation, weights: Mapping[str, np.ndarray]) -> nn.Module:
    f = operation.fields
    match operation.kind:
        case "relu":
            return nn.ReLU(inplace=True)
        case "relu6":
            return nn.ReLU6(inplace=True)
        case "shuffle":
            return nn.ChannelShuffle(f["group"])
        case "lrn":
            return nn.LocalResponseNorm(f["size"], f["alpha"], f["beta"], f["k"])
        case "max" | "ave" if "everything" in f:
            return nn.AdaptiveMaxPool2d(1) if operation.kind == "max" else nn.AdaptiveAvgPool2d(1)
        case "max":
            window = f["kernel"], f["stride"], f["pad"]
            return nn.MaxPool2d(*window, ceil_mode=True, return_indices=f["mask"])
        case "unpool":
            return nn.MaxUnpool2d(f["scale"])
        case "ave":
            return nn.AvgPool2d(f["kernel"], f["stride"], f["pad"], ceil_mode=True)
    return _filled(operation, weights)


def _filled(operation: Operation, weights: Mapping[str, np.ndarray]) -> nn.Module:
    f, keys = operation.fields, operation.weights
    shape = weights[keys[0]].shape
    module: Any
    match operation.kind:
        case "conv":
            module = nn.Conv2d(
                shape[1] * f["group"], shape[0], f["kernel"], f["stride"], f["pad"],
                f["dilation"], f["group"], bias=len(keys) > 1,
            )  # fmt: skip
        case "deconv":
            module = nn.ConvTranspose2d(
                shape[0], shape[1] * f["group"], f["kernel"], f["stride"], f["pad"],
                groups=f["group"], bias=len(keys) > 1,
            )  # fmt: skip
        case "lstm":
            return _lstm(f["outputs"], *(weights[key] for key in keys))
        case "ip":
            module = nn.Linear(shape[1], shape[0], bias=len(keys) > 1)
        case "prelu":
            module = nn.PReLU(shape[0])
        case "bn":
            module = nn.BatchNorm2d(shape[0], f["eps"], 1 - f["fraction"])
            factor = weights[keys[4]].item() or 1.0
            module.running_mean.copy_(torch.from_numpy(weights[keys[2]] / factor))
            module.running_var.copy_(torch.from_numpy(weights[keys[3]] / factor))
    with torch.no_grad():
        for parameter, key in zip(module.parameters(), keys, strict=False):
            parameter.copy_(torch.from_numpy(weights[key]))
            parameter.key = key
    return module


def _lstm(outputs: int, x: np.ndarray, bias: np.ndarray, h: np.ndarray) -> nn.Module:
    """Return an LSTM; PyTorch has its gates in the order input, forget, new, output."""
    module = nn.LSTM(x.shape[1], outputs)
    order = np.arange(4 * outputs).reshape(4, outputs)[[0, 1, 3, 2]].reshape(-1)
    with torch.no_grad():
        for parameter, values in zip(
            module.parameters(), (x, h, bias, np.zeros_like(bias)), strict=True
        ):
            parameter.copy_(torch.from_numpy(values[order]))
    return module
