"""Activation functions of every element, without temporaries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from demitasse.backends import normal, ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import HostStep
from demitasse.backends.step import Declined, Operands

__all__ = ["FUNCTIONS", "activation"]

PART = 16384
"""Elements: a handful of such arrays lies in the second cache."""


class ReLUStep(HostStep[ops.Activation]):
    """y = max(x, 0), in place or not. Minus infinity gives NaN, as multiplied with a slope of 0."""

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        if any(op.parameters):
            message = "a slope below 0; numpy's Step is for ReLU without one"
            raise Declined(message)

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        y = self.at.top[0].buffer()
        if np.minimum.reduce(x, axis=None, initial=np.inf) > -np.inf:
            np.maximum(x, 0, out=y)
        else:
            y[...] = np.maximum(x, 0) + 0 * np.minimum(x, 0)

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            # in place, the bottom holds y, which is positive exactly where x was
            x, dy = self.at.bottom[0].read(), self.at.top[0].read_diff()
            passed = self.scratch("mask", x.shape, "bool")
            np.greater(x, 0, out=passed)
            np.multiply(dy, passed, out=self.at.bottom[0].diff_buffer())


class GELUStep(HostStep[ops.Activation]):
    """y = x Phi(x), in place or not, in parts whose temporaries stay in the caches."""

    def forward(self) -> None:
        at = self.at
        x = at.bottom[0].read()
        if at.loses_input:
            kept = at.saved("input", x.shape).buffer()
            kept[...] = x
            x = kept
        y = at.top[0].buffer().reshape(-1)
        for part, values in _parts(x):
            y[part] = normal.gelu(np, values)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            bottom = at.bottom[0]
            x = at.saved("input", bottom.shape).read() if at.loses_input else bottom.read()
            dy, dx = at.top[0].read_diff().reshape(-1), bottom.diff_buffer().reshape(-1)
            for part, values in _parts(x):
                np.multiply(dy[part], normal.gelu_slope(np, values), out=dx[part])


def _parts(x: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of the flattened array and their elements. Shapes: any -> (PART,) or less."""
    flat = x.reshape(-1)
    for start in range(0, flat.size, PART):
        part = slice(start, start + PART)
        yield part, flat[part]


FUNCTIONS: dict[str, type[HostStep[ops.Activation]]] = {"relu": ReLUStep, "gelu": GELUStep}


def activation(engine: Engine, op: ops.Activation, at: Operands) -> HostStep[ops.Activation]:
    """Return the Step of a function.

    Raises:
        Declined: There is none.
    """
    if op.function not in FUNCTIONS:
        message = f"{op.function}; numpy has Steps for {', '.join(FUNCTIONS)}"
        raise Declined(message)
    return FUNCTIONS[op.function](engine, op, at)
