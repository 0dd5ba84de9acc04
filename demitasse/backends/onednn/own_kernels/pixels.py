"""Kernels that convolve pixels together with what comes before or after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.epilogue import Rectifier
from demitasse.backends.kernels.pointwise import parts_of
from demitasse.backends.kernels.separable import blocks_of
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.images import fitting, images_of
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from demitasse.backends.onednn.own_kernels.map_calls import OffsetCall
    from demitasse.backends.onednn.steps.conv_operands import Folded

__all__ = ["pointwise_call", "separable_call"]


def pointwise_call(
    engine: Engine,
    op: ops.Conv,
    source: Reader,
    target: Writer,
    factors: tuple[np.ndarray, np.ndarray],
    offsets: np.ndarray,
    then: Rectifier,
) -> tuple[OffsetCall, Callable[[np.ndarray], None]]:
    """Return what normalises and rectifies pixels and convolves them, and what takes its weights.

    Args:
        engine: The engine.
        op: The convolution.
        source: What is read.
        target: What is written.
        factors: Factors and offsets of the channels that are read; they may change between calls.
        offsets: One for each channel that is written; they may change too.
        then: What becomes of the sums.

    Raises:
        Declined: Our kernels do not take it.
    """
    parts = parts_of(op, source.layout.shape, target.layout.shape, engine.tuning.as_set(wanted()))
    x, y = (images_of(port.layout) for port in (source, target))
    from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution
    from demitasse.backends.onednn.own_kernels.map_calls import OffsetCall

    if x is None or y is None or not (x.is_rows and y.is_rows):
        message = "images whose channels do not lie side by side; kernels of pixels need that"
        raise Declined(message)
    kernel = PointwiseConvolution(parts, x, y, factors, then)
    return OffsetCall(engine, source, target, kernel, offsets), kernel.update


def separable_call(
    engine: Engine,
    convolutions: tuple[ops.Conv, ops.Conv],
    source: Reader,
    target: Writer,
    folded: tuple[Folded, Folded],
    then: tuple[Rectifier, Rectifier],
    other: Reader | None,
) -> OffsetCall:
    """Return what runs a depthwise convolution and a pointwise one behind it.

    Args:
        engine: The engine.
        convolutions: Both.
        source: What is read.
        target: What is written.
        folded: Weights and offsets of both; they are given who takes new weights.
        then: What becomes of the sums of the first, and of the second.
        other: What is added to those of the second before, in the target's layout;
            None for nothing.

    Raises:
        Declined: Our kernels do not take it.
    """
    blocks = blocks_of(*convolutions, engine.tuning.as_set(wanted()))
    x, y = fitting(source.layout, blocks.strips.width), images_of(target.layout)
    from demitasse.backends.kernels.separable.convolution import SeparableConvolution
    from demitasse.backends.onednn.own_kernels.map_calls import OffsetCall

    if x is None or y is None or not blocks.writes(y):
        message = "images whose channels do not lie side by side; separable convolution needs that"
        raise Declined(message)
    kernel = SeparableConvolution(blocks, x, y, then, adds=other is not None)
    folded[0].update, folded[1].update = kernel.depthwise.update, kernel.update
    offsets = folded[0].bias, folded[1].bias
    return OffsetCall(engine, source, target, kernel, offsets, other)
