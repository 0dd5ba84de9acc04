"""Separable convolutions and products of rows in bfloat16, and their calls."""

from __future__ import annotations

from functools import partial

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    ConvCall,
    ConvOperands,
    Folded,
    KernelCall,
    images_in_vectors,
    images_of,
    kernel_tuning,
)
from demitasse.backends.kernels.epilogue import Rectifier
from demitasse.backends.kernels.igemm import dense_schedule, row_images
from demitasse.backends.kernels.igemm_convolution import igemm_forward
from demitasse.backends.kernels.separable import plan_separable
from demitasse.backends.step import Declined
from demitasse.backends.storage import Stored


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


def bf16_rows_call(engine: Engine, operands: ConvOperands, storage: Stored) -> ConvCall | None:
    """Return the product of rows with a weight in bfloat16; None where that is not asked for.

    Shapes: source (rows, K), weight (M, K), bias (M,), target (rows, M), in C order.
    """
    tuning = kernel_tuning(engine, storage=storage)
    (rows, length), outputs = operands.source.layout.shape, operands.target.layout.shape[1]
    if not tuning.bf16 or not length >= tuning.width < outputs:
        return None
    schedule = dense_schedule(rows, length, outputs, tuning)
    ends = row_images(rows, length), row_images(rows, outputs)
    make = partial(igemm_forward, schedule, *ends, operands.then)
    return ConvCall(engine, operands, schedule.code, make)
