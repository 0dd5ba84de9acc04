"""PReLU, and what the kernels of sums and norms append."""

from functools import partial
from typing import ClassVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    Arg,
    Argument,
    GradArg,
    InputArg,
    OutputArg,
    scratch_argument,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.jit_adapters.norms import plane_images
from demitasse.backends.cpu.jit_adapters.unary import first_suitable
from demitasse.backends.cpu.step import CpuStep, op_title
from demitasse.backends.step import LayoutUse, Operand, Operands, decline_if


def decline_other_than_relu(then: ops.Activation) -> None:
    """Decline an activation behind sums and factors, whose kernels have ReLU without a slope."""
    message = f"{op_title(then)} runs by itself; kernels append ReLU without a slope"
    decline_if(then.function != "relu" or any(then.parameters), message)


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


class PReLUStep(CpuStep[ops.PReLU]):
    """In whatever layout the data is, in place or not. In place, the gradient takes a copy."""

    def __init__(self, engine: Engine, op: ops.PReLU, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.shared, "one slope for all channels; our kernels take one for each")
        self.keeps_input = at.in_place and at.backward
        self.known = at.saved("input", op.bottom).blob if self.keeps_input else at.bottom[0]

    def prepare(self) -> None:
        from demitasse.backends.kernels.channel_affine import Slopes

        engine, tuning = self.engine, kernel_tuning(self.engine)
        known = layouts.candidates(self.expected(self.at.bottom[0], self.op.bottom))
        find = partial(plane_images, width=tuning.width)
        self.layout, self.images = first_suitable(known, find)
        source, target = self.in_and_out(self.layout, self.layout)
        kernel, arguments = Slopes(self.images, tuning), (source, self._slopes(), target)
        keep = [SaveInput(engine, source, self.known)] if self.keeps_input else []
        self.forward_calls = [*keep, KernelCall(engine, arguments, kernel.code, kernel)]

    def _slopes(self) -> InputArg:
        return InputArg(Arg.WEIGHTS, self.at.params[0], layouts.plain((self.op.bottom[1],)))

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
