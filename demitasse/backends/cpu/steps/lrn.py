"""LRN and Normalize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, Argument, InputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import IMAGE_AXES, KernelCall, kernel_tuning
from demitasse.backends.cpu.jit_adapters.unary import first_suitable, map_call, suitable_images
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep, Derived
from demitasse.backends.cpu.steps.epilogue import values
from demitasse.backends.step import Declined, Operand, Operands, decline_if

if TYPE_CHECKING:
    from demitasse.backends.kernels.l2_normalize import L2Normalize
    from demitasse.backends.kernels.lrn import Response


class LRNStep(CpuStep[ops.LRN]):
    """One layout for everything, across channels or within them."""

    needs_bottom = True

    def prepare(self) -> None:
        op = self.op
        known = layouts.candidates(self.expected(self.at.bottom[0], op.bottom))
        try:
            self.layout, self.jit_forward = first_suitable(known, self._kernel)
        except Declined as declined:
            message = f"{op.region} of {op.size} to {op.beta:g}: {declined}"
            raise Declined(message) from None
        ends = self.in_and_out(self.layout, self.layout)
        self.forward_calls = [self._call(self.jit_forward.forward, ends)]

    def _kernel(self, layout: Layout) -> Response:
        from demitasse.backends.kernels import lrn

        op, tuning = self.op, kernel_tuning(self.engine)
        across = op.region == "ACROSS_CHANNELS"
        takes = lrn.takes if across else lrn.takes_within
        kind = lrn.LocalResponse if across else lrn.WithinResponse
        images = suitable_images(layout, takes, tuning.width, op.size, op.beta)
        return kind(images, op.size, op.alpha, op.k, tuning)

    def _call(self, run: Callable[..., None], arguments: Sequence[Argument]) -> KernelCall:
        kernel = self.jit_forward
        size = kernel.scratch_size
        return KernelCall(self.engine, arguments, kernel.code, run, scratch=size)

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        if at.propagate_down[0]:
            source = InputArg(Arg.SRC, at.bottom[0], layout)
            arguments = source, *self.gradients(layout, layout)
            self.backward_calls = [self._call(self.jit_forward.backward, arguments)]


class L2NormalizeStep(CpuStep[ops.L2Normalize]):
    """In the layout of the channels that is found, or with the channels last; in place or not."""

    def __init__(self, engine: Engine, op: ops.L2Normalize, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(at.backward, "a gradient is wanted; our kernel of lengths runs forward")
        if op.across or len(op.bottom) != IMAGE_AXES:
            what = "a whole item's length" if op.across else f"{len(op.bottom)} axes"
            message = f"{what}; our kernel takes that of each pixel of (N, C, H, W)"
            raise Declined(message)

    def prepare(self) -> None:
        from demitasse.backends.kernels.l2_normalize import L2Normalize, takes

        at, engine = self.at, self.engine
        tuning = kernel_tuning(engine)

        def make(layout: Layout) -> L2Normalize:
            return L2Normalize(suitable_images(layout, takes, tuning.width), self.op.eps, tuning)

        expected = self.expected(at.bottom[0], self.op.bottom)
        last = layouts.innermost(self.op.bottom, 1)
        layout, kernel = first_suitable((expected, last), make)
        self.derived, self.kept_bytes = [_Scales(at.params, kernel)], kernel.scales.nbytes
        self.forward_calls = [map_call(engine, *self.in_and_out(layout, layout), kernel)]


class _Scales(Derived):
    """The scales of a kernel, copied from the parameter."""

    def __init__(self, params: Sequence[Operand], kernel: L2Normalize) -> None:
        super().__init__(params)
        self._kernel = kernel

    def _derive(self) -> None:
        self._kernel.scales[...] = values(self._params[0])
