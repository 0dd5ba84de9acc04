"""Convolution by kernels of our own."""

from abc import abstractmethod
from typing import TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import GradArg, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    ConvKernels,
    ConvOperands,
    Folded,
    GradientOperands,
    rectifier_of,
)
from demitasse.backends.cpu.jit_adapters.convolutions import (
    IgemmKernels,
    conv_kernels,
    transposed_kernels,
)
from demitasse.backends.cpu.step import CpuStep, Runnable
from demitasse.backends.step import Operand, Operands, decline_if
from demitasse.backends.windows import ConvGeometry

C = TypeVar("C", bound=ops.Conv)


class WindowStep(CpuStep[C]):
    """A convolution, or the gradient of one, between an image and a map.

    Attributes:
        image: Shape of the image, (N, C, *spatial).
        maps: Shape of the map, (N, M, *positions).
        w: Shape of the weight, (M, C, *kernel), or (G, M / G, C / G, *kernel) of several groups.
    """

    needs_bottom = True

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

    def prepare_backward(self) -> None:
        if self.at.param_propagate_down[0]:
            self.backward_calls.append(self._weights_gradient())
        if self.at.propagate_down[0]:
            self.backward_calls.append(self._data_gradient())

    @abstractmethod
    def _weights_gradient(self) -> Runnable:
        """Return a call that adds to the gradients of weight and bias."""

    @abstractmethod
    def _data_gradient(self) -> Runnable:
        """Return a call that writes the gradient of the bottom."""


class ConvStep(WindowStep[ops.Conv]):
    """One bottom, one top; kernels for some convolutions, and implicit GEMM for all others."""

    def __init__(self, engine: Engine, op: ops.Conv, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.bias = layouts.plain((self.maps[1],)) if op.bias else None
        ends = self.image, self.maps
        self.general = IgemmKernels(engine, op, *ends, at.storage)
        self.kernels = conv_kernels(engine, op, *ends, training=at.backward, storage=at.storage)
        self.transposed = transposed_kernels(engine, op, *ends) if at.backward else None

    def prepare(self) -> None:
        self.kernels = self.kernels.within(self.image_layout, self.map_layout)
        self.declined = self.kernels.why
        self.forward_calls = [self.fused(self.at.top[0])]

    def with_activation(self, then: ops.Activation, target: Operand) -> Runnable:
        """Return the convolution with an activation after it, in the same layouts."""
        return self.fused(target, then)

    def fused(
        self,
        target: Operand,
        then: ops.Activation | None = None,
        *,
        other: Operand | None = None,
        slopes: Operand | None = None,
        folded: Folded | None = None,
    ) -> Runnable:
        """Return the forward pass and what follows.

        ``other`` is added before the activation. ``slopes`` are those of a PReLU in place of an
        activation. ``folded`` replaces the parameters.

        Raises:
            Declined: No kernel computes what follows.
        """
        at = self.at
        y = self.map_layout
        bias: InputArg | np.ndarray | None = folded.bias if folded else None
        if self.bias and not folded:
            bias = InputArg("bias", at.params[1], self.bias)
        channels = layouts.plain((self.maps[1],))
        in_place = other is not None and other.data_memory is target.data_memory
        decline_if(in_place, "a sum in place")
        operands = ConvOperands(
            source=InputArg("src", at.bottom[0], self.image_layout),
            target=OutputArg("dst", target, y),
            weight=at.params[0],
            layouts=at.layouts,
            bias=bias,
            then=rectifier_of(then),
            slopes=InputArg("slope", slopes, channels) if slopes else None,
            other=InputArg("added", other, y) if other else None,
            external_weights=folded is not None,
        )
        made = None if other else self.kernels.forward(operands)
        message = "PReLU behind kernels of few channels, which know ReLU"
        decline_if(made and slopes and not self.kernels.takes_slopes, message)
        message = "a sum after kernels that gain more than fusing the sum would"
        decline_if(other is not None and type(self.kernels) is not ConvKernels, message)
        made = made or self.general.forward(operands)
        if folded is not None:
            folded.update = made.update
        return made

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
        together = self.kernels.gradients(*operands, wanted) if any(wanted) else None
        if together is None:
            super().prepare_backward()
        else:
            self.backward_calls = [together]

    def _weights_operands(self) -> GradientOperands:
        at = self.at
        bias = self.bias if self.op.bias and at.param_propagate_down[1] else None
        return GradientOperands(
            InputArg("src", at.bottom[0], self.image_layout),
            InputArg("diff_dst", at.top[0], self.map_layout, diff=True),
            GradArg("diff_weights", at.params[0], layouts.plain(self.w)),
            GradArg("diff_bias", at.params[1], bias) if bias else None,
            at.layouts,
        )

    def _data_operands(self) -> ConvOperands:
        at = self.at
        source = InputArg("diff_dst", at.top[0], self.map_layout, diff=True)
        target = OutputArg("diff_src", at.bottom[0], self.image_layout, diff=True)
        return ConvOperands(source, target, at.params[0], at.layouts)

    def _weights_gradient(self) -> Runnable:
        operands = self._weights_operands()
        own = (self.transposed or self.kernels).weights(operands)
        return own or self.general.weights(operands)

    def _data_gradient(self) -> Runnable:
        operands = self._data_operands()
        own = (self.transposed or self.kernels).data(operands)
        return own or self.general.data(operands)
