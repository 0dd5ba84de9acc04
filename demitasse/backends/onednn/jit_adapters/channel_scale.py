"""Channel scales of each image: calls of their kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from demitasse.backends.onednn.arguments import InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall
from demitasse.backends.onednn.library.engine import Engine

if TYPE_CHECKING:
    from demitasse.backends.kernels.channel_affine import GateGradient, Gates


class GateCall(KernelCall):
    """y = x * gate + other, or without the other.

    Args:
        engine: The engine.
        kernel: The kernel.
        x: The images.
        gates: Their gates.
        other: Other images, or None.
        y: The result.
    """

    def __init__(
        self,
        engine: Engine,
        kernel: Gates,
        x: InputArg,
        gates: InputArg,
        other: InputArg | None,
        y: OutputArg,
    ) -> None:
        self._kernel, self._x, self._gates, self._other, self._y = kernel, x, gates, other, y
        super().__init__(engine, (x, gates, *([other] if other else []), y), kernel.code)

    def __call__(self) -> None:
        other = None if self._other is None else self._other.array()
        x, gates = self._x.array(), self._gates.array()
        self._kernel(x, gates, other, self._y.array())


class GatePorts(NamedTuple):
    """Operands of the gradients of y = x * gate + other.

    Attributes:
        x: The images.
        gates: Their gates.
        dy: The gradient of the result.
        dx: That of the images.
        gate_gradients: That of the gates.
        added: That of the other images; None where there are none, or the result is written there.
    """

    x: InputArg
    gates: InputArg
    dy: InputArg
    dx: OutputArg
    gate_gradients: OutputArg
    added: OutputArg | None


class GateGradientCall(KernelCall):
    """The gradients of y = x * gate + other.

    Args:
        engine: The engine.
        kernel: The kernel.
        arguments: Its source and target.
    """

    def __init__(self, engine: Engine, kernel: GateGradient, arguments: GatePorts) -> None:
        self._kernel, self._at = kernel, arguments
        there = tuple(argument for argument in arguments if argument is not None)
        super().__init__(engine, there, kernel.code)

    def __call__(self) -> None:
        at = self._at
        x, gates, dy = (argument.array() for argument in (at.x, at.gates, at.dy))
        added = None if at.added is None else at.added.array()
        self._kernel(x, gates, dy, (at.dx.array(), at.gate_gradients.array(), added))
