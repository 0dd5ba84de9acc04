"""SmoothL1Loss and SmoothL1LossOHEM: squared errors near 0, absolute errors beyond."""

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.layers.base import Between, Blobs
from demitasse.layers.checks import out_of_range, wrong_shapes
from demitasse.layers.losses.base import LossLayer, Normalization, Targets, refuse_weights
from demitasse.layers.registry import register_layer


@register_layer("SmoothL1Loss")
class SmoothL1Loss(LossLayer):
    """Robust distance of two batches, with a gradient for both; s is ``sigma``.

    A squared error near 0, an absolute one beyond, summed and divided by N.
    With d the difference: (s d)^2 / 2 where |d| < 1 / s^2, |d| - 1 / (2 s^2) elsewhere.
    A third bottom multiplies the differences, a fourth one the losses; they get no gradient, even
    where ``propagate_down`` asks for it, as in the originals. Not compared with the originals,
    which run on GPUs only; the gradient is exact for any weights, where that of SSD, which has
    three bottoms, is so for weights of 0 and 1.

    Source: Fast R-CNN (rbgirshick/caffe-fast-rcnn), ``src/caffe/layers/smooth_L1_loss_layer.cu``;
    SSD (weiliu89/caffe), the same file.
    Shapes: bottoms (N, ...), all of the same count -> loss ().

    Raises:
        ConfigError: ``sigma`` is not above 0.
        ShapeError: The bottoms differ in count.
    """

    bottoms = Between(2, 4)
    differentiable = (0, 1)
    strict_propagate_down = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        sigma = self.param.smooth_l1_loss_param.sigma
        if sigma <= 0:
            raise out_of_range("smooth_l1_loss_param.sigma", sigma, "a number above 0")
        self.square = sigma * sigma

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        for blob in bottom[1:]:
            if blob.count != bottom[0].count:
                raise wrong_shapes(self.type, "bottoms of one count", bottom[0], blob)

    def losses(self, bottom: Blobs) -> Array:
        xp, diff = self.xp, self._diff(bottom)
        size = xp.abs(diff)
        near = 0.5 * self.square * diff * diff
        loss = xp.where(size < 1 / self.square, near, size - 0.5 / self.square)
        return loss * self._like_first(bottom, 3) if len(bottom) > 3 else loss

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        xp, diff = self.xp, self._diff(bottom)
        slope = xp.where(xp.abs(diff) < 1 / self.square, self.square * diff, xp.sign(diff))
        for index in range(2, len(bottom)):
            slope = slope * self._like_first(bottom, index)
        yield slope
        yield -slope

    def _diff(self, bottom: Blobs) -> Array:
        """Return the difference, multiplied by the third bottom. Shape: that of the first."""
        diff = bottom[0].read() - self._like_first(bottom, 1)
        return diff * self._like_first(bottom, 2) if len(bottom) > 2 else diff

    def _like_first(self, bottom: Blobs, index: int) -> Array:
        return self.xp.reshape(bottom[index].read(), bottom[0].shape)


@register_layer("SmoothL1LossOHEM")
class SmoothL1LossOHEM(SmoothL1Loss):
    """Robust distance of predicted and target boxes: the sum, and the loss of each region.

    The second top is the loss of each region. A third bottom multiplies the differences; ``sigma``,
    which the original does not have, is 1 unless given. FULL and VALID divide by all positions (R x
    places), BATCH_SIZE by R; there is no ``ignore_label``. The second top is not normalized, and
    passes no gradient back. Not compared with the original; the gradient is exact for any weights,
    where the original's is so for weights of 0 and 1.

    Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/smooth_L1_loss_ohem_layer.cu``;
    Intel Caffe, ``smooth_L1_loss_ohem_layer.cpp``.
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
        return Targets(None, self.normalization.normalizer(regions, regions * places))

    def write_each(self, losses: Array, top: Blobs) -> None:
        if len(top) > 1:
            top[1].write(self.xp.sum(losses, axis=1, keepdims=True))
