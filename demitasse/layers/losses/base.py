"""Base class of losses, and the normalization of their sums.

Source: Caffe, ``src/caffe/layers/loss_layer.cpp`` and ``SoftmaxWithLossLayer::get_normalizer`` in
``softmax_loss_layer.cpp``; PRE_FIXED: R-FCN (daijifeng001/caffe-rfcn), the same file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from demitasse.backends.arrays import Array
from demitasse.backends.ops import loss_divisor
from demitasse.blob import Blob
from demitasse.io.proto import LossParameter
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import unsupported, wrong_shapes

FORKS = ("label_smoothing", "weight_by_label_freqs", "class_weighting")
"""Fields of ``loss_param`` from forks of Caffe, for SoftmaxWithLoss only."""


@dataclass(frozen=True)
class Targets:
    """Mask of the targets that count in a pass, None for all, and the divisor of their losses."""

    valid: Array | None
    normalizer: Array | float

    def masked(self, xp: Any, values: Array) -> Array:
        """Return the values of targets that count, or of their (outer, C, inner) scores; else 0."""
        if self.valid is None:
            return values
        every = self.valid.ndim == values.ndim
        valid = self.valid if every else xp.expand_dims(self.valid, axis=1)
        return xp.where(valid, values, 0.0)


@dataclass(frozen=True)
class Normalization:
    """Normalization and ignored label of ``loss_param``.

    Attributes:
        mode: "FULL", "VALID", "BATCH_SIZE", "NONE" or "PRE_FIXED".
        ignore_label: Target that does not count, or None.
        fixed: Divisor of PRE_FIXED.
    """

    mode: str
    ignore_label: int | None
    fixed: float = 1.0

    @classmethod
    def of(cls, param: LossParameter, default: str) -> Normalization:
        """Read a message: ``normalization``, else ``normalize``, else the default mode.

        The deprecated ``normalize`` is VALID if true, and BATCH_SIZE if false.
        """
        mode = default
        if param.HasField("normalization"):
            mode = LossParameter.NormalizationMode.Name(param.normalization)
        elif param.HasField("normalize"):
            mode = "VALID" if param.normalize else "BATCH_SIZE"
        ignored = param.ignore_label if param.HasField("ignore_label") else None
        return cls(mode, ignored, param.pre_fixed_normalizer)

    def valid(self, layer: Layer, blob: Blob, shape: tuple[int, ...]) -> Array | None:
        """Return a mask of the targets that count, by their whole parts; None for all."""
        if self.ignore_label is None:
            return None
        return layer.cast(layer.xp.reshape(blob.read(), shape), "int64") != self.ignore_label

    def targets(self, layer: Layer, blob: Blob, shape: tuple[int, ...]) -> Targets:
        """Return the targets that count and the normalizer, at least 1; losses have this shape."""
        valid = self.valid(layer, blob, shape)
        if valid is not None and self.mode == "VALID":
            count = layer.xp.sum(layer.cast(valid))
            return Targets(valid, layer.xp.maximum(count, 1.0))
        return Targets(valid, self.normalizer(shape[0], math.prod(shape)))

    def normalizer(self, batch: int, labels: int) -> float:
        """Return the normalizer if all labels count, at least 1; see ``loss_divisor``."""
        if self.mode == "PRE_FIXED":
            return max(1.0, self.fixed)
        return loss_divisor(self.mode, batch, labels, some_ignored=False) or 1.0


def refuse_weights(param: LossParameter, layer_type: str) -> None:
    """Raise ConfigError for fields of SoftmaxWithLoss that another loss would ignore."""
    for name in FORKS:
        if getattr(param, name):
            message = f"{layer_type} does not support loss_param.{name}; use SoftmaxWithLoss"
            raise unsupported(f"loss_param.{name}", message)


class LossLayer(Layer):
    """Base class of losses: a prediction, a target, and one number.

    A subclass computes losses, gradients and targets; the base class sums and normalizes. The top
    has loss weight 1, and the net adds a missing top.

    Shapes: bottoms (N, ...), (N, ...) -> top ().

    Raises:
        NetError: The top is a bottom.
        ShapeError: Prediction and target differ in batch size.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    auto_tops = True

    differentiable: Sequence[int] = (0,)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.refuse_in_place(bottom, top[:1])
        if not self.param.loss_weight:  # the default weight of a loss
            self.param.loss_weight.append(1.0)
            self.param.loss_weight.extend([0.0] * (len(top) - 1))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob in bottom[:2]:
            blob.canonical_axis(0)  # raises without a batch axis
        if bottom[0].shape[0] != bottom[1].shape[0]:
            raise wrong_shapes(self.type, "bottoms of one batch size", *bottom[:2])
        top[0].reshape(())

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        losses, targets = self.losses(bottom), self.targets(bottom)
        counted = targets.masked(self.xp, losses)
        top[0].write(self.xp.sum(counted) / targets.normalizer)
        self.write_each(counted, top)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not any(propagate_down):
            return
        targets = self.targets(bottom)
        scale = top[0].read_diff() / targets.normalizer
        # later gradients are not computed
        reached = [index for index in self.differentiable if any(propagate_down[index:])]
        for index, values in zip(reached, self.gradients(bottom), strict=False):
            if propagate_down[index]:
                gradient = targets.masked(self.xp, values) * scale
                bottom[index].write_diff(self.xp.reshape(gradient, bottom[index].shape))

    # -- defined by subclasses -----------------------------------------------------------------

    def losses(self, bottom: Blobs) -> Array:
        """Return the losses before the sum, like the targets if some do not count; or their sum."""
        raise NotImplementedError(type(self).__name__)

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        """Yield the gradient of the sum of losses for each differentiable bottom, of its count."""
        raise NotImplementedError(type(self).__name__)

    def write_each(self, losses: Array, top: Blobs) -> None:
        """Write the losses, 0 for targets that do not count, for layers with a top for them."""

    def targets(self, bottom: Blobs) -> Targets:
        """Return the targets that count and the normalizer; by default all, and the batch size."""
        return Targets(None, bottom[0].shape[0])
