"""Deconvolution: the data gradient of a convolution from the top to the bottom.

The bottom's gradient is that convolution's forward pass.
"""

from contextlib import suppress

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import GradArg, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters import calls
from demitasse.backends.cpu.jit_adapters.convolutions import IgemmKernels, conv_kernels
from demitasse.backends.cpu.jit_adapters.winograd import WinogradKernels
from demitasse.backends.cpu.step import Runnable
from demitasse.backends.cpu.steps.convolution import WindowStep
from demitasse.backends.kernels.igemm import ImplicitGemm, dense_schedule, row_images
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined
from demitasse.backends.windows import ConvGeometry


class DeconvStep(WindowStep[ops.Deconv]):
    """Bottom = maps, top = image, as the convolution sees them."""

    backward_replayable = False

    def geometry(self) -> ConvGeometry:
        return ConvGeometry.between(self.op, self.op.top, self.op.bottom)

    def prepare(self) -> None:
        engine, op, at = self.engine, self.op, self.at
        turned = ops.Conv(
            dtype=op.dtype, bottom=op.top, top=op.bottom, axis=op.axis, kernel=op.kernel,
            stride=op.stride, pad=op.pad, dilation=op.dilation, group=op.group, bias=False,
            after=op.after,
        )  # fmt: skip
        self.general = IgemmKernels(engine, turned, self.image, self.maps)
        self.kernels = self._kernels(turned) if at.backward else None
        each = layouts.plain((self.image[1],))
        bias = InputArg("bias", at.params[1], each) if op.bias else None
        ends = self.in_and_out(self.map_layout, self.image_layout)
        operands = calls.ConvOperands(*ends, at.params[0], at.layouts, bias)
        self.forward_calls = [self._call(operands)]

    def _kernels(self, turned: ops.Conv) -> calls.ConvKernels | None:
        """Return Winograd's kernels of that convolution, if it has some."""
        kernels = conv_kernels(self.engine, turned, self.image, self.maps, training=True)
        if not isinstance(kernels, WinogradKernels):
            return None
        return kernels.within(self.image_layout, self.map_layout)

    def _call(self, operands: calls.ConvOperands) -> Runnable:
        if not self.op.after and overlaps(self.op):
            with suppress(Declined):
                tuning = calls.kernel_tuning(self.engine, "overlap_add")
                return OverlapCall(self.engine, self.op, operands, tuning)
        own = self.kernels.data(operands) if self.kernels else None
        return own or self.general.data(operands)

    def _weights_gradient(self) -> Runnable:
        at = self.at
        operands = calls.GradientOperands(
            InputArg("src", at.top[0], self.image_layout, diff=True),
            InputArg("diff_dst", at.bottom[0], self.map_layout),
            GradArg("diff_weights", at.params[0], layouts.plain(self.w)),
            None,
            at.layouts,
        )
        own = self.kernels.weights(operands) if self.kernels else None
        return own or self.general.weights(operands)

    def _data_gradient(self) -> Runnable:
        at = self.at
        source = InputArg("src", at.top[0], self.image_layout, diff=True)
        target = OutputArg("dst", at.bottom[0], self.map_layout, diff=True)
        operands = calls.ConvOperands(source, target, at.params[0], at.layouts)
        own = self.kernels.forward(operands) if self.kernels else None
        return own or self.general.forward(operands)

    def backward(self) -> None:
        super().backward()
        if self.op.bias and self.at.param_propagate_down[1]:
            dy = self.at.top[0].read_diff().reshape(*self.image[:2], -1)
            self.at.params[1].add_diff(np.add.reduce(np.add.reduce(dy, axis=2), axis=0))


def overlaps(op: ops.Deconv) -> bool:
    """Return whether a deconvolution gives few channels, and its windows leave no gaps.

    A panel of so few filters would be padded.
    """
    images = len(op.bottom) == calls.IMAGE_AXES and op.axis == 1
    alone = op.group == 1 and all(n == 1 for n in op.dilation)
    pairs, most = list(zip(op.kernel, op.stride, strict=True)), layouts.BLOCK
    dense, whole = all(k >= s for k, s in pairs), all(k % s == 0 for k, s in pairs)
    return images and alone and dense and (op.top[1] < most if whole else op.top[1] <= most // 2)


class OverlapCall(calls.PackedConvCall):
    """A deconvolution of one group over two axes, with the channels last."""

    def __init__(
        self, engine: Engine, op: ops.Deconv, operands: calls.ConvOperands, tuning: Tuning
    ) -> None:
        from demitasse.backends.kernels.col2im import Col2Im

        n, c, *bottom = op.bottom
        _, m, *top = op.top
        rows, outputs = n * bottom[0] * bottom[1], op.kernel[0] * op.kernel[1] * m
        self._filters, self._size = (m, c, *op.kernel), rows * outputs
        ends = row_images(rows, c), row_images(rows, outputs)
        self._gemm = ImplicitGemm(dense_schedule(rows, c, outputs, tuning), *ends)
        self._packed = aligned(self._gemm.size)
        kernel = Col2Im((n, *bottom), (n, *top, m), op.kernel, op.stride, op.pad, tuning)
        code = f"{self._gemm.schedule.code}, overlaps llvm:{tuning.instructions}"
        super().__init__(engine, operands, code, lambda: kernel)

    def _take(self, weights: np.ndarray) -> None:
        m, c, *kernel = self._filters
        rows = weights[: m * c * kernel[0] * kernel[1]].reshape(c, m, *kernel)
        ordered = np.ascontiguousarray(rows.transpose(2, 3, 1, 0)).reshape(-1, c, 1)
        self._gemm.pack(ordered, self._packed)

    @property
    def kept_bytes(self) -> int:
        return self._packed.nbytes

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        windows, scratch = self.engine.workspaces(self._size, self._gemm.scratch_size)
        self._gemm(source, windows, self._packed, None, scratch)
        self.kernel(windows, target)
