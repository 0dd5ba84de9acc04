"""``debug_info``: mean absolute values of all blobs of a pass, in Caffe's log lines.

Source: Caffe, ``Net::ForwardDebugInfo``, ``BackwardDebugInfo``, ``Backward`` in
``src/caffe/net.cpp``.
"""

import logging
import math

from demitasse.blob import Blob
from demitasse.net.structure import Structure

log = logging.getLogger("demitasse.net")


def log_forward(net: Structure, index: int) -> None:
    """Log the tops and parameters of a layer after its forward."""
    layer = net.layers[index]
    for top in net.top_ids(index):
        _log_data(f"Layer {layer.name}, top blob {net.graph.blobs[top]}", net.blob_list[top])
    names = [record.display_name for record in net.param_records if record.layer == index]
    for name, blob in zip(names, layer.blobs, strict=True):
        _log_data(f"Layer {layer.name}, param blob {name}", blob)


def log_backward(net: Structure, index: int) -> None:
    """Log the gradients that a layer computed in its backward."""
    layer = net.layers[index]
    for bottom, need in zip(net.bottom_ids(index), net.needs.bottoms[index], strict=True):
        if need:
            name = net.graph.blobs[bottom]
            _log_diff(f"Layer {layer.name}, bottom blob {name}", net.blob_list[bottom])
    for i, blob in enumerate(layer.blobs):
        if layer.param_propagate_down(i):
            _log_diff(f"Layer {layer.name}, param blob {i}", blob)


def log_totals(net: Structure) -> None:
    """Log the L1 and L2 norms of all learnable parameters and of their gradients."""
    params = net.learnable_params
    log.info(
        "    [Backward] All net params (data, diff): L1 norm = (%.6g, %.6g); "
        "L2 norm = (%.6g, %.6g)",
        sum(b.asum_data() for b in params),
        sum(b.asum_diff() for b in params),
        math.sqrt(sum(b.sumsq_data() for b in params)),
        math.sqrt(sum(b.sumsq_diff() for b in params)),
    )


def _log_data(name: str, blob: Blob) -> None:
    log.info("    [Forward] %s data: %.6g", name, blob.asum_data() / max(blob.count, 1))


def _log_diff(name: str, blob: Blob) -> None:
    log.info("    [Backward] %s diff: %.6g", name, blob.asum_diff() / max(blob.count, 1))
