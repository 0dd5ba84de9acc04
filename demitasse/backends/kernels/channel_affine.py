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
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    choose,
    chunk,
    clamp_max,
    fma,
    rectified,
)
from demitasse.backends.kernels.norm import (
    PLANE_SUMS,
    ImageLoopFields,
    Lanes,
    Plane,
    each_group,
    each_plane,
    each_vector,
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
def _gates_kernel(k: Kernel, f: GateFields, lanes: Lanes, *, adds: bool) -> None:
    def gate(plane: Plane) -> Vector:
        return plane.numbers(k, f.gates + plane.image * f.walk.channels * FLOAT)

    def write(here: Word, plane: Plane, gate: Vector) -> None:
        value = plane.load(k, f.x + here) * gate
        if adds:
            value = value + plane.load(k, f.added + here)
        plane.store(k, value, f.y + here)

    each_vector(k, f.walk, lanes, gate, write)


@GateGradientFields.kernel("gate_gradient")
def _gate_gradient_kernel(k: Kernel, f: GateGradientFields, lanes: Lanes, *, adds: bool) -> None:
    with each_plane(k, f.walk, lanes) as plane:
        row = plane.image * f.walk.channels * FLOAT
        gate = plane.numbers(k, f.gates + row)

        def step(
            at: Word, sums: Sequence[Vector], plane: Plane, gate: Vector = gate
        ) -> list[Vector]:
            for array in (f.x, f.dy):
                k.prefetch(array + plane.following + at, 2)
            here = plane.first + at
            x, dy = plane.load(k, f.x + here), plane.load(k, f.dy + here)
            plane.store(k, dy * gate, f.dx + here)
            if adds:
                plane.store(k, dy, f.added + here)
            return [fma(x, dy, sums[0])]

        [total] = summed(k, f.walk, plane, [k.constant(0.0)], step)
        plane.store_numbers(k, total, f.gate_gradients + row)


class Gates(TunedKernel):
    """y = x * gate + other, or without the other; products and sums are rounded by themselves.

    All images have one layout; ``adds`` if there is another image.
    """

    kernel = "gates"

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        self.tuning, lanes = tuning, Lanes.of(images, tuning.width)
        self._kernel = _gates_kernel(lanes.width, lanes, adds=adds)
        self._arguments = Arguments(GateFields.values(walk=image_loop_values(images, lanes)))

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
        self.tuning, lanes = tuning, Lanes.of(images, tuning.width)
        self._kernel = _gate_gradient_kernel(lanes.width, lanes, adds=adds)
        walk = image_loop_values(images, lanes)
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


class SlopeFields(Struct):
    """Images with a slope for each channel; the output has the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    y: Output
    """The output; may be the image."""
    slopes: Address


class SlopeGradientFields(Struct):
    """Gradients of the images and of the slopes; all images have the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    slopes: Address
    dy: Address
    dx: Output
    """Gradient of ``x``; may be the memory of ``dy``."""
    slope_gradients: Output


@SlopeFields.kernel("prelu")
def _slopes_kernel(k: Kernel, f: SlopeFields, lanes: Lanes) -> None:
    def write(here: Word, plane: Plane, slopes: Vector) -> None:
        plane.store(k, rectified(plane.load(k, f.x + here), slopes), f.y + here)

    each_vector(k, f.walk, lanes, lambda plane: plane.numbers(k, f.slopes), write)


@SlopeGradientFields.kernel("prelu_gradient")
def _slope_gradient_kernel(k: Kernel, f: SlopeGradientFields, lanes: Lanes) -> None:
    """Write the gradient of the images, and each plane's sum for its slopes."""
    zero = k.constant(0.0)
    with each_plane(k, f.walk, lanes) as plane:
        slopes = plane.numbers(k, f.slopes)

        def step(
            at: Word, sums: Sequence[Vector], plane: Plane, slopes: Vector = slopes
        ) -> list[Vector]:
            for array in (f.x, f.dy):
                k.prefetch(array + plane.following + at, 2)
            here = plane.first + at
            x, dy = plane.load(k, f.x + here), plane.load(k, f.dy + here)
            plane.store(k, dy * choose(x > zero, k.constant(1.0), slopes), f.dx + here)
            return [fma(dy, clamp_max(x, zero), sums[0])]

        [total] = summed(k, f.walk, plane, [zero], step)
        k.store(total, plane.sums)


@SlopeGradientFields.kernel("prelu_gradient_sums")
def _slope_sums_kernel(k: Kernel, f: SlopeGradientFields, lanes: Lanes) -> None:
    step = PLANE_SUMS * k.vector_bytes
    with each_group(k, f.walk, lanes) as plane:
        with k.loop(f.walk.images, vectors=[k.constant(0.0)]) as image:
            image.vectors = [image.vectors[0] + k.load(plane.all_sums + image.i * step)]
        plane.store_numbers(k, image.vectors[0], f.slope_gradients)


class Slopes(TunedKernel):
    """y = max(x, 0) + slope * min(x, 0), with a slope for each channel; NaN stays."""

    kernel = "prelu"

    def __init__(self, images: Images, tuning: Tuning) -> None:
        self.tuning, lanes = tuning, Lanes.of(images, tuning.width)
        self._kernel = _slopes_kernel(lanes.width, lanes)
        self._arguments = Arguments(SlopeFields.values(walk=image_loop_values(images, lanes)))

    def __call__(self, x: np.ndarray, slopes: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, which may be ``x``. Shape of slopes: (C,)."""
        each = {"x": x, "slopes": slopes, "y": y, "walk.sums": None}
        self._arguments.run(self._kernel, self.tuning.threads, each)


class SlopeGradient(TunedKernel):
    """Gradients of :class:`Slopes`: dx = dy * (1 or slope), dslope = sum(dy * min(x, 0)).

    Attributes:
        sums_size: Elements of scratch memory for a call.
    """

    kernel = "prelu gradient"

    def __init__(self, images: Images, tuning: Tuning) -> None:
        self.tuning, lanes = tuning, Lanes.of(images, tuning.width)
        self.sums_size = lanes.sums_size(images)
        self._kernels = (
            _slope_gradient_kernel(lanes.width, lanes), _slope_sums_kernel(lanes.width, lanes),
        )  # fmt: skip
        walk = image_loop_values(images, lanes)
        self._arguments = Arguments(SlopeGradientFields.values(walk=walk))

    def __call__(
        self, x: np.ndarray, slopes: np.ndarray, dy: np.ndarray, dx: np.ndarray,
        slope_gradients: np.ndarray, sums: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of ``x`` and of the slopes, (C,)."""
        each = {
            "x": x, "slopes": slopes, "dy": dy, "dx": dx, "slope_gradients": slope_gradients,
            "walk.sums": sums,
        }  # fmt: skip
        self._arguments.run(self._kernels, self.tuning.threads, each)
