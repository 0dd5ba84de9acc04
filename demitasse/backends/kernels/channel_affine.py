"""Factors and offsets of channels: y = x * a + b, and channel scales of each image.

A normalisation with fixed statistics has this form. The vectors are channels.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.backends.kernels.image_fields import BlockFields, BlockOutputFields
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, chunk, fma, rectified
from demitasse.backends.kernels.norm import (
    ImageLoopFields,
    each_plane,
    image_loop_values,
    summed,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning


class FactorFields(Struct):
    """Images with a factor and an offset for each channel."""

    x: BlockFields
    y: BlockOutputFields
    """The output; may be the image in the same layout."""
    factors: Address
    offsets: Address


@FactorFields.kernel("channel_factors")
def _kernel(k: Kernel, f: FactorFields) -> None:
    x, y = f.x, f.y
    none = k.constant(0.0)  # of what is below 0
    block_bytes = x.block_channels * FLOAT
    begin, end = chunk(x.images * x.blocks * x.rows, *k.thread())
    with k.loop(end, begin) as line:
        row, block = line.i % x.rows, line.i // x.rows % x.blocks
        image = line.i // x.rows // x.blocks
        first = image * x.image_stride + block * x.block_stride + row * x.row_stride
        y_first = image * y.image_stride + block * y.block_stride + row * y.row_stride
        factors, offsets = f.factors + block * block_bytes, f.offsets + block * block_bytes
        with k.loop(x.columns) as column:
            source = x.at + (first + column.i * x.column_stride) * FLOAT
            target = y.at + (y_first + column.i * y.column_stride) * FLOAT
            with k.loop(block_bytes, 0, k.vector_bytes) as place:
                factor, offset = k.load(factors + place.i), k.load(offsets + place.i)
                value = fma(k.load(source + place.i), factor, offset)
                k.store(rectified(value, none), target + place.i)


class ChannelFactors(TunedKernel):
    """y = max(x * factor + offset, 0), channel by channel; NaN stays.

    The layouts of input and output have the same blocks of channels. Factors and offsets, (C,), are
    read in each call.
    """

    kernel = "factors"

    def __init__(
        self, images: tuple[Images, Images], factors: np.ndarray, offsets: np.ndarray,
        tuning: Tuning,
    ) -> None:  # fmt: skip
        x, y = images
        same = (x.shape, x.block) == (y.shape, y.block)
        need_layout(x.has_whole_vectors(tuning.width) and same, x, y)
        self.tuning, self._kernel = tuning, _kernel(tuning.width)
        self._arguments = Arguments(
            FactorFields.values(
                x=BlockFields.of(x), y=BlockOutputFields.of(y), factors=factors, offsets=offsets
            )
        )

    def __call__(self, source: np.ndarray, target: np.ndarray) -> None:
        """Write ``target``; both are the memories that ``images`` describes."""
        self._arguments.run(self._kernel, self.tuning.threads, {"x.at": source, "y.at": target})


class GateFields(Struct):
    """Product of images and gates; all images have the layout of ``x``, and may be the same."""

    walk: ImageLoopFields
    x: Address
    gates: Address
    added: OptionalAddress
    """Images that are added to the product."""
    y: Output


class GateGradientFields(Struct):
    """Gradients of the product; all images have the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    gates: Address
    dy: Address
    dx: Output
    """Gradient of ``x``; may be the memory of ``dy``."""
    added: OptionalAddress
    """Gradient of the images that were added."""
    gate_gradients: Output


@GateFields.kernel("gates")
def _gates_kernel(k: Kernel, f: GateFields, *, adds: bool, rest: bool) -> None:
    """Write the kernel; with ``rest``, the last vector of channels is partial."""
    stride, row_bytes = f.walk.pixel_stride * FLOAT, f.walk.channels * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        gate = plane.load(k, f.gates + plane.image * row_bytes + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            here = plane.first + pixel.i * stride
            value = plane.load(k, f.x + here) * gate
            if adds:
                value = value + plane.load(k, f.added + here)
            plane.store(k, value, f.y + here)


@GateGradientFields.kernel("gate_gradient")
def _gradient_kernel(k: Kernel, f: GateGradientFields, *, adds: bool, rest: bool) -> None:
    stride, row_bytes = f.walk.pixel_stride * FLOAT, f.walk.channels * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        channels = plane.image * row_bytes + plane.channels
        gate = plane.load(k, f.gates + channels)

        def step(at: Word, sums: Sequence[Vector]) -> list[Vector]:
            for array in (f.x, f.dy):
                k.prefetch(array + plane.following + at, 2)
            here = plane.first + at
            x, dy = plane.load(k, f.x + here), plane.load(k, f.dy + here)
            plane.store(k, dy * gate, f.dx + here)
            if adds:
                plane.store(k, dy, f.added + here)
            return [fma(x, dy, sums[0])]

        [total] = summed(k, f.walk.pixels, stride, [k.constant(0.0)], step)
        plane.store(k, total, f.gate_gradients + channels)


class Gates(TunedKernel):
    """y = x * gate + other, or without the other; products and sums are rounded by themselves.

    All images have one layout; ``adds`` if there is another image.
    """

    kernel = "gates"

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        self.tuning, width = tuning, tuning.width
        self._kernel = _gates_kernel(width, adds=adds, rest=images.block % width > 0)
        self._arguments = Arguments(GateFields.values(walk=image_loop_values(images, width)))

    def __call__(
        self, x: np.ndarray, gates: np.ndarray, added: np.ndarray | None, y: np.ndarray
    ) -> None:
        """Write ``y``. Shape of gates: (N, C)."""
        each = {"x": x, "gates": gates, "added": added, "y": y, "walk.sums": None}
        self._arguments.run(self._kernel, self.tuning.threads, each)


class GateGradient(TunedKernel):
    """Gradients of y = x * gate + other: dx = dy * gate, dgate = sum(x * dy), dother = dy.

    The arguments are those of :class:`Gates`.
    """

    kernel = "gates"

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        self.tuning, width = tuning, tuning.width
        self._kernel = _gradient_kernel(width, adds=adds, rest=images.block % width > 0)
        walk = image_loop_values(images, width)
        self._arguments = Arguments(GateGradientFields.values(walk=walk))

    def __call__(
        self, x: np.ndarray, gates: np.ndarray, dy: np.ndarray,
        gradients: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    ) -> None:  # fmt: skip
        """Write the gradients of ``x``, of the gates, (N, C), and of the images that were added."""
        dx, gate_gradients, added = gradients
        each = {
            "x": x, "gates": gates, "dy": dy, "dx": dx, "added": added,
            "gate_gradients": gate_gradients, "walk.sums": None,
        }  # fmt: skip
        self._arguments.run(self._kernel, self.tuning.threads, each)
