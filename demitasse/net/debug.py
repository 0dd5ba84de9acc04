"""``debug_info``: mean absolute values of everything a pass touches, in Caffe's log lines.

Source: Caffe, ``Net::ForwardDebugInfo``, ``BackwardDebugInfo``, ``UpdateDebugInfo``.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demitasse.net import Net

__all__ = ["NetDebug"]

log = logging.getLogger("demitasse.net")


class NetDebug:
    """Writes what a net's blobs look like to the log."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def forward(self, index: int) -> None:
        """Tell of the tops and parameters of a layer that has just run."""
        net, layer = self.net, self.net.layers[index]
        for top in net.top_ids(index):
            blob = net.blob_list[top]
            log.info(
                "    [Forward] Layer %s, top blob %s data: %.6g",
                layer.name, net.blob_names[top], _mean(blob.asum_data(), blob.count),
            )  # fmt: skip
        for i, blob in enumerate(layer.blobs):
            log.info(
                "    [Forward] Layer %s, param blob %s data: %.6g",
                layer.name, self._param_name(index, i), _mean(blob.asum_data(), blob.count),
            )  # fmt: skip

    def backward(self, index: int) -> None:
        """Tell of the gradients a layer has just computed."""
        net, layer = self.net, self.net.layers[index]
        wanted = net.bottom_need_backward[index]
        for bottom, need in zip(net.bottom_ids(index), wanted, strict=True):
            if need:
                blob = net.blob_list[bottom]
                log.info(
                    "    [Backward] Layer %s, bottom blob %s diff: %.6g",
                    layer.name, net.blob_names[bottom], _mean(blob.asum_diff(), blob.count),
                )  # fmt: skip
        for i, blob in enumerate(layer.blobs):
            if layer.param_propagate_down(i):
                log.info(
                    "    [Backward] Layer %s, param blob %d diff: %.6g",
                    layer.name, i, _mean(blob.asum_diff(), blob.count),
                )  # fmt: skip

    def totals(self) -> None:
        """Tell the L1 and L2 norms of all learnable parameters and of their gradients."""
        params = self.net.learnable_params
        log.info(
            "    [Backward] All net params (data, diff): L1 norm = (%.6g, %.6g); "
            "L2 norm = (%.6g, %.6g)",
            sum(b.asum_data() for b in params),
            sum(b.asum_diff() for b in params),
            math.sqrt(sum(b.sumsq_data() for b in params)),
            math.sqrt(sum(b.sumsq_diff() for b in params)),
        )

    def update(self, param: int) -> None:
        """Tell of one parameter and its gradient before they are subtracted."""
        net = self.net
        blob = net.params_list[param]
        layer, _ = net.param_layer_indices[param]
        owner = net.param_owners[param]
        name = net.param_display_names[param]
        diff = _mean(blob.asum_diff(), blob.count)
        if owner < 0:
            log.info(
                "    [Update] Layer %s, param %s data: %.6g; diff: %.6g",
                net.layer_names[layer], name, _mean(blob.asum_data(), blob.count), diff,
            )  # fmt: skip
        else:
            owner_layer, _ = net.param_layer_indices[owner]
            log.info(
                "    [Update] Layer %s, param blob %s (owned by layer %s, param %s) diff: %.6g",
                net.layer_names[layer], name, net.layer_names[owner_layer],
                net.param_display_names[owner], diff,
            )  # fmt: skip

    def _param_name(self, layer: int, index: int) -> str:
        number = self.net.param_layer_indices.index((layer, index))
        return self.net.param_display_names[number]


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
