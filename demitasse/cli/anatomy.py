"""The parts of a net in numbers."""

from __future__ import annotations

from typing import Any

from demitasse.net import Net

__all__ = ["anatomy"]


def anatomy(net: Net) -> dict[str, Any]:
    """Return layers, shapes, parameters, multiply-adds and memory of a net, ready for JSON.

    Shared parameters count once. Multiply-adds are those of convolutions, inner products and
    recurrent layers in one forward pass; what other layers do is little beside them.
    """
    layers = []
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
                "multiply_adds": (layer.op.multiply_adds if layer.op else 0) or None,
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
            "multiply_adds": sum(layer["multiply_adds"] or 0 for layer in layers),
            "top_bytes": width * sum(blob.count for blob in net.blob_list),
            "memory_used": net.memory_used,
        },
    }
