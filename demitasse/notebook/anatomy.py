"""The parts of a net in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse.layers.metadata.cost import multiply_adds, values_moved
from demitasse.net import Net

__all__ = ["anatomy", "shapes_text"]


def anatomy(net: Net) -> dict[str, Any]:
    """Return layers, shapes, parameters, work and memory of a net, ready for JSON.

    Shared parameters count once. Work is that of one forward pass, by the shapes: multiply-adds,
    and bytes that layers read and write.
    """
    width = 8 if net.dtype == "float64" else 4
    layers = []
    for index, layer in enumerate(net.layers):
        bottom = [net.structure.blob_list[i] for i in net.structure.bottom_ids(index)]
        top = [net.structure.blob_list[i] for i in net.structure.top_ids(index)]
        tops = {
            net.blob_names[i]: list(blob.shape)
            for i, blob in zip(net.structure.top_ids(index), top, strict=True)
        }
        layers.append(
            {
                "name": layer.name,
                "type": layer.type,
                "bottoms": [net.blob_names[i] for i in net.structure.bottom_ids(index)],
                "tops": tops,
                "parameter_shapes": [list(blob.shape) for blob in layer.blobs],
                "parameters": sum(blob.count for blob in layer.blobs),
                "multiply_adds": multiply_adds(layer, top) or None,
                "bytes_moved": width * values_moved(layer, bottom, top),
            }
        )
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
            "bytes_moved": sum(layer["bytes_moved"] for layer in layers),
            "top_bytes": width * sum(blob.count for blob in net.structure.blob_list),
            "memory_used": net.structure.memory_used,
        },
    }


def shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    """Return shapes in few words: ``1x64x56x56``, or with ``each`` where several are equal."""
    texts = ["x".join(map(str, shape)) or "1" for shape in shapes]
    return f"{texts[0]} each" if len(texts) > 1 and len(set(texts)) == 1 else ", ".join(texts)
