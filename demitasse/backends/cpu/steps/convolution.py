"""Convolution by kernels of our own."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import GradArg, InputArg, OutputArg, Source
from demitasse.backends.cpu.convolutions import (
    ConvCase,
    ConvKernels,
    ConvOperands,
    GradientOperands,
    conv_kernels,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable
from demitasse.backends.cpu.kernel_calls import KernelCall
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.epilogue import (
    Epilogue,
    folded_offsets,
    folded_weights,
    rectifier_of,
)
from demitasse.backends.step import Declined, Operands, decline_if
from demitasse.backends.windows import ConvGeometry

C = TypeVar("C", bound=ops.Conv)


class WindowStep(CpuStep[C]):
    """A convolution, or the gradient of one, between an image and a map.

    Attributes:
        kernels: Kernels of the convolution, the first of which are tried first.
        image: Shape of the image, (N, C, *spatial).
        maps: Shape of the map, (N, M, *positions).
        w: Shape of the weight, (M, C, *kernel), or (G, M / G, C / G, *kernel) of several groups.
    """

    needs_bottom = True

    kernels: Sequence[ConvKernels]

    def __init__(self, engine: Engine, op: C, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(len(at.bottom) != 1, f"{len(at.bottom)} bottoms; the Step takes one")
        g = self.geometry()
        self.image, self.maps = (g.n, g.channels, *g.spatial), (g.n, g.maps, *g.positions)
        shape = (g.maps // g.group, g.channels // g.group, *op.kernel)
        self.w = shape if g.group == 1 else (g.group, *shape)
        # with the channels last
        self.image_layout, self.map_layout = (
            layouts.innermost(each, 1) for each in (self.image, self.maps)
        )

    def geometry(self) -> ConvGeometry:
        """Return the sizes of image and map."""
        return ConvGeometry.between(self.op, self.op.bottom, self.op.top)

    @property
    def weight(self) -> InputArg:
        """The weight, in C order."""
        return InputArg(self.at.params[0], layouts.plain(self.w))

    def first_of(self, make: Callable[[ConvKernels], KernelCall]) -> KernelCall:
        """Return the call of the first kernels that do not decline it."""
        return first_suitable(self.kernels, make)[1]

    def prepare_backward(self) -> None:
        operands = self._weights_operands()
        if self.at.param_propagate_down[0]:
            self.backward_calls.append(self.first_of(lambda one: one.weights(operands)))
        if self.at.propagate_down[0]:
            self.backward_calls.append(self._data_gradient())

    @abstractmethod
    def _weights_operands(self) -> GradientOperands:
        """Return the operands of the gradients of weight and bias."""

    @abstractmethod
    def _data_gradient(self) -> KernelCall:
        """Return a call that writes the gradient of the bottom."""


class ConvStep(WindowStep[ops.Conv]):
    """One bottom, one top; kernels for some convolutions, and implicit GEMM for all others."""

    def __init__(self, engine: Engine, op: ops.Conv, at: Operands) -> None:
        super().__init__(engine, op, at)
        ends = self.image, self.maps
        case = ConvCase(engine, op, *ends, at.layouts, training=at.backward, storage=at.storage)
        self.kernels, self.declined = conv_kernels(case)

    def prepare(self) -> None:
        self.forward_calls = [self.fused(Epilogue(self.at.top[0]))]

    def fused(self, epilogue: Epilogue) -> KernelCall:
        """Return the forward pass and what follows.

        Raises:
            Declined: No kernel computes what follows.
        """
        target, other, slopes = epilogue.target, epilogue.other, epilogue.slopes
        in_place = other is not None and other.data_memory is target.data_memory
        decline_if(in_place, "a sum in place")
        weight, offsets = self.folded(epilogue)
        operands = ConvOperands(
            InputArg(self.at.bottom[0], self.image_layout),
            OutputArg(target, self.map_layout),
            weight,
            offsets,
            rectifier_of(epilogue.then),
            InputArg(slopes, self._channels) if slopes else None,
            InputArg(other, self.map_layout) if other else None,
        )
        message = "a sum after kernels that gain more than fusing the sum would"
        decline_if(other is not None and len(self.kernels) > 1, message)
        return self.first_of(lambda one: one.forward(operands))

    def folded(self, epilogue: Epilogue) -> tuple[Source, Source | None]:
        """Return weights and offsets, with the factors and offsets after them folded in."""
        links = epilogue.links
        decline_if(links and self.op.axis != 1, "factors of another axis than the channels")
        message = "BatchNorm takes statistics of the batch; given ones are folded into weights"
        decline_if(epilogue.uses_batch_stats, message)
        bias = InputArg(self.at.params[1], self._channels) if self.op.bias else None
        if not links:
            return self.weight, bias
        engine, channels = self.engine, self.maps[1]
        weight = folded_weights(engine, channels, links, self.weight)
        return weight, folded_offsets(engine, channels, links, bias)

    @property
    def _channels(self) -> layouts.Layout:
        return layouts.plain((self.maps[1],))

    @property
    def backward_replayable(self) -> bool:
        return not self._adds_bias_alone

    @property
    def _adds_bias_alone(self) -> bool:
        """True if there is a gradient of the bias, and none of the weight."""
        wanted = self.at.param_propagate_down
        return self.op.bias and wanted[1] and not wanted[0]

    def backward(self) -> None:
        super().backward()
        at = self.at
        if self._adds_bias_alone:
            # the kernel that sums it up computes the weight's gradient too
            dy = at.top[0].read_diff().reshape(*self.maps[:2], -1)
            at.params[1].add_diff(np.add.reduce(np.add.reduce(dy, axis=2), axis=0))

    def prepare_backward(self) -> None:
        wanted = self.at.param_propagate_down[0], self.at.propagate_down[0]
        operands = self._weights_operands(), self._data_operands()
        try:
            self.backward_calls = [self.kernels[0].gradients(*operands, wanted)]
        except Declined:
            super().prepare_backward()

    def _weights_operands(self) -> GradientOperands:
        at = self.at
        bias = None
        if self.op.bias and at.param_propagate_down[1]:
            bias = GradArg(at.params[1], self._channels)
        return GradientOperands(
            InputArg(at.bottom[0], self.image_layout),
            InputArg(at.top[0], self.map_layout, diff=True),
            GradArg(at.params[0], layouts.plain(self.w)),
            bias,
        )

    def _data_operands(self) -> ConvOperands:
        at = self.at
        source = InputArg(at.top[0], self.map_layout, diff=True)
        target = OutputArg(at.bottom[0], self.image_layout, diff=True)
        return ConvOperands(source, target, self.weight)

    def _data_gradient(self) -> KernelCall:
        operands = self._data_operands()
        return self.first_of(lambda one: one.data(operands))
