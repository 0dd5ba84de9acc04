"""Deconvolution: the data gradient of a convolution from the top to the bottom.

The bottom's gradient is that convolution's forward pass.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu.convolutions import (
    AmxKernels,
    ConvCase,
    ConvKernels,
    ConvOperands,
    conv_kernels,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import IMAGE_AXES
from demitasse.backends.cpu.kernel_calls import KernelCall, PackedKernel, kernel_tuning
from demitasse.backends.cpu.steps.convolution import WindowStep
from demitasse.backends.kernels.col2im import Col2Im
from demitasse.backends.kernels.igemm import ImplicitGemm, dense_schedule, row_images
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined, Operands, decline_if

BLOCK = 16
"""Floats of the widest vectors; panels of fewer filters would be padded."""


class DeconvStep(WindowStep[ops.Deconv]):
    """Bottom = map, top = image, as the convolution sees them."""

    follows_bf16 = True

    def __init__(self, engine: Engine, op: ops.Deconv, at: Operands) -> None:
        super().__init__(engine, op, at)
        turned = ops.Conv(**{**vars(op), "bottom": op.top, "top": op.bottom, "bias": False})
        case = ConvCase(engine, turned, self.image, self.maps, replace(at, storage="float"))
        self.kernels = conv_kernels(case)[0]
        with suppress(Declined):
            own = ConvCase(engine, turned, self.image, self.maps, at)
            self.kernels = [AmxKernels(own), *self.kernels]
        with suppress(Declined):
            self.kernels = [OverlapKernels(op, case), *self.kernels]

    def prepare(self) -> None:
        operands = ConvOperands(*self.in_and_out(self.x, self.y), self.weight, self.bias)
        self.forward_calls = [self.first_of(lambda one: one.data(operands))]


class OverlapKernels(ConvKernels):
    """Deconvolutions of one group over two axes that give few channels, by sums of windows.

    A panel of so few filters would be padded. Windows leave no gaps.
    """

    def __init__(self, op: ops.Deconv, case: ConvCase) -> None:
        super().__init__(case)
        images = len(op.bottom) == IMAGE_AXES and op.axis == 1
        alone = op.group == 1 and all(n == 1 for n in op.dilation)
        pairs, most = list(zip(op.kernel, op.stride, strict=True)), BLOCK
        dense, whole = all(k >= s for k, s in pairs), all(k % s == 0 for k, s in pairs)
        few = case.x[1] < most if whole else case.x[1] <= most // 2
        message = "sums of windows give few channels of one group, without gaps"
        decline_if(op.after or not (images and alone and dense and few), message)
        self.op, self.tuning = op, kernel_tuning(case.engine, "overlap_add")

    def data(self, operands: ConvOperands) -> KernelCall:
        overlap = OverlapAdd(self.op, self.tuning)
        kernel = PackedKernel(
            lambda: overlap, update=operands.weight, take_offsets=operands.offsets
        )
        ends = operands.source, operands.target
        return KernelCall(self.engine, kernel, *ends, code=overlap.code)


class OverlapAdd:
    """A deconvolution of one group over two axes, with the channels last."""

    def __init__(self, op: ops.Deconv, tuning: Tuning) -> None:
        n, c, *bottom = op.bottom
        _, m, *top = op.top
        rows, outputs = n * bottom[0] * bottom[1], op.kernel[0] * op.kernel[1] * m
        self._filters = m, c, *op.kernel
        self._size = -(-rows * outputs // BLOCK) * BLOCK  # so that both are aligned
        ends = row_images(rows, c), row_images(rows, outputs)
        self._gemm = ImplicitGemm(dense_schedule(rows, c, outputs, tuning), *ends)
        self._packed = aligned(self._gemm.size)
        self._sums = Col2Im((n, *bottom), (n, *top, m), op.kernel, op.stride, op.pad, tuning)
        self.code = f"{self._gemm.schedule.code}, {self._sums.code}"
        self.take_offsets, self.nbytes = self._sums.take_offsets, self._packed.nbytes
        self.scratch_size = self._gemm.scratch_size + self._size

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order."""
        m, c, *kernel = self._filters
        rows = weights[: m * c * kernel[0] * kernel[1]].reshape(c, m, *kernel)
        ordered = np.ascontiguousarray(rows.transpose(2, 3, 1, 0)).reshape(-1, c, 1)
        self._gemm.pack(ordered, self._packed)

    def __call__(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        """Write the sums of all windows."""
        windows = scratch[: self._size]
        self._gemm(source, windows, self._packed, None, scratch[self._size :])
        self._sums(windows, target)
