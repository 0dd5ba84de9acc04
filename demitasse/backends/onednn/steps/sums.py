"""Sums of arrays of one shape and layout."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_float, c_void_p

from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.step import Declined, Operand

__all__ = ["ONES", "added", "summed"]

ONES = (1.0, 1.0)
"""Factors of a plain sum of two."""


def summed(
    engine: Engine,
    sources: Sequence[Operand],
    factors: Sequence[float],
    target: Operand,
    layout: Layout,
    *,
    diff: bool = False,
) -> Call:
    """Return target = sum of factor * source, all in one layout.

    Args:
        engine: The engine.
        sources: The blobs to add.
        factors: What each is multiplied with.
        target: The blob to overwrite.
        layout: Of all of them.
        diff: Whether their gradients are meant.

    Raises:
        Declined: The library has no primitive for it.
    """
    if tuple(factors) == ONES:
        with suppress(Declined):
            return added(engine, sources, target, layout, engine.attributes, diff=diff)
    count = len(sources)
    found = engine.describe(
        "sum",
        layout.handle,
        count,
        (c_float * count)(*factors),
        (c_void_p * count)(*[layout.handle] * count),
        engine.attributes,
        general=True,  # made of reorders, which are good
    )
    arguments = [
        InputArg(Arg.MULTIPLE_SRC + i, blob, layout, diff=diff) for i, blob in enumerate(sources)
    ]
    return Call(engine, found, [*arguments, OutputArg(Arg.DST, target, layout, diff=diff)])


def added(
    engine: Engine,
    sources: Sequence[Operand],
    target: Operand,
    layout: Layout,
    attributes: int,
    *,
    diff: bool = False,
) -> Call:
    """Return the plain sum of two blobs, and what attributes say is done to it.

    Raises:
        Declined: The library has no good primitive for it.
    """
    one, two = sources
    found = engine.describe("binary", Algorithm.ADD, *[layout.handle] * 3, attributes)
    arguments = [
        InputArg(Arg.SRC, one, layout, diff=diff),
        InputArg(Arg.SECOND_SRC, two, layout, diff=diff),
        OutputArg(Arg.DST, target, layout, diff=diff),
    ]
    return Call(engine, found, arguments)
