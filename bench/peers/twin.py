"""The net for PyTorch: a module whose forward is straight-line code, from our message."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from demitasse.proto import NetParameter
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
        made[operation.name] = _add(graph, parts, operation, inputs, weights)
        last = operation.name
    graph.output(made[last])
    return fx.GraphModule(parts, graph).train(train)


def _add(
    graph: fx.Graph, parts: nn.Module, operation: Operation, inputs: list[fx.Node],
    weights: Mapping[str, np.ndarray],
) -> fx.Node:  # fmt: skip
    match operation.kind:
        case "concat":
            return graph.call_function(torch.cat, (inputs, 1))
        case "add":
            total = inputs[0]
            for one in inputs[1:]:
                total = graph.call_function(torch.add, (total, one))
            return total
        case "flatten":
            return graph.call_function(torch.flatten, (inputs[0], 1))
        case "softmax":
            return graph.call_function(torch.softmax, (inputs[0], 1))
        case "loss":
            return graph.call_function(nn.functional.cross_entropy, tuple(inputs))
        case "ip":
            inputs = [graph.call_function(torch.flatten, (inputs[0], 1))]
    name = operation.name.replace("/", "_")
    parts.add_module(name, _module(operation, weights))
    return graph.call_module(name, tuple(inputs))


def _module(operation: Operation, weights: Mapping[str, np.ndarray]) -> nn.Module:
    f = operation.fields
    match operation.kind:
        case "relu":
            return nn.ReLU(inplace=True)
        case "lrn":
            return nn.LocalResponseNorm(f["size"], f["alpha"], f["beta"], f["k"])
        case "max" | "ave" if "everything" in f:
            return nn.AdaptiveMaxPool2d(1) if operation.kind == "max" else nn.AdaptiveAvgPool2d(1)
        case "max":
            return nn.MaxPool2d(f["kernel"], f["stride"], f["pad"], ceil_mode=True)
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
        case "ip":
            module = nn.Linear(shape[1], shape[0], bias=len(keys) > 1)
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
