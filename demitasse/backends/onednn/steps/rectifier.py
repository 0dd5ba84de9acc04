"""ReLU, as Caffe computes it: NaN stays NaN.

The library's own ReLU takes the larger of 0 and x, by an instruction that returns 0 for NaN, which
hides the divergence of a net. Its HardSwish, x * clip(alpha * x + beta, 0, 1), multiplies x with 1
or 0 if alpha is infinite, and keeps NaN; minus infinity becomes NaN, as in Caffe, where it is
multiplied with the slope of 0. Adding 0 then makes the negative zeros positive.

Fewer instructions do the same behind a convolution: what is below 0 is multiplied with negative
zero, which gives zero, or NaN of minus infinity. With a negative
slope, such a value is multiplied with the slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import Description, Function, lent_attributes
from demitasse.backends.step import Declined

__all__ = ["RECTIFIER", "Fixed", "rectified", "rectifying", "sloping"]

Fixed = tuple[int, int, np.ndarray]
"""An argument that is a buffer of our own: its role, its descriptor, the buffer."""

RECTIFIER: Sequence[Function] = ((Algorithm.HARDSWISH, math.inf, 0.0), (Algorithm.LINEAR, 1.0, 0.0))
"""Post-operation of a primitive."""


def rectified(engine: Engine, source: InputArg, target: OutputArg, layout: Layout) -> Call:
    """Return ReLU by itself: the functions after a sum that changes nothing, with negative zero.

    Args:
        engine: The engine.
        source: The blob that is read.
        target: That which is written.
        layout: Of both.

    Raises:
        Declined: The library has no primitive for it.
    """
    # one row, whatever the layout: the library has no fast sum with one number for most layouts
    row, one = engine.plain((layout.size,)).handle, engine.plain((1,)).handle
    source.descriptor = target.descriptor = row
    describe = partial(_sum, engine, row, one)
    call = Call(engine, describe(), [source, target], [(Arg.SECOND_SRC, one, _negative_zero())])
    call.primitive.forget(describe)  # what is before it often rectifies in its place
    return call


def _sum(engine: Engine, row: int, one: int) -> Description:
    with lent_attributes(engine.library, functions=RECTIFIER) as lent:
        return engine.describe("binary", Algorithm.ADD, row, one, row, lent)


def rectifying(
    engine: Engine,
    describe: Callable[[int], Description],
    plain: Description,
    axes: int,
    other: int | None = None,
    slope: float = 0.0,
) -> tuple[Description, list[Fixed]]:
    """Return a primitive with an appended ReLU, and the ReLU's arguments.

    Args:
        engine: The engine.
        describe: Returns the primitive with the given attributes.
        plain: The same primitive without ReLU.
        axes: How many its result has.
        other: Descriptor of an array that is added before; None for none.
        slope: Of what is below 0.

    Raises:
        Declined: The library has none.
    """
    with suppress(Declined):
        found, role = sloping(engine, describe, plain, 0, other)
        number = _number(slope) if slope else _negative_zero()
        return found, [(role, engine.plain((1,) * axes).handle, number)]
    functions = [(Algorithm.RELU, slope, 0.0)] if slope else RECTIFIER
    with lent_attributes(engine.library, other=other, functions=functions) as lent:
        return describe(lent), []


def sloping(
    engine: Engine,
    describe: Callable[[int], Description],
    plain: Description,
    mask: int,
    other: int | None = None,
) -> tuple[Description, int]:
    """Return a primitive that multiplies what is below 0 with slopes, and the slopes' role.

    Args:
        engine: The engine.
        describe: Returns the primitive with the given attributes.
        plain: The same primitive without ReLU.
        mask: By which axes the slopes differ; 0 for one slope.
        other: Descriptor of an array that is added before; None for none.

    Raises:
        Declined: The library has none, or runs other code than without slopes.
    """
    with lent_attributes(engine.library, other=other, slopes=mask) as lent:
        found = describe(lent)
    if found.family is not plain.family:
        message = f"slopes behind {plain.implementation}, in place of which oneDNN would run "
        raise Declined(message + found.implementation)
    return found, Arg.SLOPE if other is None else Arg.SECOND_SLOPE


def _negative_zero() -> np.ndarray:
    return _number(-0.0)


def _number(value: float) -> np.ndarray:
    number = aligned(1)
    number[0] = value
    return number
