"""Updates by gradient descent with momentum: all parameters in one pass over memory.

The operations and their rounding are those of the portable formulas, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Arguments, Struct
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    chunk,
    maximum,
    minimum,
)
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["Descent", "Parameter"]

ALONE = 1 << 16
"""Elements up to which one thread is done before others would have begun."""


class Parameter(NamedTuple):
    """A parameter, its arrays of one length, and the numbers of its update.

    Attributes:
        arrays: Weights, gradient and history; all are overwritten. Shapes: (count,).
        nesterov: Whether the update looks ahead.
        decays: Whether the decay is added to the gradient.
        numbers: The gradient's scale, the decay, the rate and the momentum.
    """

    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    nesterov: bool
    decays: bool
    numbers: tuple[float, float, float, float]


class DescentFields(Struct):
    """Parameters one behind the other."""

    table: Word
    """Address of a row of :class:`_Row`'s integers for each parameter."""
    numbers: Word
    """Address of each parameter's scale, decay, rate, momentum and 1 + momentum."""
    parameters: Word
    """How many there are."""
    elements: Word
    """Elements of all of them."""


class _Row(NamedTuple):
    """A parameter in a kernel.

    Attributes:
        w: Address of the weights.
        g: Address of the gradient.
        h: Address of the history.
        first: Elements of the parameters before it.
        length: Its own elements.
        kind: Which of the formulas is its update's.
    """

    w: Word
    g: Word
    h: Word
    first: Word
    length: Word
    kind: Word


NUMBERS = 5
"""Floats that each parameter has in a table of their own."""

Formula = Callable[[list[Vector], Vector, Vector], tuple[Vector, Vector]]
"""Takes the numbers, gradient and history; returns what is subtracted, and the history."""


def _sgd(numbers: list[Vector], g: Vector, h: Vector) -> tuple[Vector, Vector]:
    _, _, rate, momentum, _ = numbers
    h = h * momentum + g * rate
    return h, h


def _nesterov(numbers: list[Vector], g: Vector, h: Vector) -> tuple[Vector, Vector]:
    _, _, rate, momentum, ahead = numbers
    before = h * momentum
    h = before + g * rate
    return h * ahead - before, h


FORMULAS: Sequence[Formula] = (_sgd, _nesterov)


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"descent{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    rest = _part(module, f"{name}_rest", 1)
    whole = _part(module, f"{name}_whole", width)
    k = Kernel(module, name, 1, width, exported=True)
    f = DescentFields.read(k)
    begin, end = chunk(f.elements, *k.thread())
    with k.loop(f.parameters) as loop:
        row = _Row(*k.load_words(f.table + loop.i * (INT * len(_Row._fields)), len(_Row._fields)))
        first = maximum(begin, row.first) - row.first
        last = minimum(end, row.first + row.length) - row.first
        with k.when(first < last):
            middle = last - (last - first) % width
            numbers = f.numbers + loop.i * (NUMBERS * FLOAT)
            arrays = row.w, row.g, row.h, row.kind, numbers
            k.call(whole, *arrays, first * FLOAT, middle * FLOAT)
            k.call(rest, *arrays, middle * FLOAT, last * FLOAT)
    k.done()


def _part(module: Any, name: str, width: int) -> Kernel:
    """Return the kernel of a range of a parameter, of whole vectors of this width."""
    k = Kernel(module, name, 7, width)
    w, g, h, kind, numbers, begin, end = k.arguments
    values = [k.broadcast(numbers + FLOAT * place) for place in range(NUMBERS)]
    with k.cases(kind) as case:
        for number, formula in enumerate(FORMULAS):
            for decays in (False, True):
                case(_kind(number, decays=decays))
                _update(k, (w, g, h), values, formula, (begin, end), decays=decays)
    k.done()
    return k


def _kind(formula: int, *, decays: bool) -> int:
    return 2 * formula + decays


def _update(
    k: Kernel,
    arrays: tuple[Word, Word, Word],
    numbers: list[Vector],
    formula: Formula,
    part: tuple[Word, Word],
    *,
    decays: bool,
) -> None:
    """Write a loop over the vectors of a range."""
    begin, end = part
    with k.loop(end, begin, k.vector_bytes) as loop:
        w, g, h = (array + loop.i for array in arrays)
        weight, gradient = k.load(w), k.load(g) * numbers[0]
        if decays:
            gradient = gradient + weight * numbers[1]
        change, history = formula(numbers, gradient, k.load(h))
        k.store(history, h)
        k.store(change, g)
        k.store(weight - change, w)


class Descent:
    """w -= v with v = momentum * v + rate * (scale * g + decay * w), or as Nesterov's looks ahead.

    The gradient becomes what was subtracted.

    Args:
        tuning: The kernel's vectors and threads.
    """

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self._kernel = _kernel(tuning.width)
        self._arguments = Arguments(
            DescentFields.values(
                table=EACH_CALL, numbers=EACH_CALL, parameters=EACH_CALL, elements=EACH_CALL
            )
        )

    def __call__(self, parameters: Sequence[Parameter]) -> None:
        """Update all of them."""
        numbers = [(*one.numbers, 1 + one.numbers[-1]) for one in parameters]
        first, rows = 0, []
        for arrays, nesterov, decays, _ in parameters:
            count = arrays[0].shape[0]
            rows.append((*map(address, arrays), first, count, _kind(nesterov, decays=decays)))
            first += count
        each: dict[str, int | np.ndarray] = {
            "table": np.array(rows, np.int64),
            "numbers": np.array(numbers, np.float32),
            "parameters": len(rows),
            "elements": first,
        }
        self._arguments.run(self._kernel, self.tuning.threads if first > ALONE else 1, each)
