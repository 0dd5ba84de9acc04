"""Layouts to try where a primitive does not say which is best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout, layout_with_tag
from demitasse.backends.step import Declined

__all__ = ["BLOCK", "candidates", "channel_blocks", "in_some_layout"]

LAST_TAG = 200
BLOCK = 16
"""Channels of a block that the library's and our kernels for AVX-512 are made for."""

BLOCKS = (BLOCK, 8)


def candidates(engine: Engine, expected: Layout) -> Iterator[Layout]:
    """Yield layouts of a shape: the expected one, blocks of channels, channels last, C order."""
    shape, expected = expected.shape, engine.whole(expected)
    yield expected
    for block in BLOCKS:
        if shape[1] % block == 0:
            with suppress(Declined):
                layout = channel_blocks(engine, shape, block)
                if layout is not expected:
                    yield layout
    last = engine.innermost_layout(shape, 1)
    if last is not expected:
        yield last
    if not expected.plain:
        yield engine.plain(shape)


def in_some_layout(engine: Engine, expected: Layout, prepare: Callable[[Layout], None]) -> None:
    """Prepare in the first of the candidates in which the library has fast code.

    Args:
        engine: The engine.
        expected: The layout that is tried first.
        prepare: Prepares in a layout; raises Declined where there is none.

    Raises:
        Declined: There is none in any.
    """
    for layout in candidates(engine, expected):
        with suppress(Declined):
            prepare(layout)
            return
    message = "sizes for which oneDNN has no fast code in any layout"
    raise Declined(message)


def channel_blocks(engine: Engine, shape: tuple[int, ...], block: int) -> Layout:
    """Return the layout whose innermost loop is a block of channels.

    Raises:
        Declined: The library has none for this number of axes.
    """
    return layout_with_tag(engine.library, shape, _tag(engine, len(shape), block))


@cache
def _tag(engine: Engine, axes: int, block: int) -> int:
    """Return the number of the format whose innermost loop is a block of channels; 0 for none.

    The numbers of formats are many and told apart by what they describe, so they are looked for.
    """
    shape = (2, 4 * block, *(3,) * (axes - 2))
    plane = 3 ** (axes - 2)
    steps = [(0, 2, 4 * block * plane), (1, 4, block * plane)]
    spatial = [(2 + i, 3, block * 3 ** (axes - 3 - i)) for i in range(axes - 2)]
    wanted = [*steps, *spatial, (1, block, 1)]
    for tag in range(2, LAST_TAG):
        with suppress(Declined):
            if list(layout_with_tag(engine.library, shape, tag).key[1]) == wanted:
                return tag
    return 0
