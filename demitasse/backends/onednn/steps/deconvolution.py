"""Deconvolution: the data gradient of a convolution from the top to the bottom.

The bottom's gradient is that convolution's forward pass.
"""

from contextlib import suppress

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.arguments import Call, GradArg, InputArg, OutputArg, ParamArg
from demitasse.backends.onednn.jit_adapters import calls
from demitasse.backends.onednn.jit_adapters.convolutions import conv_kernels
from demitasse.backends.onednn.jit_adapters.winograd import WinogradKernels
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout, layout_of
from demitasse.backends.onednn.library.primitive import BLOCK, CodeFamily, Description
from demitasse.backends.onednn.step import Runnable
from demitasse.backends.onednn.steps.convolution import ConvPass, WindowStep
from demitasse.backends.step import Declined, decline_if
from demitasse.backends.windows import ConvGeometry


class DeconvStep(WindowStep[ops.Deconv]):
    """Bottom = maps, top = image, as the convolution sees them."""

    backward_replayable = False

    def geometry(self) -> ConvGeometry:
        return ConvGeometry.between(self.op, self.op.top, self.op.bottom)

    def prepare(self) -> None:
        engine, op, at = self.engine, self.op, self.at
        jit_call = self._jit_call()
        if jit_call is None or at.backward:
            self.hint = self._describe("forward")
        if at.backward:
            self.kernels = self._kernels()
            y, _, x = self.hint.layouts(Query.SRC, Query.WEIGHTS, Query.DST)
            jit_call = jit_call or self.kernels.data(self._operands(x, y))
        if jit_call is not None:
            self.forward_calls = [jit_call]
            return
        found = self._describe("backward_data", self.hint)
        y, w, x = found.layouts(Query.DIFF_SRC, Query.WEIGHTS, Query.DIFF_DST)
        if op.bias and self._alone() and found.family is CodeFamily.BRGEMM:
            with suppress(Declined):
                self.forward_calls = [self._with_bias(found)]
                return
        arguments = [
            InputArg(Arg.DIFF_DST, at.bottom[0], x),
            ParamArg(Arg.WEIGHTS, at.params[0], w),
            OutputArg(Arg.DIFF_SRC, at.top[0], y),
        ]
        self.forward_calls = [Call(engine, found, arguments)]
        if op.bias:
            self._prepare_bias(y, found.descriptor(Query.DIFF_SRC))

    def _alone(self) -> bool:
        """Return whether each output is of one window alone.

        Where windows overlap and there are many channels, the library's strided deconvolution adds
        up an output in several parts, and adds the bias with each of them (oneDNN 3.2).
        """
        op = self.op
        apart = all(size <= step for size, step in zip(op.kernel, op.stride, strict=True))
        return apart and all(n == 1 for n in op.dilation)

    def _jit_call(self) -> Runnable | None:
        """Return the forward pass in kernels of our own; None where none pays or can be made."""
        engine, op = self.engine, self.op
        if op.after or not overlaps(op):
            return None
        x, y = (engine.innermost_layout(shape, 1) for shape in (op.bottom, op.top))
        operands = self._operands(x, y)
        with suppress(Declined):
            return OverlapCall(engine, op, operands, calls.kernel_tuning(engine, "overlap_add"))
        return None

    def _kernels(self) -> calls.ConvKernels:
        """Return the kernels of that convolution, whose passes are those of a deconvolution."""
        op, (x, _, y) = self.op, self.hint.layouts(Query.SRC, Query.WEIGHTS, Query.DST)
        turned = ops.Conv(
            dtype=op.dtype, bottom=op.top, top=op.bottom, axis=op.axis, kernel=op.kernel,
            stride=op.stride, pad=op.pad, dilation=op.dilation, group=op.group, bias=False,
            after=op.after,
        )  # fmt: skip
        kernels = conv_kernels(self.engine, turned, self.image, self.maps, training=True)
        if not isinstance(kernels, WinogradKernels):
            return calls.ConvKernels(self.engine, self.image)
        return kernels.within(x, y)

    def _operands(self, x: Layout, y: Layout) -> calls.ConvOperands:
        """Return the operands of the forward pass in kernels."""
        at, bias = self.at, None
        if self.op.bias:
            bias = InputArg(Arg.BIAS, at.params[1], self.engine.plain((self.image[1],)))
        return calls.ConvOperands(*self.in_and_out(x, y), at.params[0], at.layouts, bias)

    kind = Pass.TRAINING  # what gradients refer to

    def _describe(self, part: ConvPass, hint: Description | None = None) -> Description:
        """Ask for a primitive of the convolution, in the layouts that the library prefers."""
        image, w, maps = map(self.engine.any, (self.image, self.w, self.maps))
        return self.describe(part, image, w, maps, hint=hint)

    def _with_bias(self, plain: Description) -> Call:
        """Return the library's deconvolution, which runs the same code and adds the bias.

        Raises:
            Declined: It would run other code, or take the weight in another layout.
        """
        engine, at, axis = self.engine, self.at, len(self.w) - len(self.op.kernel) - 2
        y, w, x = plain.layouts(Query.DIFF_SRC, Query.WEIGHTS, Query.DIFF_DST)
        turned = (*self.w[:axis], self.w[axis + 1], self.w[axis], *self.w[axis + 2 :])
        bias = engine.plain((self.image[1],))
        # descriptors not of the layouts: one block of channels lies like channels last
        kind = Pass.TRAINING if at.backward else Pass.INFERENCE
        ends = plain.descriptor(Query.DIFF_DST), engine.any(turned), bias
        result, method = plain.descriptor(Query.DIFF_SRC), Algorithm.DECONVOLUTION
        found = engine.describe("deconvolution_forward", kind, method, *ends, result, *self.window)
        weights = found.layout(Query.WEIGHTS)
        message = f"{found.implementation} in place of {plain.implementation}"
        decline_if(found.family is not plain.family or not _lies_like(weights, w, axis), message)
        weight = ParamArg(Arg.WEIGHTS, at.params[0], w)
        weight.descriptor = found.descriptor(Query.WEIGHTS)
        arguments = [
            InputArg(Arg.SRC, at.bottom[0], x),
            weight,
            InputArg(Arg.BIAS, at.params[1], bias),
            OutputArg(Arg.DST, at.top[0], y),
        ]
        return Call(engine, found, arguments)

    def _prepare_bias(self, layout: Layout, images: int) -> None:
        """Add the bias in place, one value for each channel.

        The library's descriptor ``images`` of the top is needed because one block of channels lies
        like channels last, for which the library has other code.
        """
        shape = (1, self.image[1], *(1 for _ in self.op.kernel))
        bias = self.engine.plain(shape)
        try:
            found = self._describe_sum(images, bias.handle)
            values = InputArg(Arg.SECOND_SRC, self.at.params[1], bias)
        except Declined:  # to blocks of channels the library adds values in blocks, if they say so
            found = self._describe_sum(images, self.engine.any(shape))
            descriptor = found.descriptor(Query.SRC, 1)
            bias = layout_of(self.engine.library, descriptor)
            values = InputArg(Arg.SECOND_SRC, self.at.params[1], bias)
            values.descriptor = descriptor
        top = self.at.top[0]
        before, after = InputArg(Arg.SRC, top, layout), OutputArg(Arg.DST, top, layout)
        before.descriptor = after.descriptor = images
        arguments = [before, values, after]
        self.forward_calls.append(Call(self.engine, found, arguments))

    def _describe_sum(self, images: int, bias: int) -> Description:
        """Ask for the sum of images and one value for each channel."""
        return self.engine.describe("binary", Algorithm.ADD, images, bias, images)

    def _weights_gradient(self) -> Runnable:
        engine, at = self.engine, self.at
        found = self._describe("backward_weights", self.hint)
        dy, w, x = found.layouts(Query.SRC, Query.DIFF_WEIGHTS, Query.DIFF_DST)
        source = InputArg(Arg.SRC, at.top[0], dy, diff=True)
        bottom = InputArg(Arg.DIFF_DST, at.bottom[0], x)
        plain, packed = (
            GradArg(Arg.DIFF_WEIGHTS, at.params[0], layout) for layout in (engine.plain(self.w), w)
        )
        jit_call = self.kernels.weights(
            calls.GradientOperands(source, bottom, plain, None, at.layouts)
        )
        return jit_call or Call(engine, found, [source, bottom, packed])

    def _data_gradient(self) -> Runnable:
        at, found = self.at, self.hint
        dy, w, dx = found.layouts(Query.SRC, Query.WEIGHTS, Query.DST)
        source = InputArg(Arg.SRC, at.top[0], dy, diff=True)
        target = OutputArg(Arg.DST, at.bottom[0], dx, diff=True)
        operands = calls.ConvOperands(source, target, at.params[0], at.layouts)
        weight = ParamArg(Arg.WEIGHTS, at.params[0], w)
        jit_call = self.kernels.forward(operands, None)
        return jit_call or Call(self.engine, found, [source, weight, target])

    def backward(self) -> None:
        super().backward()
        if self.op.bias and self.at.param_propagate_down[1]:
            dy = self.at.top[0].read_diff().reshape(*self.image[:2], -1)
            self.at.params[1].add_diff(np.add.reduce(np.add.reduce(dy, axis=2), axis=0))


