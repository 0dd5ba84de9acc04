"""Normalizers of summed losses, for layers and for all backends.

Source: Caffe, ``SoftmaxWithLossLayer::get_normalizer`` in
``src/caffe/layers/softmax_loss_layer.cpp``.
"""

from __future__ import annotations


def loss_divisor(
    normalization: str, batch: int, labels: int, *, some_ignored: bool
) -> float | None:
    """Return what the sum of a loss over all labels is divided by.

    Args:
        normalization: "FULL", "VALID", "BATCH_SIZE" or "NONE".
        batch: Size of the batch: product of the axes before the class axis.
        labels: Number of labels.
        some_ignored: Whether labels may be ignored, so that only a pass knows how many count.

    Returns:
        The divisor, at least 1; None for the number of labels that count, or 1 if none do.
    """
    match normalization:
        case "VALID" if some_ignored:
            return None
        case "FULL" | "VALID":
            return max(1.0, float(labels))
        case "BATCH_SIZE":
            return max(1.0, float(batch))
        case _:
            return 1.0
