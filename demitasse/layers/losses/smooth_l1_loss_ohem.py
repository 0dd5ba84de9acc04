"""SmoothL1LossOHEM: SmoothL1Loss whose second top is what each region loses.

Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/smooth_L1_loss_ohem_layer.cu``; Intel
Caffe, ``smooth_L1_loss_ohem_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Between, Blobs
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.losses.smooth_l1_loss import SmoothL1Loss
from demitasse.layers.losses.targets import Normalization, Targets, refuse_weights
from demitasse.layers.registry import register

__all__ = ["SmoothL1LossOHEM"]


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(SmoothL1Loss):
    """Robust distance of predicted and wanted boxes, summed, and of each region alone.

    A third bottom multiplies the differences; ``sigma``, which the original does not have, is 1
    unless given. FULL and VALID divide by all positions (R x places),
    BATCH_SIZE by R; there is no ``ignore_label``. The second top is not divided, and no gradient
    comes back through it. Not compared with the original; the gradient is exact for any weights,
    where the original's is so for weights of 0 and 1.

    Shapes: bottoms (R, B, *places), all of the same count -> loss ()[, losses (R, 1, *places)].

    Raises:
        ConfigError: ``sigma`` is not above 0, or ``loss_param`` weighs classes or smooths labels.
        ShapeError: The bottoms differ in count, or have one axis.
    """

    bottoms = Between(2, 3)
    tops = Between(1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.loss_param
        refuse_weights(p, self.type)
        self.normalization = Normalization.of(p, default="VALID")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        if bottom[0].num_axes < 2:
            raise wrong_shapes("SmoothL1LossOHEM", "boxes (R, B, *places)", bottom[0])
        if len(top) > 1:
            regions, _, *places = bottom[0].shape
            top[1].reshape((regions, 1, *places))

    def targets(self, bottom: Blobs) -> Targets:
        regions, places = bottom[0].shape[0], bottom[0].count_from(2)
        return Targets(None, self.normalization.divisor(regions, regions * places))

    def write_each(self, losses: Array, top: Blobs) -> None:
        if len(top) > 1:
            top[1].write(self.xp.sum(losses, axis=1, keepdims=True))
