"""SoftmaxWithLossOHEM: SoftmaxWithLoss whose third top is what each position loses.

Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/softmax_loss_ohem_layer.cpp``; Intel
Caffe, the same file.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Between, Blobs
from demitasse.layers.losses.softmax_loss import SoftmaxWithLoss
from demitasse.layers.registry import register

__all__ = ["SoftmaxWithLossOHEM"]


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """Compare scores with class labels as SoftmaxWithLoss does, and say what each label loses.

    The third top is not divided, is 0 where a label is ignored, and no gradient comes back through
    it. With three tops the second one holds the probabilities, too, where the original leaves it
    unwritten. Not compared with the original.

    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape[, weights of as many] ->
    loss ()[, probabilities, shaped like the scores[, losses, shaped like the labels]].

    Raises:
        ConfigError: As SoftmaxWithLoss.
        ShapeError: As SoftmaxWithLoss.
    """

    tops = Between(1, 3)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        if len(top) > 2:
            top[2].reshape_like(bottom[1])
            self.op = None  # backends know Caffe's loss only

    def write_each(self, losses: Array, top: Blobs) -> None:
        if len(top) > 2:
            top[2].write(self.xp.reshape(losses, top[2].shape))
