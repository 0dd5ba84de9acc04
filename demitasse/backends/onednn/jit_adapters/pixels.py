"""Products of pixels and of few rows with filters, and their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.epilogue import Rectifier
from demitasse.backends.kernels.pointwise import check_norm_gain, plan_pointwise
from demitasse.backends.kernels.separable import plan_separable
from demitasse.backends.onednn.arguments import Argument, InputArg, OutputArg, ParamArg
from demitasse.backends.onednn.jit_adapters.calls import (
    Folded,
    KernelCall,
    images_in_vectors,
    images_of,
    rectifier_of,
)
from demitasse.backends.onednn.jit_adapters.unary import OffsetCall
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from demitasse.backends.kernels.products import FewRows, Then


def pointwise_call(
    engine: Engine,
    op: ops.Conv,
    source: InputArg,
    target: OutputArg,
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
    parts = plan_pointwise(
        op, source.layout.shape, target.layout.shape, engine.tuning.as_set(wanted())
    )
    check_norm_gain(parts)
    x, y = (images_of(argument.layout) for argument in (source, target))
    from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution

    if x is None or y is None or not (x.is_rows and y.is_rows):
        message = "images whose channels do not lie side by side; kernels of pixels need that"
        raise Declined(message)
    kernel = PointwiseConvolution(parts, x, y, factors, then)
    return OffsetCall(engine, source, target, kernel, offsets), kernel.update


def separable_call(
    engine: Engine,
    convolutions: tuple[ops.Conv, ops.Conv],
    source: InputArg,
    target: OutputArg,
    folded: tuple[Folded, Folded],
    then: tuple[Rectifier, Rectifier],
    other: InputArg | None,
) -> OffsetCall:
    """Return a call of a depthwise convolution fused with a pointwise convolution.

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
    blocks = plan_separable(*convolutions, engine.tuning.as_set(wanted()))
    x, y = images_in_vectors(source.layout, blocks.strips.width), images_of(target.layout)
    from demitasse.backends.kernels.separable.convolution import SeparableConvolution

    if x is None or y is None or not blocks.writes(y):
        message = "images whose channels do not lie side by side; separable convolution needs that"
        raise Declined(message)
    kernel = SeparableConvolution(blocks, x, y, then, adds=other is not None)
    folded[0].update, folded[1].update = kernel.depthwise.update, kernel.update
    offsets = folded[0].bias, folded[1].bias
    return OffsetCall(engine, source, target, kernel, offsets, other)


def rows_call(
    engine: Engine,
    source: InputArg,
    weight: ParamArg,
    bias: InputArg | None,
    target: OutputArg,
    then: ops.Activation | None = None,
) -> RowsCall | None:
    """Return the product of few rows with a weight; None where there are more, or none can be made.

    Args:
        engine: The engine.
        source: The rows. Shape: (rows, K).
        weight: In a layout that the library chose. Shape: (M, K).
        bias: Shape: (M,). None for none.
        target: The results. Shape: (rows, M).
        then: What follows; None for nothing.

    Raises:
        Declined: The kernel does not do what follows.
    """
    from demitasse.backends.kernels.products import FewRows

    tuning = engine.tuning.as_set(wanted())
    rows, (panel, columns) = source.layout.shape[0], _panel(weight.layout)
    off = "few_rows" in tuning.without
    if off or not tuning.width or not panel or panel % tuning.width:
        return None
    from demitasse.backends.kernels.products import MOST_ROWS

    if rows > MOST_ROWS[tuning.width]:
        return None

    outputs, length = weight.layout.shape
    kernel = FewRows(rows, length, outputs, panel, columns, tuning, _then(then))
    return RowsCall(engine, kernel, source, weight, bias, target)


def _then(then: ops.Activation | None) -> Then:
    """Return what becomes of the sums.

    Raises:
        Declined: The kernel does not do it.
    """
    if then is not None and then.function in ("sigmoid", "tanh"):
        return "sigmoid" if then.function == "sigmoid" else "tanh"
    return rectifier_of(then)


def _panel(layout: Layout) -> tuple[int, int]:
    """Return how many rows of a matrix lie side by side, and how many columns they have there.

    0 and 0 where they lie otherwise.
    """
    if layout.plain:
        return 0, 0
    _, parts, (rows, columns) = layout.key[:3]
    panel = int(parts[-1][1])
    panels = [(0, rows // panel, panel * columns)] if rows > panel else []
    expected = (*panels, (1, columns, panel), (0, panel, 1))
    return (panel, columns) if parts == expected else (0, 0)


class RowsCall(KernelCall):
    """The product.

    Args:
        engine: The engine.
        kernel: The kernel.
        source: The rows.
        weight: The weight, in panels.
        bias: The offsets; None for none.
        target: The results.
    """

    def __init__(
        self,
        engine: Engine,
        kernel: FewRows,
        source: InputArg,
        weight: ParamArg,
        bias: InputArg | None,
        target: OutputArg,
    ) -> None:
        self._kernel, self._source, self._target = kernel, source, target
        self._weight, self._bias = weight, bias
        arguments: list[Argument] = [source, weight, *([bias] if bias else []), target]
        super().__init__(engine, tuple(arguments), kernel.code)

    def __call__(self) -> None:
        offsets = self._bias.array() if self._bias else None
        source, weight = self._source.array(), self._weight.array()
        self._kernel(source, weight, offsets, self._target.array())
