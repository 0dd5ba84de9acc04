"""Normalisation of each channel of each image by its own mean and deviation, in one kernel.

A plane is read three times: for its statistics as in training, and to be normalised.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    EACH_CALL,
    Address,
    Arguments,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    fma,
    minimum,
    raised,
    root,
)
from demitasse.backends.kernels.norm.walk import (
    FIRST_PIXELS,
    WalkFields,
    counts,
    each_plane,
    summed,
    walk_values,
)
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["PlaneNorm"]


class PlaneFields(Struct):
    """Planes that are normalised one by one."""

    walk: WalkFields
    """They."""
    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first output, which lies as the image does; it may be the same."""
    deviations: Output
    """Address of what each channel of each image is divided by, which is written."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"plane_norm{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = PlaneFields.read(k)
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    some = minimum(f.walk.pixels, FIRST_PIXELS)
    zero, row_bytes = k.constant(0.0), f.walk.groups * k.vector_bytes
    with each_plane(k, f.walk) as plane:
        first = f.x + plane.first
        [total] = summed(k, some, stride, [zero], lambda at, sums: [sums[0] + k.load(first + at)])
        about = total * numbers.first_pixels

        def add(at: Word, sums: Any) -> list[Vector]:
            away = k.load(first + at) - about
            return [sums[0] + away, fma(away, away, sums[1])]

        away, squares = summed(k, f.walk.pixels, stride, [zero, zero], add)
        by = away * numbers.each_pixel
        variance = raised(fma(-away, by, squares) * numbers.each_pixel, zero)
        mean, deviation = about + by, root(variance) + numbers.eps
        k.store(deviation, f.deviations + plane.image * row_bytes + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            at = plane.first + pixel.i * stride
            k.store((k.load(f.x + at) - mean) / deviation, f.y + at)
    k.done()


class PlaneNorm:
    """y = (x - mean) / (sqrt(variance) + eps), of each channel of each image; NaN stays.

    Args:
        images: Where the elements of input and output lie.
        eps: What is added to deviations.
        tuning: The kernel's vectors and threads.

    Attributes:
        deviations: What was divided by last. Shape: (N, C).

    Raises:
        ValueError: Channels fill no whole vectors, or pixels do not follow each other.
    """

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _kernel(tuning.width)
        self.deviations = aligned(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
        fields = PlaneFields.values(
            walk=walk_values(images, tuning.width, eps),
            x=EACH_CALL,
            y=EACH_CALL,
            deviations=self.deviations,
        )
        self._arguments = Arguments(fields)

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, which may be ``x``; both are memories that ``images`` describes."""
        each: dict[str, np.ndarray | None] = {"x": x, "y": y, "walk.sums": None}
        self._arguments.run(self._kernel, self.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"plane norm llvm:{self.tuning.instructions}"
