"""What a solver says about a pass, in lines that Caffe's log parsers read.

Source: Caffe, ``Solver::Step`` and ``Solver::Test`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np

from demitasse.blob import Blob
from demitasse.log import number
from demitasse.net import Net

__all__ = ["first_nonfinite", "tell_outputs"]


def tell_outputs(
    log: logging.Logger, kind: str, net: Net, values: Mapping[str, np.ndarray]
) -> None:
    """Log every output element of a net, with its share of the loss where it has one.

    Args:
        log: Where to.
        kind: "Train" or "Test".
        net: The net.
        values: The outputs, or their means, by name.
    """
    weights = dict(zip(net.blob_names, net.blob_loss_weights, strict=True))
    index = 0
    for name, array in values.items():
        weight = weights[name]
        for value in array.reshape(-1).tolist():
            share = f" (* {number(weight)} = {number(weight * value)} loss)" if weight else ""
            log.info("    %s net output #%d: %s = %s%s", kind, index, name, number(value), share)
            index += 1


def first_nonfinite(net: Net) -> str:
    """Say which parameter or top of a net, in forward order, first holds NaN or infinity."""
    for index, layer in enumerate(net.layers):
        place = f"layer {layer.name!r} ({layer.type})"
        for i, blob in enumerate(layer.blobs):
            if not _finite(blob):
                return f"parameter {i} of {place}"
        for top in net.top_ids(index):
            if not _finite(net.blob_list[top]):
                return f"top {net.blob_names[top]!r} of {place}"
    return "nothing that is left of the pass"


def _finite(blob: Blob) -> bool:
    return math.isfinite(blob.asum_data())
