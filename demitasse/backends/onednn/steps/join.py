"""Concat where bottoms may lie in the top: only those are copied that do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.home import Home
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import Primitive
from demitasse.backends.onednn.ports import Writer
from demitasse.backends.step import Operand, Operands

__all__ = ["JoinCall"]

FLOAT_BYTES = 4


class _Part(NamedTuple):
    """A bottom and where it goes.

    Attributes:
        bottom: The blob.
        target: The layout of its channels in the top.
        begin: Bytes from the top's beginning to theirs.
    """

    bottom: Operand
    target: Layout
    begin: int


class JoinCall:
    """Every bottom is where it belongs, or is copied there from whatever layout it is in.

    Args:
        engine: The engine.
        at: The blobs of a Concat of channels.
        home: Where the top lies.
    """

    def __init__(self, engine: Engine, at: Operands, home: Home) -> None:
        self._engine = engine
        self._top = Writer(Arg.DST, at.top[0], engine.part(home))
        self._top.engine = engine
        self._top.promise(engine)
        self._parts: list[_Part] = []
        first = 0
        for blob in at.bottom:
            target = engine.part(home.part(blob.shape, first))
            self._parts.append(_Part(blob, target, first * FLOAT_BYTES))
            first += blob.shape[1]
        self._copies: dict[tuple[Layout, Layout], Primitive] = {}

    @property
    def implementations(self) -> list[str]:
        """Names of the code that it runs."""
        return ["joined in place"]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        return 0

    def __call__(self) -> None:
        begin = address(self._top.array())
        for part in self._parts:
            source, layout = self._found(part.bottom)
            where = begin + part.begin
            if layout is not part.target or address(source) != where:
                self._copy(source, layout, part.target, where)

    def _found(self, blob: Operand) -> tuple[np.ndarray, Layout]:
        """Return a bottom's array as it is, and its layout."""
        memory = blob.data_memory
        layout: Any = memory.layout
        if layout is not None and layout.shape == blob.shape:
            side = memory.private_data(layout)
            if side is not None:
                return side, layout
        return memory.cpu_data(), self._engine.plain(blob.shape)

    def _copy(self, source: np.ndarray, here: Layout, there: Layout, where: int) -> None:
        copy = self._copies.get((here, there))
        if copy is None:
            copy = self._copies[here, there] = self._engine.copier(here, there)
        copy.bind(0, source)
        copy.point(1, where)
        copy.run()
