"""PReLU, and ReLU as an epilogue of the library's primitives.

The library's own ReLU takes the larger of 0 and x, by an instruction that returns 0 for NaN, which
hides the divergence of a net. Its HardSwish, x * clip(alpha * x + beta, 0, 1), multiplies x with 1
or 0 if alpha is infinite, and keeps NaN; minus infinity becomes NaN, as in Caffe, where the slope
of 0 multiplies it. Adding 0 then makes the negative zeros positive.

Fewer instructions do the same behind a convolution: PReLU multiplies negative values with negative
zero, which gives zero, or NaN of minus infinity. A negative slope multiplies them in the same way.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.arguments import (
    Argument,
    GradArg,
    InputArg,
    OutputArg,
    scratch_argument,
)
from demitasse.backends.onednn.jit_adapters.calls import KernelCall, kernel_tuning
from demitasse.backends.onednn.jit_adapters.norms import plane_images
from demitasse.backends.onednn.jit_adapters.unary import first_suitable
from demitasse.backends.onednn.library import primitive
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.primitive import (
    Description,
    Function,
    candidates,
    lent_attributes,
)
from demitasse.backends.onednn.step import Fixed, OnednnStep, op_title
from demitasse.backends.step import Declined, LayoutUse, Operand, Operands, decline_if

RECTIFIER: Sequence[Function] = ((Algorithm.HARDSWISH, math.inf, 0.0), (Algorithm.LINEAR, 1.0, 0.0))
"""Post-operation of a primitive."""


def rectifying(
    engine: Engine,
    describe: Callable[[int], Description],
    plain: Description,
    axes: int,
    other: int | None = None,
    slope: float = 0.0,
) -> tuple[Description, list[Fixed]]:
    """Return a primitive with an appended ReLU, and the ReLU's arguments.

    The result has ``axes`` axes; ``other`` is added before; ``slope`` is that of negative values.
    """
    with suppress(Declined):
        found, role = sloping(engine, describe, plain, 0, other)
        number = aligned(1)
        number[0] = slope or -0.0
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

    ``mask`` says by which axes the slopes differ, 0 for one slope; ``other`` is added before.

    Raises:
        Declined: The library has none, or runs other code than without slopes.
    """
    with lent_attributes(engine.library, other=other, slopes=mask) as lent:
        found = describe(lent)
    if found.family is not plain.family:
        message = f"slopes behind {plain.implementation}, in place of which oneDNN would run "
        raise Declined(message + found.implementation)
    return found, Arg.SLOPE if other is None else Arg.SECOND_SLOPE


def post_ops(then: ops.Activation) -> Sequence[primitive.Function]:
    """Return an activation as a primitive applies it to what it has computed.

    Only those are here with which a primitive gives exactly what two give one after the other.
    """
    message = f"{op_title(then)} runs by itself; oneDNN appends ReLU without a slope"
    decline_if(then.function != "relu" or any(then.parameters), message)
    return RECTIFIER


class SaveInput:
    """Saved copy of an input that is overwritten next, in the same layout."""

    workspace = 0
    implementations: ClassVar[list[str]] = []
    layout_uses: ClassVar[list[LayoutUse]] = []

    def __init__(self, engine: Engine, source: InputArg, target: Operand) -> None:
        self.engine, self.source = engine, source
        self.target = OutputArg(source.role, target, source.layout)

    def __call__(self) -> None:
        layout = self.source.layout
        self.engine.reorder(self.source.array(), layout, self.target.array(), layout)


class PReLUStep(OnednnStep[ops.PReLU]):
    """In whatever layout the data is, in place or not. In place, the gradient takes a copy."""

    def __init__(self, engine: Engine, op: ops.PReLU, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.shared, "one slope for all channels; our kernels take one for each")
        self.keeps_input = at.in_place and at.backward
        self.known = at.saved("input", op.bottom).blob if self.keeps_input else at.bottom[0]

    def prepare(self) -> None:
        from demitasse.backends.kernels.channel_affine import Slopes

        engine, tuning = self.engine, kernel_tuning(self.engine)
        layouts = candidates(engine, self.expected(self.at.bottom[0], self.op.bottom))
        find = partial(plane_images, width=tuning.width)
        self.layout, self.images = first_suitable(layouts, find)
        source, target = self.in_and_out(self.layout, self.layout)
        kernel, arguments = Slopes(self.images, tuning), (source, self._slopes(), target)
        keep = [SaveInput(engine, source, self.known)] if self.keeps_input else []
        self.forward_calls = [*keep, KernelCall(engine, arguments, kernel.code, kernel)]

    def _slopes(self) -> InputArg:
        return InputArg(Arg.WEIGHTS, self.at.params[0], self.engine.plain((self.op.bottom[1],)))

    def prepare_backward(self) -> None:
        from demitasse.backends.kernels.channel_affine import SlopeGradient

        at, layout, engine, slopes = self.at, self.layout, self.engine, self._slopes()
        source = InputArg(Arg.SRC, self.known, layout)
        dy = InputArg(Arg.DIFF_DST, at.top[0], layout, diff=True)
        dx: Argument = OutputArg(Arg.DIFF_SRC, at.bottom[0], layout, diff=True)
        if not at.propagate_down[0]:
            dx = scratch_argument(engine, Arg.DIFF_SRC, layout)
        gradient: Argument = scratch_argument(engine, Arg.DIFF_WEIGHTS, slopes.layout)
        if at.param_propagate_down[0]:
            gradient = GradArg(Arg.DIFF_WEIGHTS, at.params[0], slopes.layout)
        kernel = SlopeGradient(self.images, kernel_tuning(engine))

        def run(*arrays: np.ndarray) -> None:
            kernel(*arrays)
            gradient.done()

        arguments = source, slopes, dy, dx, gradient
        self.backward_calls = [
            KernelCall(engine, arguments, kernel.code, run, scratch=kernel.sums_size)
        ]
