"""Cost of a layer's forward pass by its shapes: multiply-adds, and values read and written.

The layer's operation counts its multiply-adds from its geometry. The table of metadata has the
multiply-adds per output value of the types without an operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.blob import Blob
from demitasse.layers.base import Layer
from demitasse.layers.metadata.table import layer_metadata


def multiply_adds(layer: Layer, top: Sequence[Blob]) -> int:
    """Return the multiply-adds of one forward pass."""
    if layer.op is not None and layer.op.multiply_adds:
        return layer.op.multiply_adds
    macs_per_output = layer_metadata(layer.type).macs_per_output
    if macs_per_output is None or not top:
        return 0
    return macs_per_output(layer.param, layer.phase) * top[0].count


def values_moved(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """Return the number of values that one forward pass reads and writes, each counted once.

    Fused layers may read and write fewer values.
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
