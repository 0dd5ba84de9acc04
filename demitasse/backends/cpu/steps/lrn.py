"""LRN, and Normalize of each position."""

from functools import partial

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import DerivedArg, InputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.lrn import LocalResponse, UnitLength, takes
from demitasse.backends.step import Declined, Operands, decline_gradients


class LRNStep(CpuStep[ops.LRN]):
    """One layout for everything, across channels or within them."""

    needs_bottom = True

    def prepare(self) -> None:
        op = self.op
        known = layouts.candidates(self.expected(self.at.bottom[0], op.bottom))
        try:
            self.layout, self.kernel = first_suitable(known, self._kernel)
        except Declined as declined:
            message = f"{op.region} of {op.size} to {op.beta:g}: {declined}"
            raise Declined(message) from None
        ends = self.in_and_out(self.layout, self.layout)
        self.forward_calls = [KernelCall(self.engine, self.kernel.forward, *ends)]

    def _kernel(self, layout: Layout) -> LocalResponse:
        op, tuning = self.op, kernel_tuning(self.engine)
        within = op.region == "WITHIN_CHANNEL"
        fits = partial(takes, size=op.size, beta=op.beta, within=within)
        images = suitable_images(layout, tuning.width, fits)
        return LocalResponse(images, op.size, op.alpha, op.k, tuning, within=within)

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        if at.propagate_down[0]:
            arguments = InputArg(at.bottom[0], layout), *self.gradients(layout, layout)
            self.backward_calls = [KernelCall(self.engine, self.kernel.backward, *arguments)]


class NormalizeStep(CpuStep[ops.Normalize]):
    """With the channels last, without gradients; in place or not."""

    def __init__(self, engine: Engine, op: ops.Normalize, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_gradients([at])

    def prepare(self) -> None:
        op, engine, [factors] = self.op, self.engine, self.at.params
        tuning = kernel_tuning(engine)
        known = self.expected(self.at.bottom[0], op.bottom), layouts.innermost(op.bottom, 1)
        takes_rows = partial(suitable_images, width=1, takes=lambda images, _: images.is_rows)
        layout, images = first_suitable(known, takes_rows)
        channels = layouts.plain((op.bottom[1],))

        def spread(target: np.ndarray, given: np.ndarray) -> None:
            target[...] = given[:1] if op.shared else given[: target.size]

        given = InputArg(factors, layouts.plain((factors.count,)))
        each = DerivedArg(engine, channels, partial(call_recorder.call, spread), given, kept=True)
        kernel, ends = UnitLength(images, op.eps, tuning), self.in_and_out(layout, layout)
        self.forward_calls = [KernelCall(engine, kernel, *ends, each)]
