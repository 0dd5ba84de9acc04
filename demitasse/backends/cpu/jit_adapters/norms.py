"""Normalisations: kernels of a Step, and their calls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Argument, BufferArg, GradArg, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    IMAGE_AXES,
    KernelCall,
    folded_images,
    kernel_tuning,
)
from demitasse.backends.cpu.jit_adapters.unary import suitable_images
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels import norm
from demitasse.backends.kernels.images import Images
from demitasse.backends.step import Declined, Operand, Operands, decline_if


@dataclass(frozen=True)
class NormParts:
    """The operations of one kernel: a BatchNorm, a Scale, or both, and a ReLU.

    Shape of the data: (N, C, *spatial). The blobs ``at`` are those of the first operation.
    """

    shape: ops.Shape
    at: Operands
    norm: tuple[ops.BatchNorm, Operands] | None = None
    scale: tuple[ops.Scale, Operands] | None = None
    relu: bool = False

    @property
    def uses_batch_stats(self) -> bool:
        """True if mean and variance are the batch's, not given."""
        return self.norm is not None and not self.norm[0].use_global_stats


def stored_statistics(blobs: Sequence[Operand]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance from a BatchNorm's three blobs. Shapes: (C,), (C,)."""
    mean, variance, weight = (blob.data_memory.cpu_data()[: blob.count] for blob in blobs)
    factor = np.float32(0.0 if weight[0] == 0 else 1.0 / weight[0])
    return mean * factor, variance * factor


def decline_other_scales(op: ops.Scale, at: Operands, shape: ops.Shape) -> None:
    """Leave to others a Scale that has not one learned factor for each channel of ``shape``."""
    decline_if(len(at.bottom) > 1, "factors from a second bottom; kernels take learned ones")
    channels = (*shape[:2], math.prod(shape[2:]))
    message = "factors over other axes; kernels take one for each channel"
    decline_if(len(shape) < 2 or (op.outer, op.dim, op.inner) != channels, message)


def norm_kernel(engine: Engine, parts: NormParts, layout: Layout) -> norm.Normalization:
    """Return a kernel that normalises, with the numbers of a Scale alone."""
    tuning = kernel_tuning(engine, "norm")
    images = plane_images(layout, tuning.width)
    n, c, *size = images.shape
    if size == [1, 1] and images.block == c:  # all images as pixels of one
        images = Images((1, c, 1, n), n * c, n * c, images.image_stride, c)
    stored, eps = not parts.uses_batch_stats, parts.norm[0].eps if parts.norm else 0.0
    kernel = norm.Normalization(images, eps, tuning, relu=parts.relu, stored=stored)
    if parts.norm is None:
        kernel.mean[...], kernel.inverse[...] = 0.0, 1.0
    return kernel


def plane_images(layout: Layout, width: int) -> Images:
    """Return a layout of (N, C, *spatial) as images for kernels that go through planes.

    Raises:
        Declined: Channels lie neither side by side nor in blocks nor in C order.
    """
    n, c, *spatial = layout.shape
    pixels, images = math.prod(spatial), None
    if layout.plain:
        images = Images.in_blocks((n, c, 1, pixels), c if pixels == 1 and c >= width else 1)
    elif spatial:
        images = folded_images(layout)
    if images is None or images.shape[1] != c or not norm.takes(images, width):
        message = f"channels of {layout.shape} that fill no vectors of {width} here"
        raise Declined(message)
    return images


def plane_norm_kernel(engine: Engine, eps: float, layout: Layout) -> norm.PlaneNorm:
    """Return a kernel that normalises each channel of each image by itself."""
    tuning = kernel_tuning(engine)
    images = folded_images(layout)  # blocks may be filled up
    if images is None or len(layout.shape) != IMAGE_AXES or not norm.takes(images, tuning.width):
        images = suitable_images(layout, norm.takes, tuning.width)
    return norm.PlaneNorm(images, eps, tuning)


def _fixed(count: int, number: float = 0.0) -> BufferArg:
    """Return an argument of ``count`` equal numbers, in place of an absent parameter."""
    array = aligned(count)
    array[...] = number
    return BufferArg(0, layouts.plain((count,)), array)


class NormCall(KernelCall):
    """BatchNorm, and Scale and ReLU where they follow."""

    def __init__(
        self,
        engine: Engine,
        kernel: norm.Normalization,
        source: InputArg,
        target: OutputArg,
        parameters: Sequence[InputArg],
    ) -> None:
        channels = kernel.mean.shape[0]
        self.kernel, self._source, self._target = kernel, source, target
        absent = _fixed(channels, 1.0), _fixed(channels)
        self.parameters = _filled(parameters, absent)
        kept = kernel.mean.nbytes + kernel.variance.nbytes + kernel.inverse.nbytes
        super().__init__(engine, (source, *parameters, target), kernel.code, held=kept)

    def __call__(self) -> None:
        source = self._source.array()
        self.run_on(source, self._target.array())

    def run_on(self, source: np.ndarray, target: np.ndarray) -> None:
        """Read and write these arrays."""
        factors, offsets = (row.array() for row in self.parameters)
        [sums] = self.engine.workspaces(self.kernel.sums_size)
        self.kernel(source, target, factors, offsets, sums)


class NormGradientCall(KernelCall):
    """The gradients of what a call has computed.

    Args:
        source: Its input; None where it is named before each run.
        behind: The gradient behind the norm, which takes the place of ``dy``; None in place, where
            ``dx`` does. It is written where somebody may look at it.
    """

    def __init__(
        self,
        forward: NormCall,
        source: InputArg | None,
        dy: InputArg,
        dx: OutputArg | None,
        gradients: Sequence[GradArg | None],
        behind: OutputArg | None = None,
    ) -> None:
        wanted = [argument for argument in gradients if argument is not None]
        self._kernel = norm.NormalizationGradient(forward.kernel, learns=bool(wanted))
        self.forward, self.source, self.dy, self._behind = forward, source, dy, behind
        self._both = self._kernel
        if behind is not None:
            self._both = norm.NormalizationGradient(
                forward.kernel, behind=True, learns=bool(wanted)
            )
        engine, channels, size = forward.engine, forward.kernel.mean.shape[0], dy.layout.size
        absent = _fixed(channels), _fixed(channels)
        self._gradients = _filled(gradients, absent)
        self._dx: Argument = _fixed(size) if dx is None else dx
        self._wanted = wanted
        present = [one for one in (source, dy, dx, *wanted, behind) if one is not None]
        kept = 0 if dx is not None else 4 * size
        super().__init__(engine, present, self._kernel.code, held=kept)

    def __call__(self) -> None:
        if self.source is not None:
            self.run_on(self.source.array())

    def run_on(self, source: np.ndarray) -> None:
        """Read the forward call's input from this array."""
        factors, offsets = (row.array() for row in self.forward.parameters)
        of_factors, of_offsets = (row.array() for row in self._gradients)
        rows = (factors, offsets), (of_factors, of_offsets)
        dy, dx = self.dy.array(), self._dx.array()
        [sums] = self.engine.workspaces(self.forward.kernel.sums_size)
        if self._behind is not None and self._behind.memory.persistent:
            self._both((source, dy, dx), *rows, sums, self._behind.array())
        else:
            self._kernel((source, dy, dx), *rows, sums)
        for argument in self._wanted:
            argument.done()


def _filled(
    given: Sequence[Argument | None], absent: tuple[Argument, Argument]
) -> tuple[Argument, Argument]:
    """Return the given arguments; absent ones fill the rest."""
    first, second = (one or other for one, other in zip([*given, None, None], absent, strict=False))
    return first, second
