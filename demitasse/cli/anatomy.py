"""The parts of a net in numbers."""

from __future__ import annotations

import math
from typing import Any

from demitasse.layers import Layer
from demitasse.net import Net

__all__ = ["anatomy"]


def anatomy(net: Net) -> dict[str, Any]:
    """Return layers, shapes, parameters, multiply-adds and memory of a net, ready for JSON.

    Shared parameters count once. Multiply-adds are those of convolutions, inner products and
    recurrent layers in one forward pass; what other layers do is little beside them.
    """
    layers = []
    works = [_multiply_adds(net, index, layer) for index, layer in enumerate(net.layers)]
    for index, layer in enumerate(net.layers):
        tops = {net.blob_names[i]: list(net.blob_list[i].shape) for i in net.top_ids(index)}
        layers.append(
            {
                "name": layer.name,
                "type": layer.type,
                "bottoms": [net.blob_names[i] for i in net.bottom_ids(index)],
                "tops": tops,
                "parameter_shapes": [list(blob.shape) for blob in layer.blobs],
                "parameters": sum(blob.count for blob in layer.blobs),
                "multiply_adds": works[index],
            }
        )
    width = 8 if net.dtype == "float64" else 4
    parameters = sum(blob.count for blob in net.learnable_params)
    return {
        "name": net.name,
        "phase": net.phase,
        "layers": layers,
        "total": {
            "layers": len(layers),
            "parameters": parameters,
            "parameter_bytes": width * parameters,
            "multiply_adds": sum(work or 0 for work in works),
            "top_bytes": width * sum(blob.count for blob in net.blob_list),
            "memory_used": net.memory_used,
        },
    }


def _multiply_adds(net: Net, index: int, layer: Layer) -> int | None:
    """Return the products that a layer adds up in one forward pass; None for other types."""
    bottoms = [net.blob_list[i] for i in net.bottom_ids(index)]
    tops = [net.blob_list[i] for i in net.top_ids(index)]
    if not layer.blobs:
        return None
    weight = layer.blobs[0].shape
    match layer.type:
        case "Convolution":
            return sum(top.count for top in tops) * math.prod(weight[1:])
        case "Deconvolution":
            return sum(bottom.count for bottom in bottoms) * math.prod(weight[1:])
        case "InnerProduct":
            rows = tops[0].count // layer.param.inner_product_param.num_output
            return rows * math.prod(weight)
        case "LSTM" | "RNN":
            steps = bottoms[0].count_to(2)
            matrices = [blob.count for blob in layer.blobs if blob.num_axes > 1]
            return steps * sum(matrices)
        case _:
            return None
