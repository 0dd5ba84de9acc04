"""ContrastiveLoss: sum (y d^2 + (1 - y) max(margin - d, 0)^2) / (2 N), d = |a - b|."""

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.registry import register_layer

EPSILON = 1e-4  # added to the distance that the gradient divides by


@register_layer("ContrastiveLoss")
class ContrastiveLoss(LossLayer):
    """Pull features of similar pairs together; push other pairs apart up to ``margin``.

    ``legacy_version`` penalises max(margin - d^2, 0) instead, as Caffe once did.

    Source: Caffe, ``src/caffe/layers/contrastive_loss_layer.cpp``.
    Shapes: features (N, C), (N, C), similarity (N,), all perhaps with further axes of 1; a pair is
    similar where the whole part of its third value is not 0 -> loss ().

    Raises:
        ShapeError: The bottoms have other shapes.
    """

    bottoms = Exactly(3)
    differentiable = (0, 1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.contrastive_loss_param
        self.margin, self.legacy = p.margin, p.legacy_version

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        a, b, similar = bottom
        n, c = a.num, a.channels
        if not a.count == b.count == n * c or b.channels != c or similar.count != n:
            expected = "features (N, C) twice and similarity (N,)"
            raise wrong_shapes("ContrastiveLoss", expected, *bottom)

    def losses(self, bottom: Blobs) -> Array:
        xp, margin = self.xp, self.margin
        similar, diff = self._similar(bottom), self._diff(bottom)
        square = xp.sum(diff * diff, axis=1, keepdims=True)  # (N, 1)
        if self.legacy:
            apart = xp.maximum(margin - square, 0.0)
        else:
            apart = xp.maximum(margin - xp.sqrt(square), 0.0) ** 2
        return xp.sum(xp.where(similar, square, apart)) / 2

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        xp, diff = self.xp, self._diff(bottom)
        square = xp.sum(diff * diff, axis=1, keepdims=True)  # (N, 1)
        if self.legacy:
            short = self.margin - square
            push = self.full((), -1.0)
        else:
            distance = xp.sqrt(square)
            short = self.margin - distance
            push = -short / (distance + EPSILON)
        factor = xp.where(self._similar(bottom), 1.0, xp.where(short > 0, push, 0.0))
        slope = diff * factor
        yield slope
        yield -slope

    def _similar(self, bottom: Blobs) -> Array:
        """Return a mask of the similar pairs. Shape: (N, 1), bool."""
        return self.cast(self.xp.reshape(bottom[2].read(), (-1, 1)), "int64") != 0

    def _diff(self, bottom: Blobs) -> Array:
        """Return the difference of the features. Shape: (N, C)."""
        xp, shape = self.xp, (bottom[0].num, bottom[0].channels)
        return xp.reshape(bottom[0].read(), shape) - xp.reshape(bottom[1].read(), shape)
