"""What loss layers share: a scalar top with weight 1, made up when the net names none.

Source: Caffe, ``src/caffe/layers/loss_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.losses.targets import Targets

__all__ = ["LossLayer"]


class LossLayer(Layer):
    """Compares a prediction with a target and gives one number.

    A loss says what it loses, how that slopes, and which targets count; sums and quotients are
    here.

    Shapes: bottoms (N, ...), (N, ...) -> top ().

    Raises:
        NetError: The loss would be written into a bottom.
        ShapeError: Prediction and target differ in batch size.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    auto_tops = True

    differentiable: Sequence[int] = (0,)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.refuse_in_place(bottom, top[:1])
        if not self.param.loss_weight:  # a loss counts unless told otherwise
            self.param.loss_weight.append(1.0)
            self.param.loss_weight.extend([0.0] * (len(top) - 1))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob in bottom[:2]:
            blob.canonical_axis(0)  # there is a batch
        if bottom[0].shape[0] != bottom[1].shape[0]:
            raise wrong_shapes(self.type, "bottoms of one batch size", *bottom[:2])
        top[0].reshape(())

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        losses, targets = self.losses(bottom), self.targets(bottom)
        counted = targets.counted(self.xp, losses)
        top[0].write(self.xp.sum(counted) / targets.divisor)
        self.write_each(counted, top)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not any(propagate_down):
            return
        targets = self.targets(bottom)
        scale = top[0].read_diff() / targets.divisor
        # up to the last that is wanted: slopes behind it are not computed
        reached = [index for index in self.differentiable if any(propagate_down[index:])]
        for index, slope in zip(reached, self.slopes(bottom), strict=False):
            if propagate_down[index]:
                gradient = targets.counted(self.xp, slope) * scale
                bottom[index].write_diff(self.xp.reshape(gradient, bottom[index].shape))

    # -- written by subclasses -----------------------------------------------------------------

    def losses(self, bottom: Blobs) -> Array:
        """Return the losses, which are then added up and divided; they may be added up already.

        Shapes: like the targets where some do not count, else any.
        """
        raise NotImplementedError(type(self).__name__)

    def slopes(self, bottom: Blobs) -> Iterator[Array]:
        """Yield the derivative of the losses' sum by each differentiable bottom.

        Shapes: those of the bottoms, or others of as many values.
        """
        raise NotImplementedError(type(self).__name__)

    def write_each(self, losses: Array, top: Blobs) -> None:
        """Write what was lost where, undivided, for losses that have a top for it.

        Shapes: losses as ``losses`` returned them, 0 where a target does not count.
        """

    def targets(self, bottom: Blobs) -> Targets:
        """Return which targets count and what the losses are divided by: all, and the batch."""
        return Targets(None, bottom[0].shape[0])
