"""Normalisations: kernels of a Step, and their calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import norm
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.arguments import Argument, GradArg, InputArg, OutputArg, ParamArg
from demitasse.backends.onednn.jit_adapters.calls import (
    KernelCall,
    images_of,
    in_padded_blocks,
)
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.constants import Normalization as NormFlags
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined, Operand, Operands

if TYPE_CHECKING:
    from demitasse.backends.kernels.channel_affine import GateGradient, Gates
    from demitasse.backends.kernels.norm import Normalization, PlaneNorm


@dataclass(frozen=True)
class NormParts:
    """The operations of one primitive: a BatchNorm, a Scale, or both, and a ReLU.

    Attributes:
        shape: Of the data, (N, C, *spatial).
        at: The blobs of the first operation.
        norm: The BatchNorm and its blobs, or None.
        scale: The Scale and its blobs, or None.
        relu: Whether a ReLU follows.
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

    @property
    def flags(self) -> int:
        """The flags of the primitive."""
        flags = 0 if self.uses_batch_stats else NormFlags.GLOBAL_STATISTICS
        if self.scale:
            flags |= NormFlags.SCALE
            flags |= NormFlags.SHIFT if self.scale[0].bias else 0
        return flags | (NormFlags.RELU if self.relu else 0)


def stored_statistics(blobs: Sequence[Operand]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance from a BatchNorm's three blobs. Shapes: (C,), (C,)."""
    mean, variance, weight = (blob.data_memory.cpu_data()[: blob.count] for blob in blobs)
    factor = np.float32(0.0 if weight[0] == 0 else 1.0 / weight[0])
    return mean * factor, variance * factor


def decline_other_scales(op: ops.Scale, at: Operands, shape: ops.Shape) -> None:
    """Leave to others a Scale that has not one learned factor for each channel of ``shape``.

    Raises:
        Declined: It has not.
    """
    if len(at.bottom) > 1:
        message = "factors from a second bottom; oneDNN takes learned ones"
        raise Declined(message)
    channels = (*shape[:2], math.prod(shape[2:]))
    if len(shape) < 2 or (op.outer, op.dim, op.inner) != channels:
        message = "factors over other axes; oneDNN takes one for each channel"
        raise Declined(message)


def norm_kernel(engine: Engine, parts: NormParts, layout: Layout) -> Normalization | None:
    """Return what normalises by the batch's statistics in a layout; None where it is not for us.

    Args:
        engine: The engine.
        parts: What is to be computed.
        layout: Of input and output.
    """
    tuning = engine.tuning.as_set(wanted())
    off = "norm" in tuning.without
    if off or parts.norm is None or not parts.uses_batch_stats or not tuning.width:
        return None
    images = images_of(layout)
    if images is None:
        return None
    if not (norm.takes(images, tuning.width) or norm.has_rest(images, tuning.width)):
        return None
    from demitasse.backends.kernels.norm import Normalization

    return Normalization(images, parts.norm[0].eps, tuning, relu=parts.relu)


def plane_norm_kernel(engine: Engine, eps: float, layout: Layout) -> PlaneNorm | None:
    """Return what normalises each channel of each image by itself; perhaps None.

    Args:
        engine: The engine.
        eps: What is added to deviations.
        layout: Of input and output.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout) or in_padded_blocks(engine, layout)
    if not tuning.width or images is None:
        return None
    if not norm.takes(images, tuning.width):
        return None
    from demitasse.backends.kernels.norm import PlaneNorm

    return PlaneNorm(images, eps, tuning)


def gate_kernels(
    engine: Engine, layout: Layout, *, adds: bool, hands_on: bool
) -> tuple[Gates, GateGradient] | None:
    """Return what multiplies channels with gates in a layout, and the gradients; perhaps None.

    Args:
        engine: The engine.
        layout: Of the images and their gradients.
        adds: Whether something is added to the product.
        hands_on: Whether the gradient of that is to be written.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout)
    if not tuning.width or images is None:
        return None
    if not (norm.takes(images, tuning.width) or norm.has_rest(images, tuning.width)):
        return None
    from demitasse.backends.kernels.channel_affine import GateGradient, Gates

    return Gates(images, tuning, adds=adds), GateGradient(images, tuning, adds=hands_on)


class _Source(Protocol):
    """Whoever has an array for the next call."""

    def array(self) -> np.ndarray:
        """Return it."""


class _Fixed:
    """An array of our own where there is no parameter.

    Args:
        count: Its elements.
        number: What each of them is.
    """

    def __init__(self, count: int, number: float = 0.0) -> None:
        self._array = aligned(count)
        self._array[...] = number

    def array(self) -> np.ndarray:
        """Return it."""
        return self._array


