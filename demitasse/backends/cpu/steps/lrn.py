"""LRN and Normalize."""

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import InputArg, parameters
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import IMAGE_AXES, first_suitable, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, PackedKernel, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.lrn import (
    L2Normalize,
    LocalResponse,
    Response,
    WithinResponse,
    takes_lengths,
)
from demitasse.backends.step import Declined, Operands, decline_if


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

    def _kernel(self, layout: Layout) -> Response:
        op, tuning = self.op, kernel_tuning(self.engine)
        kind = LocalResponse if op.region == "ACROSS_CHANNELS" else WithinResponse
        images = suitable_images(layout, kind.takes, op.size, op.beta, tuning.width)
        return kind(images, op.size, op.alpha, op.k, tuning)

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        if at.propagate_down[0]:
            arguments = InputArg("src", at.bottom[0], layout), *self.gradients(layout, layout)
            self.backward_calls = [KernelCall(self.engine, self.kernel.backward, *arguments)]


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
        tuning, shape = kernel_tuning(self.engine), self.op.bottom

        def make(layout: Layout) -> L2Normalize:
            return L2Normalize(
                suitable_images(layout, takes_lengths, tuning.width), self.op.eps, tuning
            )

        expected = self.expected(self.at.bottom[0], shape)
        layout, kernel = first_suitable((expected, layouts.innermost(shape, 1)), make)
        self.kept_bytes = kernel.scales.nbytes
        packed = PackedKernel(lambda: kernel, take_scales=parameters(self.at.params)[0])
        ends = self.in_and_out(layout, layout)
        self.forward_calls = [KernelCall(self.engine, packed, *ends, code=kernel.code)]
