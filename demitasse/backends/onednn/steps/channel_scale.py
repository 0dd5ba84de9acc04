"""Channels of each image times a number of its own: gates, as nets have that weigh their channels.

A Scale by a second bottom (N, C), or an Axpy, which adds other images too.
"""

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall, kernel_tuning
from demitasse.backends.onednn.jit_adapters.norms import takes_rest
from demitasse.backends.onednn.jit_adapters.unary import suitable_images
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import in_some_layout, lent_attributes
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Operand, Operands, decline_if


class _ChannelScaleStep(OnednnStep[ops.Axpy | ops.Scale]):
    """y = x * gate + other, in the layout of x.

    Args:
        x: The images, (N, C, *spatial).
        gate: A number for each channel of each image.
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
        message = "some gradients are wanted; our kernel computes those of images and gates"
        decline_if(at.backward and not all(at.propagate_down), message)
        message = "a gradient is wanted of gates whose images the result overwrites"
        decline_if(at.backward and at.top[0] is x, message)
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
                "binary", Algorithm.MUL, layout, gate.layout, layout, attributes=attributes
            )
        return Call(engine, found, [x, gate, *([other] if other else []), y])

    def _train(self, x: InputArg, gate: InputArg, other: InputArg | None, y: OutputArg) -> None:
        """Take our kernels, which compute gradients too.

        Raises:
            Declined: Channels fill no vectors in that layout, or no kernels are made.
        """
        from demitasse.backends.kernels.channel_affine import GateGradient, Gates

        engine, layout, tuning = self.engine, x.layout, kernel_tuning(self.engine)
        images = suitable_images(layout, takes_rest, tuning.width)
        adds_apart = self._other is not None and self._other is not self.at.top[0]
        gates, self._gradient = (
            Gates(images, tuning, adds=other is not None),
            GateGradient(images, tuning, adds=adds_apart),
        )

        def run(x: np.ndarray, gate: np.ndarray, *arrays: np.ndarray) -> None:
            gates(x, gate, arrays[0] if other else None, arrays[-1])

        arguments = [x, gate, *([other] if other else []), y]
        self.forward_calls = [KernelCall(engine, arguments, gates.code, run)]
        self._layouts, self._adds_apart = (layout, gate.layout), adds_apart

    def prepare_backward(self) -> None:
        [top], (images, gates), gradient = self.at.top, self._layouts, self._gradient
        arguments = [
            InputArg(Arg.SRC, self._x, images),
            InputArg(Arg.SECOND_SRC, self._gate, gates),
            InputArg(Arg.DIFF_DST, top, images, diff=True),
            OutputArg(Arg.DIFF_SRC, self._x, images, diff=True),
            OutputArg(Arg.DST, self._gate, gates, diff=True),
        ]
        if self._adds_apart and self._other is not None:
            arguments.append(OutputArg(Arg.DST, self._other, images, diff=True))

        def run(x: np.ndarray, gate: np.ndarray, dy: np.ndarray, *to: np.ndarray) -> None:
            gradient(x, gate, dy, (to[0], to[1], to[2] if len(to) > 2 else None))

        self.backward_calls = [KernelCall(self.engine, arguments, gradient.code, run)]


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
        message = "factors that are no second bottom's, one for each channel of each image"
        decline_if(len(at.bottom) == 1 or op.bias or (op.outer, op.dim, op.inner) != gated, message)
        x, gate = at.bottom
        super().__init__(engine, op, at, x=x, gate=gate)
