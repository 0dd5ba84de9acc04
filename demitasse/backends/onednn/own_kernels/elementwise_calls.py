"""A function of every element in a kernel of our own."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.backends.kernels.elementwise import Elementwise
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import KernelCall
from demitasse.backends.onednn.ports import Reader, Writer

__all__ = ["ElementwiseCall"]


class ElementwiseCall(KernelCall):
    """The function.

    Args:
        engine: The engine.
        kernel: The kernel.
        sources: What is read, as many arrays as the kernel takes.
        targets: What is written, in the same layout, one array or two.
    """

    def __init__(
        self, engine: Engine, kernel: Elementwise, sources: Sequence[Reader],
        targets: Sequence[Writer],
    ) -> None:  # fmt: skip
        self._kernel, self._sources, self._targets = kernel, sources, targets
        super().__init__(engine, (*sources, *targets), kernel.code)
        for target in targets:
            target.promise(engine)

    def __call__(self) -> None:
        arrays = [source.array() for source in self._sources]
        self._kernel(arrays, *(target.array() for target in self._targets))
