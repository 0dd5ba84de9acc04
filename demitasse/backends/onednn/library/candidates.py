"""Layouts to try where a primitive does not say which it likes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import c_void_p
from functools import cache

from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import FLOAT32
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout, dims, layout_of

__all__ = ["candidates"]

LAST_TAG = 200
BLOCKS = (16, 8)


def candidates(
    backend: OnednnBackend, expected: Layout, shape: tuple[int, ...]
) -> Iterator[Layout]:
    """Yield layouts of ``shape``: the expected one, blocks of channels, channels last, C order."""
    engine = backend.engine
    yield expected
    for block in BLOCKS:
        tag = _tag(engine, len(shape), block)
        if tag and shape[1] % block == 0:
            layout = _tagged(engine, shape, tag)
            if layout is not None and layout is not expected:
                yield layout
    last = engine.innermost_layout(shape, 1)
    if last is not None and last is not expected:
        yield last
    if not expected.plain:
        yield engine.plain(shape)


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
        layout = _tagged(engine, shape, tag)
        if layout is not None and list(layout.key[1]) == wanted:
            return tag
    return 0


def _tagged(engine: Engine, shape: tuple[int, ...], tag: int) -> Layout | None:
    handle = c_void_p()
    library = engine.library
    if library.dnnl_memory_desc_create_with_tag(
        ctypes.byref(handle), len(shape), dims(shape), FLOAT32, tag
    ):
        return None
    layout = layout_of(library, handle.value or 0)
    library.dnnl_memory_desc_destroy(handle)
    return layout
