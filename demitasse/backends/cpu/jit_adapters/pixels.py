"""Products of pixels and of few rows with filters, and their calls."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    Folded,
    KernelCall,
    images_in_vectors,
    images_of,
    kernel_tuning,
)
from demitasse.backends.kernels.epilogue import Rectifier
from demitasse.backends.kernels.igemm import plan_igemm
from demitasse.backends.kernels.igemm_convolution import igemm_forward
from demitasse.backends.kernels.images import FLOAT_BYTES
from demitasse.backends.kernels.separable import plan_separable
from demitasse.backends.step import Declined, decline_if
from demitasse.backends.storage import Stored


def pointwise_call(
    engine: Engine,
    op: ops.Conv,
    source: InputArg,
    target: OutputArg,
    factors: tuple[np.ndarray, np.ndarray],
    offsets: np.ndarray,
    then: Rectifier,
    storage: Stored,
) -> tuple[KernelCall, Callable[[np.ndarray], None]]:
    """Return a call that normalises, rectifies and convolves pixels; and what takes its weights.

    ``factors`` are those of the input's channels, and their offsets; ``offsets`` are those of the
    output's channels. All may change between calls.
    """
    tuning, shape = kernel_tuning(engine, storage=storage), source.layout.shape
    schedule = plan_igemm(op, shape, target.layout.shape, tuning, normed=True)
    always = "igemm" in tuning.always
    filter_bytes = schedule.channels * schedule.filters * FLOAT_BYTES
    pixel_bytes = math.prod(shape) * FLOAT_BYTES
    # few rows are computed at a time on AVX2, so that filters are read more often; that costs more
    # than a pass over pixels in a cache
    cached = tuning.instructions == "avx2" and pixel_bytes <= tuning.cached_bytes
    decline_if(
        not always and (cached or filter_bytes > tuning.pixel_filter_bytes),
        f"filters of {filter_bytes >> 10} KiB, pixels of {pixel_bytes >> 10} KiB; a pass for their "
        "normalisation is faster",
    )
    x, y = (images_of(argument.layout) for argument in (source, target))
    if x is None or y is None or not (x.is_rows and y.is_rows):
        message = "images whose channels do not lie side by side; kernels of pixels need that"
        raise Declined(message)
    kernel = igemm_forward(schedule, x, y, factors, then)

    def run(x: np.ndarray, y: np.ndarray, scratch: np.ndarray) -> None:
        kernel(x, y, offsets, scratch)

    sizes = {"scratch": kernel.scratch_size, "held": kernel.filters.nbytes}
    return KernelCall(engine, (source, target), schedule.code, run, **sizes), kernel.update


def separable_call(
    engine: Engine,
    convolutions: tuple[ops.Conv, ops.Conv],
    source: InputArg,
    target: OutputArg,
    folded: tuple[Folded, Folded],
    then: tuple[Rectifier, Rectifier],
    other: InputArg | None,
    storage: Stored,
) -> KernelCall:
    """Return a call of a depthwise convolution fused with a pointwise convolution.

    ``update`` of both ``folded`` is set. ``other`` has the target's layout, and is added to the
    second's sums before ``then``.
    """
    blocks = plan_separable(*convolutions, kernel_tuning(engine, storage=storage))
    x, y = images_in_vectors(source.layout, blocks.strips.width), images_of(target.layout)
    from demitasse.backends.kernels.separable.convolution import SeparableConvolution

    if x is None or y is None or not blocks.writes(y):
        message = "images whose channels do not lie side by side; separable convolution needs that"
        raise Declined(message)
    kernel = SeparableConvolution(blocks, x, y, then, adds=other is not None)
    folded[0].update, folded[1].update = kernel.depthwise.update, kernel.update
    offsets = folded[0].bias, folded[1].bias

    def run(x: np.ndarray, *arrays: np.ndarray) -> None:
        *added, y, scratch = arrays
        kernel(x, y, (*offsets, *added), scratch)

    arguments = (source, target) if other is None else (source, other, target)
    sizes = {"scratch": kernel.scratch_size, "held": kernel.filters_nbytes}
    return KernelCall(engine, arguments, blocks.code, run, **sizes)
