"""Division of pixels by the length of their channels, and factors of the channels."""

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel, each_vector
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    fma,
    horizontal_sum,
    root,
)
from demitasse.backends.kernels.tuning import Tuning


class UnitLengthFields(Struct):
    """Pixels with all their channels, in the input and in the output alike."""

    x: Address
    y: Output
    factors: Address
    """One for each channel."""
    eps: Address
    pixels: Word
    pixel_bytes: Word
    """Bytes from one pixel to the next."""
    channels: Word


@UnitLengthFields.kernel("unit_length")
def _kernel(k: Kernel, f: UnitLengthFields) -> None:
    with k.parallel_loop(f.pixels) as [pixel]:
        start = pixel * f.pixel_bytes

        def add(at: Word, some: Condition | None, total: Vector) -> list[Vector]:
            value = k.load(f.x + start + at, some)
            return [fma(value, value, total)]

        [squares] = each_vector(k, f.channels, add, vectors=[k.constant(0.0)])
        length = root(horizontal_sum(squares) + k.broadcast(f.eps))

        def write(at: Word, some: Condition | None) -> None:
            unit = k.load(f.x + start + at, some) / length
            k.store(unit * k.load(f.factors + at, some), f.y + start + at, some)

        each_vector(k, f.channels, write)


def takes(images: Images, width: int) -> bool:
    """Return whether pixels follow each other, with their channels side by side."""
    return width > 0 and images.is_rows


class UnitLength(BoundKernel):
    """y = factor * x / sqrt(sum of x^2 + eps), the sum over the channels of a pixel.

    A call takes x, y, which has the layout of x and may be x, and factors, one for each channel.
    """

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        n, channels, rows, columns = images.shape
        values = UnitLengthFields.values(
            eps=np.array([eps], np.float32),
            pixels=n * rows * columns,
            pixel_bytes=images.column_stride * FLOAT,
            channels=channels,
        )
        super().__init__("normalize", _kernel(tuning.width), values, tuning)
