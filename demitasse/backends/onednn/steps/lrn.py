"""LRN and Normalize.

The library has none within channels, and without AVX-512 fast code for the gradient in no layout;
then both directions run in our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Argument, Call, InputArg
from demitasse.backends.onednn.jit_adapters.calls import IMAGE_AXES, KernelCall, kernel_tuning
from demitasse.backends.onednn.jit_adapters.unary import first_suitable, map_call, suitable_images
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import Description, candidates
from demitasse.backends.onednn.step import Derived, OnednnStep
from demitasse.backends.onednn.steps.epilogue import values
from demitasse.backends.step import Declined, Operand, Operands, decline_if

if TYPE_CHECKING:
    from demitasse.backends.kernels.l2_normalize import L2Normalize
    from demitasse.backends.kernels.lrn import Response


class LRNStep(OnednnStep[ops.LRN]):
    """One layout for everything, one in which both directions are good."""

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.LRN, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.across = op.region == "ACROSS_CHANNELS"
        message = "a local_size of 1, on which oneDNN crashes; it takes 3 and more"
        decline_if(self.across and op.size == 1, message)
        self.numbers = (op.size, op.alpha, op.beta, op.k)
        self.jit_forward: Response | None = None

    def prepare(self) -> None:
        for layout in self._layouts() if self.across else ():
            with suppress(Declined):
                found = self._describe(layout)
                if self.at.backward:
                    self._gradient(found, layout)
                self._forward(found, layout)
                return
        try:
            self.layout, kernel = first_suitable(self._layouts(), self._kernel)
        except Declined as declined:
            message = f"{self.op.region} of {self.op.size} to {self.op.beta:g}: {declined}"
            raise Declined(message) from None
        self.jit_forward, ends = kernel, self.in_and_out(self.layout, self.layout)
        self.forward_calls = [self._kernel_call(kernel, kernel.forward, ends)]

    def _kernel(self, layout: Layout) -> Response:
        """Return a kernel of LRN and its gradient, across channels or within them."""
        from demitasse.backends.kernels import lrn

        op, tuning = self.op, kernel_tuning(self.engine)
        takes = lrn.takes if self.across else lrn.takes_within
        kind = lrn.LocalResponse if self.across else lrn.WithinResponse
        images = suitable_images(layout, takes, tuning.width, op.size, op.beta)
        return kind(images, op.size, op.alpha, op.k, tuning)

    def _kernel_call(
        self, kernel: Response, run: Callable[..., None], arguments: Sequence[Argument]
    ) -> KernelCall:
        size = kernel.scratch_size
        return KernelCall(self.engine, arguments, kernel.code, run, scratch=size)

    def _layouts(self) -> Iterator[Layout]:
        """Yield layouts, the best first.

        Without AVX-512 the library goes across blocks of channels three times as slowly as across
        channels that lie side by side, and a copy costs less than that.
        """
        engine, shape = self.engine, self.op.bottom
        expected = self.expected(self.at.bottom[0], shape)
        if self.across and not (expected.plain or engine.wide or self.at.backward):
            yield engine.innermost_layout(shape, 1)
        yield from candidates(engine, expected)

    def _describe(self, layout: Layout) -> Description:
        return self.engine.describe(
            "lrn_forward", self.kind, Algorithm.LRN_ACROSS, layout, layout, *self.numbers
        )

    def _gradient(self, hint: Description, layout: Layout) -> Description:
        return self.engine.describe(
            "lrn_backward", Algorithm.LRN_ACROSS, layout, layout, layout, *self.numbers, hint
        )

    def _forward(self, found: Description, layout: Layout) -> None:
        self.hint, self.layout = found, layout
        self.state, ends = self.workspace_of(found), self.in_and_out(layout, layout)
        self.forward_calls = [Call(self.engine, found, ends, self.state)]

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        if not at.propagate_down[0]:
            return
        source, kernel = InputArg(Arg.SRC, at.bottom[0], layout), self.jit_forward
        arguments = (source, *self.gradients(layout, layout))
        if kernel is None:
            found = self._gradient(self.hint, layout)
            self.backward_calls = [Call(self.engine, found, arguments, self.state)]
        else:
            self.backward_calls = [self._kernel_call(kernel, kernel.backward, arguments)]


class L2NormalizeStep(OnednnStep[ops.L2Normalize]):
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

        expected = engine.whole(self.expected(at.bottom[0], self.op.bottom))
        last = engine.innermost_layout(self.op.bottom, 1)
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
