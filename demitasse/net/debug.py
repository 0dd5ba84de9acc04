"""``debug_info``: mean absolute values of all blobs of a pass, in Caffe's log lines.

Source: Caffe, ``Net::ForwardDebugInfo``, ``BackwardDebugInfo``, ``Backward`` in
``src/caffe/net.cpp``.
"""

from __future__ import annotations

import logging
import math

from demitasse.net.structure import Structure

log = logging.getLogger("demitasse.net")


class DebugInfo:
    """Logs mean absolute values of the blobs of a net."""

    def __init__(self, net: Structure) -> None:
        self.net = net

    def forward(self, index: int) -> None:
        """Log the tops and parameters of a layer after its forward."""
        net, layer = self.net, self.net.layers[index]
        for top in net.top_ids(index):
            blob = net.blob_list[top]
            log.info(
                "    [Forward] Layer %s, top blob %s data: %.6g",
                layer.name, net.graph.blobs[top], _mean(blob.asum_data(), blob.count),
            )  # fmt: skip
        names = [record.display_name for record in net.param_records if record.layer == index]
        for name, blob in zip(names, layer.blobs, strict=True):
            log.info(
                "    [Forward] Layer %s, param blob %s data: %.6g",
                layer.name, name, _mean(blob.asum_data(), blob.count),
            )  # fmt: skip

    def backward(self, index: int) -> None:
        """Log the gradients that a layer computed in its backward."""
        net, layer = self.net, self.net.layers[index]
        wanted = net.bottom_need_backward[index]
        for bottom, need in zip(net.bottom_ids(index), wanted, strict=True):
            if need:
                blob = net.blob_list[bottom]
                log.info(
                    "    [Backward] Layer %s, bottom blob %s diff: %.6g",
                    layer.name, net.graph.blobs[bottom], _mean(blob.asum_diff(), blob.count),
                )  # fmt: skip
        for i, blob in enumerate(layer.blobs):
            if layer.param_propagate_down(i):
                log.info(
                    "    [Backward] Layer %s, param blob %d diff: %.6g",
                    layer.name, i, _mean(blob.asum_diff(), blob.count),
                )  # fmt: skip

    def totals(self) -> None:
        """Log the L1 and L2 norms of all learnable parameters and of their gradients."""
        params = self.net.learnable_params
        log.info(
            "    [Backward] All net params (data, diff): L1 norm = (%.6g, %.6g); "
            "L2 norm = (%.6g, %.6g)",
            sum(b.asum_data() for b in params),
            sum(b.asum_diff() for b in params),
            math.sqrt(sum(b.sumsq_data() for b in params)),
            math.sqrt(sum(b.sumsq_diff() for b in params)),
        )


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
