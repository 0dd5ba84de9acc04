"""Calls of the kernel that multiplies few rows with a weight."""

from __future__ import annotations

from demitasse.backends.kernels.few_rows import FewRows
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import KernelCall
from demitasse.backends.onednn.ports import Parameter, Port, Reader, Writer

__all__ = ["RowsCall"]


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
        source: Reader,
        weight: Parameter,
        bias: Reader | None,
        target: Writer,
    ) -> None:
        self._kernel, self._source, self._target = kernel, source, target
        self._weight, self._bias = weight, bias
        ports: list[Port] = [source, weight, *([bias] if bias else []), target]
        super().__init__(engine, tuple(ports), kernel.code)
        target.promise(engine)

    def __call__(self) -> None:
        offsets = self._bias.array() if self._bias else None
        source, weight = self._source.array(), self._weight.array()
        self._kernel(source, weight, offsets, self._target.array())