def _lies_like(turned: Layout, layout: Layout, axis: int) -> bool:
    """Return whether the elements lie as in a layout with this axis and the next one exchanged."""
    if turned.plain or layout.plain:
        return False
    other = {axis: axis + 1, axis + 1: axis}
    parts = tuple((other.get(place, place), *rest) for place, *rest in turned.key[1])
    return turned.size == layout.size and parts == layout.key[1]


def overlaps(op: ops.Deconv) -> bool:
    """Return whether a deconvolution gives few channels, and its windows leave no gaps.

    The library pads few channels to sixteen, and multiplies with the padding.
    """
    images = len(op.bottom) == calls.IMAGE_AXES and op.axis == 1
    alone = op.group == 1 and all(n == 1 for n in op.dilation)
    pairs = list(zip(op.kernel, op.stride, strict=True))
    dense, whole = all(k >= s for k, s in pairs), all(k % s == 0 for k, s in pairs)
    return images and alone and dense and (op.top[1] < BLOCK if whole else op.top[1] <= BLOCK // 2)


class OverlapCall(calls.PackedConvCall):
    """A deconvolution of one group over two axes, with the channels last."""

    def __init__(
        self, engine: Engine, op: ops.Deconv, operands: calls.ConvOperands, tuning: Tuning
    ) -> None:
        from demitasse.backends.kernels.col2im import Col2Im

        n, c, *bottom = op.bottom
        _, m, *top = op.top
        rows, outputs = n * bottom[0] * bottom[1], op.kernel[0] * op.kernel[1] * m
        self._filters = m, c, *op.kernel
        x, self._plain, y = (
            engine.plain(shape) for shape in ((rows, c), (outputs, c), (rows, outputs))
        )
        found = engine.describe(
            "inner_product_forward", Pass.INFERENCE, x, engine.any((outputs, c)), None, y
        )
        self._weight, self._size = found.layout(Query.WEIGHTS), y.size
        self._packed = aligned(self._weight.size)
        uses = (Arg.SRC, x.handle), (Arg.WEIGHTS, self._weight.handle), (Arg.DST, y.handle)
        self._product = found.primitive(engine.stream, uses)
        self._product.bind(self._product.place(Arg.WEIGHTS), self._packed)
        images = (n, *bottom), (n, *top, m)
        kernel = Col2Im(*images, op.kernel, op.stride, op.pad, tuning)
        code = f"{found.implementation}, overlaps llvm:{tuning.instructions}"
        super().__init__(engine, operands, code, lambda: kernel)

    def _take(self, weights: np.ndarray) -> None:
        m, c, *kernel = self._filters
        rows = weights.reshape(c, m, *kernel).transpose(2, 3, 1, 0)
        ordered = np.ascontiguousarray(rows).reshape(-1)
        self.engine.reorder(ordered, self._plain, self._packed, self._weight)

    @property
    def kept_bytes(self) -> int:
        return self._packed.nbytes

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        [windows] = self.engine.workspaces(self._size)
        product = self._product
        product.bind(product.place(Arg.SRC), source)
        product.bind(product.place(Arg.DST), windows)
        product.run()
        self.kernel(windows, target)
