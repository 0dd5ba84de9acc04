"""What loss layers share: a scalar top with weight 1, made up when the net names none.

Source: Caffe, ``src/caffe/layers/loss_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.proto import LossParameter

__all__ = ["LossLayer", "normalization_of", "refuse_weights"]

# names by number, so that a descriptor can carry the name
NORMALIZATIONS = dict(
    zip(
        LossParameter.NormalizationMode.values(),
        LossParameter.NormalizationMode.keys(),
        strict=True,
    )
)

FORKS = ("label_smoothing", "weight_by_label_freqs", "class_weighting")
"""Fields of ``loss_param`` that Caffe does not have, and its forks have in one layer."""


class LossLayer(Layer):
    """Compares a prediction with a target and gives one number.

    Shapes: bottoms (N, ...), (N, ...) -> top ().
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    auto_tops = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom
        if not self.param.loss_weight:  # a loss counts unless told otherwise
            self.param.loss_weight.append(1.0)
            self.param.loss_weight.extend([0.0] * (len(top) - 1))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob in bottom[:2]:
            blob.canonical_axis(0)  # there is a batch
        if bottom[0].shape[0] != bottom[1].shape[0]:
            message = (
                f"the prediction {bottom[0].shape} and the target {bottom[1].shape} "
                "have different batch sizes"
            )
            raise ShapeError(message)
        top[0].reshape(())

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index != 1

    def refuse_target_gradient(self, propagate_down: tuple[bool, ...] | list[bool]) -> None:
        """Raise when the gradient of the target is asked for."""
        if len(propagate_down) > 1 and propagate_down[1]:
            message = f"{self.type} has no gradient for its target (bottom 1)"
            raise NetError(message)


def normalization_of(param: LossParameter, default: str) -> str:
    """Return the name of the normalisation a message asks for.

    Args:
        param: ``normalization`` wins; else ``normalize`` (deprecated): true is VALID, false
            BATCH_SIZE.
        default: What holds when the message says nothing.
    """
    if param.HasField("normalization"):
        return NORMALIZATIONS[param.normalization]
    if param.HasField("normalize"):
        return "VALID" if param.normalize else "BATCH_SIZE"
    return default


def refuse_weights(param: LossParameter, layer_type: str) -> None:
    """Refuse fields that would change the loss, were they not passed over.

    Raises:
        ConfigError: The message weighs classes or smooths labels.
    """
    for name in FORKS:
        if getattr(param, name):
            message = f"loss_param.{name} is for SoftmaxWithLoss; {layer_type} does not know it"
            raise ConfigError(message)


def at_least_one(layer: Layer, value: Array) -> Array:
    """Return ``value``, and 1 where it is smaller, so that nothing is divided by 0.

    Shapes: value any -> the same.
    """
    return layer.xp.maximum(value, 1.0)
