"""Which targets of a batch count, and what the sum of their losses is divided by.

Source: Caffe, ``SoftmaxWithLossLayer::get_normalizer`` in
``src/caffe/layers/softmax_loss_layer.cpp``; PRE_FIXED: R-FCN (daijifeng001/caffe-rfcn), the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from demitasse.backends.arrays import Array
from demitasse.backends.losses import loss_divisor
from demitasse.blob import Blob
from demitasse.io.proto import LossParameter
from demitasse.layers.base import Layer
from demitasse.layers.checks import unsupported
from demitasse.layers.helpers.floors import at_least_one

__all__ = ["Normalization", "Targets", "refuse_weights"]

# names by number, so that a descriptor can carry the name
MODES = dict(
    zip(
        LossParameter.NormalizationMode.values(),
        LossParameter.NormalizationMode.keys(),
        strict=True,
    )
)

FORKS = ("label_smoothing", "weight_by_label_freqs", "class_weighting")
"""Fields of ``loss_param`` that Caffe does not have, and its forks have in one layer."""


@dataclass(frozen=True)
class Targets:
    """The targets of one pass.

    Attributes:
        valid: Which of them count, bool, of any shape; None for all.
        divisor: What the sum of their losses is divided by: a number, or a 0-d array.
    """

    valid: Array | None
    divisor: Array | float

    def counted(self, xp: Any, values: Array) -> Array:
        """Return what belongs to targets that count, and 0 for the others.

        Shapes: values like the targets, or (outer, C, inner) for targets (outer, inner) -> the
        same.
        """
        if self.valid is None:
            return values
        every = self.valid.ndim == values.ndim
        valid = self.valid if every else xp.expand_dims(self.valid, axis=1)
        return xp.where(valid, values, 0.0)


@dataclass(frozen=True)
class Normalization:
    """What ``loss_param`` says of targets.

    Attributes:
        mode: "FULL", "VALID", "BATCH_SIZE", "NONE" or "PRE_FIXED".
        ignore_label: The target that does not count, or None.
        fixed: What PRE_FIXED divides by.
    """

    mode: str
    ignore_label: int | None
    fixed: float = 1.0

    @classmethod
    def of(cls, param: LossParameter, default: str) -> Normalization:
        """Read a message.

        Args:
            param: ``normalization`` wins; else ``normalize`` (deprecated): true is VALID, false
                BATCH_SIZE.
            default: The mode when it says nothing.
        """
        mode = default
        if param.HasField("normalization"):
            mode = MODES[param.normalization]
        elif param.HasField("normalize"):
            mode = "VALID" if param.normalize else "BATCH_SIZE"
        ignored = param.ignore_label if param.HasField("ignore_label") else None
        return cls(mode, ignored, param.pre_fixed_normalizer)

    def valid(self, layer: Layer, blob: Blob, shape: tuple[int, ...]) -> Array | None:
        """Return which targets count, by their whole parts; None for all.

        Shapes: blob any -> ``shape``, bool.
        """
        if self.ignore_label is None:
            return None
        return layer.cast(layer.xp.reshape(blob.read(), shape), "int64") != self.ignore_label

    def targets(self, layer: Layer, blob: Blob, shape: tuple[int, ...]) -> Targets:
        """Return which targets count and the divisor, at least 1.

        Args:
            layer: The loss layer.
            blob: The targets.
            shape: The shape of the losses, whose first axis is the batch: everything before the
                class axis.
        """
        valid = self.valid(layer, blob, shape)
        if valid is not None and self.mode == "VALID":
            return Targets(valid, at_least_one(layer, layer.xp.sum(layer.cast(valid))))
        return Targets(valid, self.divisor(shape[0], math.prod(shape)))

    def divisor(self, batch: int, labels: int) -> float:
        """Return what the sum of a loss is divided by where all labels count, at least 1.

        Args:
            batch: Size of the batch: product of the axes before the class axis.
            labels: Number of labels.
        """
        if self.mode == "PRE_FIXED":
            return max(1.0, self.fixed)
        return loss_divisor(self.mode, batch, labels, some_ignored=False) or 1.0


def refuse_weights(param: LossParameter, layer_type: str) -> None:
    """Refuse fields that would change the loss, were they not passed over.

    Raises:
        ConfigError: The message weighs classes or smooths labels.
    """
    for name in FORKS:
        if getattr(param, name):
            message = f"{layer_type} does not support loss_param.{name}; use SoftmaxWithLoss"
            raise unsupported(f"loss_param.{name}", message)
