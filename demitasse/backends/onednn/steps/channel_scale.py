"""Channels of each image times a number of its own: gates, as nets have that weigh their channels.

A Scale by a second bottom (N, C), or an Axpy, which adds other images too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall
from demitasse.backends.onednn.jit_adapters.norms import gate_kernels
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import in_some_layout, lent_attributes
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Declined, Operand, Operands

if TYPE_CHECKING:
    from demitasse.backends.kernels.channel_affine import GateGradient, Gates


class _ChannelScaleStep(OnednnStep[ops.Axpy | ops.Scale]):
    """y = x * gate + other, in the layout of x.

    Args:
        engine: The engine.
        op: The operation.
        at: Its blobs.
        x: The images, (N, C, *spatial).
        gate: A number for each channel of each image.
        other: What is added, as x; None for nothing.

    Raises:
        Declined: Gradients are wanted of something that the result overwrites, or of some alone.
    """

    def __init__(
        self,
        engine: Engine,
        op: ops.Axpy | ops.Scale,
        at: Operands,
        *,
        x: Operand,
        gate: Operand,
        other: Operand | None = None,
    ) -> None:
        super().__init__(engine, op, at)
        if at.backward and not all(at.propagate_down):
            message = "some gradients are wanted; our kernel computes those of images and gates"
            raise Declined(message)
        if at.backward and at.top[0] is x:
            message = "a gradient is wanted of gates whose images the result overwrites"
            raise Declined(message)
        self._x, self._gate, self._other = x, gate, other

    def prepare(self) -> None:
        expected = self.expected(self._x)
        in_some_layout(self.engine, expected, self._prepare_in)

    def _prepare_in(self, layout: Layout) -> None:
        n, c, *spatial = self._x.shape
        gates = self.engine.plain((n, c, *[1] * len(spatial)))
        x, gate = InputArg(Arg.SRC, self._x, layout), InputArg(Arg.SECOND_SRC, self._gate, gates)
        other = None if self._other is None else InputArg(Arg.ADDED, self._other, layout)
        y = OutputArg(Arg.DST, self.at.top[0], layout)
        if self.at.backward:
            self._train(x, gate, other, y)
        else:
            self.forward_calls = [self._call(x, gate, other, y)]

    def _call(self, x: InputArg, gate: InputArg, other: InputArg | None, y: OutputArg) -> Call:
        """Return the library's primitive."""
        engine, layout = self.engine, x.layout.handle
        with lent_attributes(engine.library, other=layout if other else None) as attributes:
            found = engine.describe(
                "binary", Algorithm.MUL, layout, gate.layout.handle, layout, attributes
            )
        return Call(engine, found, [x, gate, *([other] if other else []), y])

    def _train(self, x: InputArg, gate: InputArg, other: InputArg | None, y: OutputArg) -> None:
        """Take our kernels, which compute gradients too.

        Raises:
            Declined: Channels fill no vectors in that layout, or no kernels are made.
        """
        engine, [top], layout = self.engine, self.at.top, x.layout
        hands_on = self._other is not None and self._other is not top
        kernels = gate_kernels(engine, layout, adds=other is not None, hands_on=hands_on)
        if kernels is None:
            message = (
                "gradients of gates whose channels fill no vectors; our kernel takes whole ones"
            )
            raise Declined(message)

        forth, self._back = kernels
        self.forward_calls = [GateCall(engine, forth, x, gate, other, y)]
        self._layouts, self._hands_on = (layout, gate.layout), hands_on

    def prepare_backward(self) -> None:
        [top], (images, gates) = self.at.top, self._layouts
        added = None
        if self._hands_on and self._other is not None:
            added = OutputArg(Arg.DST, self._other, images, diff=True)
        arguments = GatePorts(
            x=InputArg(Arg.SRC, self._x, images),
            gates=InputArg(Arg.SECOND_SRC, self._gate, gates),
            dy=InputArg(Arg.DIFF_DST, top, images, diff=True),
            dx=OutputArg(Arg.DIFF_SRC, self._x, images, diff=True),
            gate_gradients=OutputArg(Arg.DST, self._gate, gates, diff=True),
            added=added,
        )
        self.backward_calls = [GateGradientCall(self.engine, self._back, arguments)]


class AxpyStep(_ChannelScaleStep):
    """The second bottom times the first, and the third."""

    def __init__(self, engine: Engine, op: ops.Axpy, at: Operands) -> None:
        gate, x, other = at.bottom
        super().__init__(engine, op, at, x=x, gate=gate, other=other)


class ChannelScaleStep(_ChannelScaleStep):
    """The first bottom times the second, which has the first one's first two axes."""

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        shape = at.bottom[0].shape
        gated = (1, math.prod(shape[:2]), math.prod(shape[2:]))
        if len(at.bottom) == 1 or op.bias or (op.outer, op.dim, op.inner) != gated:
            message = "factors that are no second bottom's, one for each channel of each image"
            raise Declined(message)
        x, gate = at.bottom
        super().__init__(engine, op, at, x=x, gate=gate)


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
