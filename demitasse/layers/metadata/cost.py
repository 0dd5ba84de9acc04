"""What a layer's forward pass costs by its shapes: multiply-adds, and values read and written.

Where a layer describes an operation to the backends, that knows its geometry (windows, groups,
steps) and counts; the table of facts says only how many products there are for each value of the
other types, so that no count is written twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.blob import Blob
from demitasse.layers.base import Layer
from demitasse.layers.metadata.table import layer_metadata


def multiply_adds(layer: Layer, top: Sequence[Blob]) -> int:
    """Return the multiplications, each with an addition, of one forward pass."""
    if layer.op is not None and layer.op.multiply_adds:
        return layer.op.multiply_adds
    macs_per_output = layer_metadata(layer.type).macs_per_output
    if macs_per_output is None or not top:
        return 0
    return macs_per_output(layer.param, layer.phase) * top[0].count


def values_moved(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """Return how many values one forward pass reads and writes, each of them once.

    What a fast way keeps between layers that run as one, or reads again, is not in it.
    """
    facts = layer_metadata(layer.type)
    written = sum(blob.count for blob in top)
    if facts.shares.is_met(layer.param, layer.phase):
        return 0
    match facts.moves:
        case "nothing":
            return 0
        case "tops":
            return written
        case "part":
            return 2 * written
    return written + sum(blob.count for blob in (*bottom, *layer.blobs))
