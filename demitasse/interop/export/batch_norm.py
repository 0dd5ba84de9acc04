"""What a BatchNorm does in tests: one with the Scale behind it, where there is one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.interop.export.walk import Step
from demitasse.io.weights.running_averages import running_averages
from demitasse.layers.batch_norm import BatchNorm

__all__ = ["Normalisation", "normalisation"]


@dataclass(frozen=True)
class Normalisation:
    """The numbers of a BatchNorm. Shapes: (C,).

    Attributes:
        mean: Running average of the mean.
        variance: Running average of the variance.
        affine: Whether something comes behind the division.
        scale: What that multiplies by; else 1.
        shift: What it adds; else 0.
    """

    mean: np.ndarray
    variance: np.ndarray
    affine: bool
    scale: np.ndarray
    shift: np.ndarray


def normalisation(step: Step) -> Normalisation:
    """Return the numbers of a BatchNorm and of its Scale."""
    layer = step.of(BatchNorm)
    blobs, count = [blob.cpu_data() for blob in layer.blobs], layer.channels
    scale, shift = np.ones(count, np.float32), np.zeros(count, np.float32)
    if layer.scaled:
        scale, shift = blobs[3], blobs[4]
    if step.scale is not None:
        more = [blob.cpu_data().reshape(count) for blob in step.scale.blobs]
        scale, shift = scale * more[0], shift * more[0]
        if len(more) > 1:
            shift = shift + more[1]
    affine = layer.scaled or step.scale is not None
    return Normalisation(*running_averages(blobs[:3]), affine, scale, shift)
