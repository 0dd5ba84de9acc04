"""BatchNorm with three ParamSpecs: statistics must not be trained.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeNetBatchNorm).
"""

from demitasse.io.proto.caffe_pb2 import NetParameter

__all__ = ["upgrade_batch_norm"]


def upgrade_batch_norm(net: NetParameter) -> list[str]:
    """Set lr_mult and decay_mult of BatchNorm layers with three ParamSpecs to 0, in place."""
    old = [layer for layer in net.layer if layer.type == "BatchNorm" and len(layer.param) == 3]
    for layer in old:
        for spec in layer.param:
            spec.lr_mult = spec.decay_mult = 0.0
    if not old:
        return []
    return [f"BatchNorm with three param entries: their lr_mult and decay_mult are 0 ({len(old)})"]
