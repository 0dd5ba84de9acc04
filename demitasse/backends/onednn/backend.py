"""The backend: numpy on the host, with what oneDNN does faster lowered to it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.base import Lowering, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.onednn.library.engine import engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.threads import only_ours
from demitasse.backends.ops import Op

if TYPE_CHECKING:
    from demitasse.memory import SyncedMemory

__all__ = ["OnednnBackend"]


class OnednnBackend(NumpyBackend):
    """numpy arrays and portable layers; Steps keep what they compute in private layouts."""

    name = "onednn"
    lowerings: ClassVar[dict[type[Op], Lowering]] = {}

    def __init__(self, index: str = "") -> None:
        super().__init__(index)
        self.engine = engine()
        self._promised: weakref.WeakKeyDictionary[SyncedMemory, Layout] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def devices(cls) -> list[str]:
        return ["cpu"]

    @contextmanager
    def enter(self) -> Iterator[None]:
        with only_ours(), super().enter():
            yield

    def empty_host(self, size: int, dtype: str) -> np.ndarray:
        return aligned(size) if dtype == "float32" else np.zeros(size, dtype)

    def empty_private(self, size: int) -> np.ndarray:
        return aligned(size)

    def pack(self, host: np.ndarray, layout: Any, private: np.ndarray) -> None:
        self.engine.reorder(host, self.engine.plain(layout.shape), private, layout)

    def unpack(self, private: np.ndarray, layout: Any, host: np.ndarray) -> None:
        self.engine.reorder(private, layout, host, self.engine.plain(layout.shape))

    def repack(self, private: np.ndarray, here: Any, target: np.ndarray, there: Any) -> None:
        self.engine.reorder(private, here, target, there)

    # -- layouts that Steps agree on -----------------------------------------------------------

    def promise(self, blob: Any, layout: Layout, *, diff: bool = False) -> None:
        """Note the layout in which a prepared Step will write a blob's data, or its gradient."""
        self._promised[blob.diff_memory if diff else blob.data_memory] = layout

    def expected(self, blob: Any, shape: tuple[int, ...], *, diff: bool = False) -> Layout:
        """Return the layout in which a blob's data, or its gradient, will probably be found.

        It is a hint: what is found in another layout is converted. C order if nobody knows.
        """
        promised = self._promised.get(blob.diff_memory if diff else blob.data_memory)
        if promised is not None and promised.shape == shape:
            return promised
        return self.engine.plain(shape)

    def fuse(
        self, ops: Sequence[Op], operands: Sequence[Operands], steps: Sequence[Step | None]
    ) -> Step | None:
        from demitasse.backends.onednn.steps.fusion import fuse

        return fuse(self, ops, operands, steps)

    def lower(self, op: Op, operands: Operands | object) -> Step | None:
        import_module("demitasse.backends.onednn.lowerings")
        return super().lower(op, operands)
