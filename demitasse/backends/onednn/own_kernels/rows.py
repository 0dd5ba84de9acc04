"""The kernel that may multiply few rows with a weight in place of a primitive of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.rectifiers import rectifier_of
from demitasse.backends.onednn.ports import Parameter, Reader, Writer
from demitasse.backends.onednn.threads import wanted

if TYPE_CHECKING:
    from demitasse.backends.kernels.few_rows import Then
    from demitasse.backends.onednn.own_kernels.row_calls import RowsCall

__all__ = ["rows_call"]


def rows_call(
    engine: Engine,
    source: Reader,
    weight: Parameter,
    bias: Reader | None,
    target: Writer,
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
    tuning = engine.tuning.as_set(wanted())
    rows, (panel, columns) = source.layout.shape[0], _panel(weight.layout)
    if not tuning.width or not panel or panel % tuning.width:
        return None
    from demitasse.backends.kernels.few_rows import MOST_ROWS, FewRows

    if rows > MOST_ROWS[tuning.width]:
        return None
    from demitasse.backends.onednn.own_kernels.row_calls import RowsCall

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
