"""Convolution by the library or by kernels of our own."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.arguments import (
    Argument,
    Call,
    GradArg,
    InputArg,
    OutputArg,
    ParamArg,
)
from demitasse.backends.onednn.jit_adapters.calls import (
    ConvOperands,
    Folded,
    GradientOperands,
    rectifier_of,
)
from demitasse.backends.onednn.jit_adapters.convolutions import (
    DirectKernels,
    conv_kernels,
    transposed_kernels,
)
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout, dims
from demitasse.backends.onednn.library.primitive import (
    BLOCK,
    CodeFamily,
    Description,
    channel_blocks,
    lent_attributes,
)
from demitasse.backends.onednn.step import Fixed, OnednnStep, Runnable, op_title
from demitasse.backends.onednn.steps.activation import rectifying, sloping
from demitasse.backends.onednn.steps.pooling import PoolStep
from demitasse.backends.step import Declined, Operand, Operands, decline_if
from demitasse.backends.windows import ConvGeometry

C = TypeVar("C", bound=ops.Conv)

ConvPass = Literal["forward", "backward_data", "backward_weights"]


class WindowStep(OnednnStep[C]):
    """A convolution, or the gradient of one, between an image and a map.

    Attributes:
        image: Shape of the image, (N, C, *spatial).
        maps: Shape of the map, (N, M, *positions).
        w: Shape of the weight, (M, C, *kernel), or (G, M / G, C / G, *kernel) of several groups.
        window: Strides, dilations and pads, before and after, as a primitive takes them.
    """

    needs_bottom = True

    def __init__(self, engine: Engine, op: C, at: Operands) -> None:
        super().__init__(engine, op, at)
        axes = len(op.kernel)
        decline_if(
            not 1 <= axes <= MOST_AXES, f"{axes} spatial axes; oneDNN takes 1 to {MOST_AXES}"
        )
        decline_if(len(at.bottom) != 1, f"{len(at.bottom)} bottoms; oneDNN's Step takes one")
        g = self.geometry()
        self.image, self.maps = (g.n, g.channels, *g.spatial), (g.n, g.maps, *g.positions)
        shape = (g.maps // g.group, g.channels // g.group, *op.kernel)
        self.w = shape if g.group == 1 else (g.group, *shape)
        gaps = dims(tuple(d - 1 for d in op.dilation))
        self.window = [dims(op.stride), gaps, dims(op.pad), dims(op.after or op.pad)]

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

    def describe(
        self,
        part: ConvPass,
        x: int,
        w: int,
        y: int,
        bias: Layout | None = None,
        hint: Description | None = None,
        attributes: int | None = None,
    ) -> Description:
        """Ask for a primitive of this convolution.

        ``hint`` is the forward primitive, for gradients. There is no bias for ``backward_data``.

        Raises:
            Declined: The library has no good primitive.
        """
        offsets = () if part == "backward_data" else (bias,)
        return self.engine.describe(
            f"convolution_{part}",
            *([self.kind] if part == "forward" else []),
            Algorithm.CONVOLUTION,
            *(x, w, *offsets, y, *self.window),
            *([hint] if hint else []),
            attributes=attributes,
        )


EACH_CHANNEL = 1 << 1
"""By which axis slopes differ, as a mask."""

WASTE = 1.25
"""Padded arithmetic, as a multiple of the real one, from which on another layout is looked for."""


Image = Callable[[ops.Shape], int]
"""Returns the descriptor of a stack of images."""


class ConvStep(WindowStep[ops.Conv]):
    """One bottom, one top; each primitive in the layouts that are fastest for it."""

    def __init__(self, engine: Engine, op: ops.Conv, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.bias = engine.plain((self.maps[1],)) if op.bias else None
        self.images: tuple[Image, Image] = (engine.any, engine.any)
        ends = self.image, self.maps
        self.kernels = conv_kernels(
            engine, op, *ends, at.followers, training=at.backward, storage=at.storage
        )
        self.transposed = transposed_kernels(engine, op, *ends) if at.backward else None

    def prepare(self) -> None:
        found, top = self._choose(), self.at.top[0]
        self.hint, self.layouts = found, found.layouts(Query.SRC, Query.WEIGHTS, Query.DST)
        x, _, y = self.layouts
        self.kernels = self.kernels.within(x, y)
        self.declined = self.kernels.why
        self.forward_calls = [self._jit_call(top) or self._call(found, top)]

    def _choose(self) -> Description:
        """Return the forward primitive, with the channels last where blocks of them waste time.

        The library's choice for training is blocks. 20 channels take two of 16, and 40% of the
        arithmetic is on padding; an image's only channel becomes a block of 8. With the channels
        last there is no padding.
        """
        likes, last = self.engine.any, partial(self.engine.innermost, axis=1)
        if self.at.backward and self._pads_blocks():
            with suppress(Declined):
                found = self._in(last, last)
                if found.family is CodeFamily.BRGEMM:
                    return found
        kernels, training = self.kernels, self.at.backward
        if kernels.trains_channels_last if training else kernels.channels_last:
            with suppress(Declined):
                return self._in(last, last)
        if self._takes_blocks():
            with suppress(Declined):
                found = self._in(self._blocks, self._blocks)
                if found.family is CodeFamily.DIRECT:
                    return found
        if self.kernels.pads_filters and not self.at.backward:
            with suppress(Declined):
                return self._in(likes, last)
        found = self._in(likes, likes)
        if isinstance(self.kernels, DirectKernels) and found.family is CodeFamily.GEMM:
            with suppress(Declined):
                found = self._in(last, last)  # our kernels write so, and read C order
                self.kernels.replaces_copies = True
                return found
            return self._in(likes, likes)
        few = self.image[1] // self.op.group < BLOCK
        if few and self.at.backward and self._pads_bottom(found):
            with suppress(Declined):
                better = self._in(likes, last)
                if not self._pads_bottom(better):
                    return better
            return self._in(likes, likes)
        return found

    def _takes_blocks(self) -> bool:
        """Return whether it is a product of pixels that are written in blocks for its sake."""
        [bottom], layouts = self.at.bottom, self.at.layouts
        offered = layouts.offered(bottom.data_memory)
        if self.at.backward or not self.op.is_pointwise or not offered:
            return False
        blocks = channel_blocks(self.engine, bottom.shape, BLOCK)
        return self.maps[1] % BLOCK == 0 and self.expected(bottom) is blocks

    def _blocks(self, shape: ops.Shape) -> int:
        return channel_blocks(self.engine, shape, BLOCK).handle

    def _pads_blocks(self) -> bool:
        """Return whether many channels would be padded to so many more that it costs time."""
        c, m = self.image[1] // self.op.group, self.maps[1] // self.op.group
        padded = -(-c // BLOCK) * -(-m // BLOCK) * BLOCK * BLOCK
        return min(c, m) >= BLOCK and max(self.op.kernel) > 1 and padded > WASTE * c * m

    def _in(self, bottom: Image, top: Image) -> Description:
        """Ask for the forward primitive with these layouts of bottom and top."""
        self.images = bottom, top
        x, y = self._sides()
        return self.describe("forward", x, self.engine.any(self.w), y, self.bias)

    def _sides(self) -> tuple[int, int]:
        """Return descriptors of bottom and top, as they were chosen."""
        bottom, top = self.images
        return bottom(self.image), top(self.maps)

    @property
    def _gathers_part_of_a_vector(self) -> bool:
        """True if the library would gather the pixels of a 1x1 convolution with a stride wrongly.

        Its code for AVX2 copies them in whole vectors of channels. In a layout with the channels
        last, a last vector that is not full overwrites the copy of another thread.
        """
        taps, strides = self.op.kernel, self.op.stride
        part = self.image[1] % BLOCK != 0 and not self.engine.wide
        return part and max(taps) == 1 and max(strides) > 1

    def _pads_bottom(self, found: Description) -> bool:
        """Return whether the weights' gradient pads most of its bottom, or is not implemented."""
        try:
            layout = self._describe_weights(found, self.bias).layout(Query.SRC)
        except Declined:
            return True
        return layout.size > WASTE * math.prod(self.image)

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
        pool: PoolStep | None = None,
    ) -> Runnable:
        """Return the forward pass and what follows, in the same layouts.

        ``other`` is added before the activation. ``slopes`` are those of a PReLU in place of an
        activation. ``folded`` replaces the parameters. The top of ``pool`` is written in place of
        the convolution's.
        """
        message = "a sum after kernels of ours, which gain more than fusing the sum would"
        decline_if(self.kernels.gains_more and other is not None, message)
        jit_call = None
        if other is None or self.kernels.adds:
            jit_call = self._jit_call(
                target, then, other=other, slopes=slopes, folded=folded, pool=pool
            )
        if jit_call is not None:
            return jit_call
        decline_if(pool is not None, "pooling after a convolution that our kernels do not run")
        rectifier = rectifier_of(then)
        if rectifier.limited and then is not None:
            message = f"{op_title(then)} behind the library's convolution, which appends ReLU"
            raise Declined(message)
        bias = self.engine.plain((self.maps[1],)) if folded else self.bias
        # not those of the layouts: one block of channels lies like channels last, with other code
        x, w, y = map(self.hint.descriptor, (Query.SRC, Query.WEIGHTS, Query.DST))
        added = None if other is None else y
        fixed: list[Fixed] = []

        def describe(attributes: int) -> Description:
            return self.describe("forward", x, w, y, bias, attributes=attributes)

        ends: list[Argument] = []
        if slopes is not None:
            found, role = sloping(self.engine, describe, self.hint, EACH_CHANNEL, added)
            each = (1, self.maps[1], *[1] * len(self.op.kernel))
            ends = [InputArg(role, slopes, self.engine.plain(each))]
        elif then is not None:
            axes, slope = len(self.maps), rectifier.slope
            found, fixed = rectifying(self.engine, describe, self.hint, axes, added, slope)
        else:
            with lent_attributes(self.engine.library, other=added) as attributes:
                found = describe(attributes)
        return self._call(found, target, other, folded, fixed, ends)

    def _jit_call(
        self,
        target: Operand,
        then: ops.Activation | None = None,
        *,
        other: Operand | None = None,
        slopes: Operand | None = None,
        folded: Folded | None = None,
        pool: PoolStep | None = None,
    ) -> Runnable | None:
        """Return the forward pass in kernels of our own; None where none pays or can be made.

        Raises:
            Declined: One pays, but it has no slopes of channels; or no kernel has the activation.
        """
        at, (x, _, y) = self.at, self.layouts
        y = self.aliased(target, pool.y if pool else y)
        if other is not None and (y.channel_slice or other.data_memory is target.data_memory):
            return None
        bias: InputArg | np.ndarray | None = folded.bias if folded else None
        if self.bias and not folded:
            bias = InputArg(Arg.BIAS, at.params[1], self.bias)
        channels = self.engine.plain((self.maps[1],))
        operands = ConvOperands(
            source=InputArg(Arg.SRC, at.bottom[0], x),
            target=OutputArg(Arg.DST, target, y),
            weight=at.params[0],
            layouts=at.layouts,
            bias=bias,
            then=rectifier_of(then),
            slopes=InputArg(Arg.SLOPE, slopes, channels) if slopes else None,
            external_weights=folded is not None,
            added=InputArg(Arg.ADDED, other, y) if other else None,
        )
        made = self.kernels.forward(operands, pool.op if pool else None)
        if made is None:
            return None
        message = "PReLU behind our kernels of few channels, which know ReLU"
        decline_if(slopes and not self.kernels.takes_slopes, message)
        if folded is not None:
            folded.update = made.update
        return made

    def _call(
        self,
        found: Description,
        target: Operand,
        other: Operand | None = None,
        folded: Folded | None = None,
        fixed: Sequence[Fixed] = (),
        ends: Sequence[Argument] = (),
    ) -> Call:
        at, (x, w, y) = self.at, self.layouts
        arguments: list[Argument] = [InputArg(Arg.SRC, at.bottom[0], x)]
        if folded is not None:
            packed = aligned(w.size)
            plain = self.engine.plain(w.shape)
            folded.update = partial(self.engine.reorder, here=plain, target=packed, there=w)
            offsets = self.engine.plain((self.maps[1],)).handle
            own = (Arg.WEIGHTS, w.handle, packed), (Arg.BIAS, offsets, folded.bias)
            fixed = [*own, *fixed]
        else:
            arguments.append(ParamArg(Arg.WEIGHTS, at.params[0], w))
            if self.bias:
                arguments.append(InputArg(Arg.BIAS, at.params[1], self.bias))
        if other is not None:
            arguments.append(InputArg(Arg.ADDED, other, y))
        arguments += ends
        return Call(self.engine, found, [*arguments, OutputArg(Arg.DST, target, y)], fixed)

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
            # the primitive that sums it up computes the weight's gradient too
            dy = at.top[0].read_diff().reshape(*self.maps[:2], -1)
            at.params[1].add_diff(np.add.reduce(np.add.reduce(dy, axis=2), axis=0))

    def _weights_gradient(self) -> Runnable:
        at = self.at
        bias = self.bias if self.op.bias and at.param_propagate_down[1] else None
        found = self._describe_weights(self.hint, bias)
        x, w, dy = found.layouts(Query.SRC, Query.DIFF_WEIGHTS, Query.DIFF_DST)
        source = InputArg(Arg.SRC, at.bottom[0], x)
        gradient = InputArg(Arg.DIFF_DST, at.top[0], dy, diff=True)
        offset = GradArg(Arg.DIFF_BIAS, at.params[1], bias) if bias else None
        plain = GradArg(Arg.DIFF_WEIGHTS, at.params[0], self.engine.plain(self.w))
        target = GradArg(Arg.DIFF_WEIGHTS, at.params[0], w)
        operands = GradientOperands(source, gradient, plain, offset, at.layouts)
        jit_call = (self.transposed or self.kernels).weights(operands)
        if jit_call is not None:
            return jit_call
        arguments: list[Argument] = [source, gradient, target, *([offset] if offset else [])]
        return Call(self.engine, found, arguments)

    def _describe_weights(self, hint: Description, bias: Layout | None) -> Description:
        """Ask for the gradient of the weights that goes with the forward primitive ``hint``."""
        x, y = self._sides()
        if self._gathers_part_of_a_vector:
            x = channel_blocks(self.engine, self.image, BLOCK).handle
        return self.describe("backward_weights", x, self.engine.any(self.w), y, bias, hint)

    def _describe_data(self, x: int, y: int) -> Description:
        """Ask for the gradient of the input with these descriptors of bottom and top."""
        return self.describe("backward_data", x, self.engine.any(self.w), y, hint=self.hint)

    def _data_gradient(self) -> Runnable:
        at, found = self.at, self._describe_data(*self._sides())
        like_forward = [self.layouts[0], self.layouts[2]]
        if found.layouts(Query.DIFF_SRC, Query.DIFF_DST) != like_forward:
            # for strides the library prefers the channels last; to convert what lies in blocks,
            # and what is added to it, takes longer than that gains
            with suppress(Declined):
                same = self._describe_data(*map(self.hint.descriptor, (Query.SRC, Query.DST)))
                if same.family is CodeFamily.DIRECT:
                    found = same
        dx, w, dy = found.layouts(Query.DIFF_SRC, Query.WEIGHTS, Query.DIFF_DST)
        source = InputArg(Arg.DIFF_DST, at.top[0], dy, diff=True)
        target = OutputArg(Arg.DIFF_SRC, at.bottom[0], dx, diff=True)
        operands = ConvOperands(source, target, at.params[0], at.layouts)
        jit_call = (self.transposed or self.kernels).data(operands)
        if jit_call is not None:
            return jit_call
        arguments = [source, InputArg(Arg.WEIGHTS, at.params[0], w), target]
        return Call(self.engine, found, arguments)


MOST_AXES = 3