class NormCall(KernelCall):
    """BatchNorm, and Scale and ReLU where they follow.

    Args:
        engine: The engine.
        kernel: The kernel.
        source: What is read.
        target: What is written, in the same layout.
        parameters: Factors and offsets of the channels, those of them that there are.
    """

    def __init__(
        self,
        engine: Engine,
        kernel: Normalization,
        source: InputArg,
        target: OutputArg,
        parameters: Sequence[InputArg],
    ) -> None:
        channels = kernel.mean.shape[0]
        self.kernel, self._source, self._target = kernel, source, target
        absent = _Fixed(channels, 1.0), _Fixed(channels)
        self.parameters: tuple[_Source, _Source] = _filled(parameters, absent)
        kept = kernel.mean.nbytes + kernel.variance.nbytes + kernel.inverse.nbytes
        super().__init__(engine, (source, *parameters, target), kernel.code, kept)

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
        forward: That call.
        source: Its input; None where it is named before each run.
        dy: The gradient of its output.
        dx: That of its input; None where it is not wanted.
        gradients: Those of the factors and of the offsets; None for each that is not wanted.
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
        from demitasse.backends.kernels.norm import NormalizationGradient

        self._kernel = NormalizationGradient(forward.kernel)
        self.forward, self.source, self.dy, self._behind = forward, source, dy, behind
        self._both = self._kernel
        if behind is not None:
            self._both = NormalizationGradient(forward.kernel, behind=True)
        channels, size = forward.kernel.mean.shape[0], dy.layout.size
        wanted = [argument for argument in gradients if argument is not None]
        self._gradients: tuple[_Source, _Source] = _filled(
            gradients, (_Fixed(channels), _Fixed(channels))
        )
        self._dx: _Source = _Fixed(size) if dx is None else dx
        self._wanted, arguments = (
            wanted,
            [argument for argument in (source, dy, dx) if argument is not None],
        )
        everything: list[Argument] = [*arguments, *wanted, *([] if behind is None else [behind])]
        kept = 0 if dx is not None else 4 * size
        super().__init__(forward.engine, tuple(everything), self._kernel.code, kept)

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
    given: Sequence[_Source | None], absent: tuple[_Source, _Source]
) -> tuple[_Source, _Source]:
    """Return the given sources; absent sources fill the rest."""
    first, second = (one or other for one, other in zip([*given, None, None], absent, strict=False))
    return first, second


class PlaneCall(KernelCall):
    """A deconvolution of one group over two axes without a bias, in C order.

    Args:
        engine: The engine.
        op: The deconvolution.
        arguments: Bottom, weight and top, in C order.
        tuning: The kernel's vectors and threads.

    Raises:
        Declined: The library has no product for it.
    """

    def __init__(
        self,
        engine: Engine,
        op: ops.Deconv,
        arguments: tuple[InputArg, ParamArg, OutputArg],
        tuning: Tuning,
    ) -> None:
        images, channels, *bottom = op.bottom
        planes, top = op.top[1], op.top[2:]
        pixels, window = math.prod(bottom), math.prod(op.kernel)
        x = engine.strided((pixels, channels), (1, pixels))
        w = engine.strided((channels, window), (planes * window, 1))
        y = engine.plain((pixels, window))
        found = engine.describe("matmul", x, w, None, y.handle, engine.attributes)
        uses = (Arg.SRC, x), (Arg.WEIGHTS, w), (Arg.DST, y.handle)
        self._product = found.primitive(engine.stream, uses)
        from demitasse.backends.kernels.col2im import Col2Im

        self._kernel = Col2Im((1, *bottom), (1, *top, 1), op.kernel, op.stride, op.pad, tuning)
        self._counts, self._size = (images, planes), y.size
        self._steps = channels * pixels, window, math.prod(top)
        super().__init__(
            engine, arguments, f"{found.implementation}, overlaps llvm:{tuning.instructions}"
        )

    def __call__(self) -> None:
        source, weights, target = (argument.array() for argument in self.arguments)
        [windows] = self.engine.workspaces(self._size)
        (images, planes), (image_step, window, plane_step) = self._counts, self._steps
        product = self._product
        product.bind(product.place(Arg.DST), windows)
        for plane in range(planes):
            product.bind(product.place(Arg.WEIGHTS), weights[plane * window :])
            for image in range(images):
                product.bind(product.place(Arg.SRC), source[image * image_step :])
                product.run()
                self._kernel(windows, target[(image * planes + plane) * plane_step :])
