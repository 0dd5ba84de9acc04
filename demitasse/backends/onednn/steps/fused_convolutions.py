"""Convolutions that run as one with a normalisation before, or with a depthwise convolution.

What lies between the two is never written to memory; each few rows of it stay in a core's cache.
"""

import math
from collections.abc import Sequence
from contextlib import suppress

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Argument, Call, GradArg, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import rectifier_of
from demitasse.backends.onednn.jit_adapters.pixels import pointwise_call, separable_call
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import BLOCK, channel_blocks
from demitasse.backends.onednn.step import OnednnStep, op_title
from demitasse.backends.onednn.steps.convolution import ConvStep, WindowStep
from demitasse.backends.onednn.steps.epilogue import Epilogue, FixedFactors, FoldedWeights, links_of
from demitasse.backends.step import (
    AnyStep,
    Declined,
    Operand,
    Operands,
    decline_gradients,
    decline_if,
)


class SeparableStep(OnednnStep[ops.Conv]):
    """Two convolutions, factors, offsets and ReLU behind each, and a sum behind the second."""

    def __init__(
        self,
        engine: Engine,
        chain: Sequence[ops.Op],
        at: Sequence[Operands],
        steps: Sequence[AnyStep | None],
        place: int,
    ) -> None:
        each, pixels = steps[0], steps[place]
        if not (isinstance(each, ConvStep) and isinstance(pixels, ConvStep)):
            pair = f"{op_title(chain[place])} behind {op_title(chain[0])}"
            message = f"{pair}; both are to be oneDNN's"
            raise Declined(message)
        decline_gradients(at)
        super().__init__(engine, each.op, at[0])
        rest = list(zip(chain, at, steps, strict=True))
        epilogues = Epilogue.match(each, rest[1:place]), Epilogue.match(pixels, rest[place + 1 :])
        epilogues[0].decline_all_but("links", "then")
        epilogues[1].decline_all_but("links", "other", "then")
        self.followers = [op_title(op) for op in chain[1:]]
        self.derived = weights = [
            FoldedWeights(conv, epilogue.links)
            for conv, epilogue in zip((each, pixels), epilogues, strict=True)
        ]
        source, target, other = at[0].bottom[0], epilogues[1].target, epilogues[1].other
        y = self.aliased(target, pixels.layouts[2])
        if other is None and y is pixels.layouts[2]:
            y = self._target_layout(target, y)
        message = "a sum that is written into a part of a larger array"
        decline_if(other is not None and y.channel_slice is not None, message)
        self.forward_calls = [
            separable_call(
                engine,
                (each.op, pixels.op),
                InputArg(Arg.SRC, source, self.expected(source)),
                OutputArg(Arg.DST, target, y),
                (weights[0].folded, weights[1].folded),
                (rectifier_of(epilogues[0].then), rectifier_of(epilogues[1].then)),
                other=None if other is None else InputArg(Arg.ADDED, other, y),
                storage=at[0].storage,
            )
        ]
        self.kept_bytes = sum(one.folded.bias.nbytes for one in weights)

    def _target_layout(self, target: Operand, usual: Layout) -> Layout:
        """Return the layout in which the output is written."""
        if self.engine.wide and usual.shape[0] == 1 and usual.shape[1] % BLOCK == 0:
            with suppress(Declined):
                blocks = channel_blocks(self.engine, usual.shape, BLOCK)
                if {*self.at.layouts.preferred(target.data_memory)} == {blocks}:
                    return blocks
        return usual


class NormedConvStep(OnednnStep[ops.BatchNorm | ops.Scale]):
    """BatchNorm and Scale, either or both, ReLU, a convolution and what may follow it."""

    def __init__(
        self,
        engine: Engine,
        chain: Sequence[ops.Op],
        at: Sequence[Operands],
        steps: Sequence[AnyStep | None],
        place: int,
    ) -> None:
        engine.tuning.require("normed_pointwise")
        conv, source = steps[place], at[0].bottom[0]
        if not isinstance(conv, ConvStep):
            message = f"{op_title(chain[place])} there; a convolution of oneDNN's is normalised for"
            raise Declined(message)
        decline_gradients(at)
        links = links_of(chain[:place], at[:place], source.shape)
        rest = zip(chain[place + 1 :], at[place + 1 :], steps[place + 1 :], strict=True)
        epilogue = Epilogue.match(conv, list(rest))
        epilogue.decline_all_but("links", "then")
        super().__init__(engine, links[0][0], at[0])
        self.followers = [op_title(op) for op in chain[1:]]
        factors = FixedFactors(source.shape[1], links)
        weights = FoldedWeights(conv, epilogue.links)
        self.derived = [factors, weights]
        folded, expected = weights.folded, self.expected(source)
        call, folded.update = pointwise_call(
            engine,
            conv.op,
            InputArg(Arg.SRC, source, expected),
            OutputArg(Arg.DST, epilogue.target, self.aliased(epilogue.target, conv.layouts[2])),
            (factors.factor, factors.offset),
            folded.bias,
            rectifier_of(epilogue.then),
            at[0].storage,
        )
        self.forward_calls = [call]
        self.kept_bytes = factors.nbytes + folded.bias.nbytes


class GroupedPointwiseStep(WindowStep[ops.Conv]):
    """One bottom, one top, both with their channels last; gradients are wanted."""

    def __init__(self, engine: Engine, op: ops.Conv, at: Operands) -> None:
        super().__init__(engine, op, at)
        engine.tuning.require("grouped_pointwise")
        message = "products for groups of pixels are for gradients, without a bias"
        decline_if(not at.backward or op.bias, message)
        message = "windows of more than a pixel; products take pixels by themselves"
        decline_if({*op.kernel, *op.stride} != {1} or any(op.pad), message)
        c, m = self.image[1] // op.group, self.maps[1] // op.group
        message = (
            f"{op.group} groups of {c} channels to {m}; the library convolves one group, "
            f"channels by themselves, and whole blocks of {BLOCK}"
        )
        decline_if(op.group == 1 or 1 in (c, m) or not (c % BLOCK or m % BLOCK), message)
        self._sizes = math.prod(self.image) // self.image[1], c, m

    def prepare(self) -> None:
        at = self.at
        written = OutputArg(Arg.DST, at.top[0], self.engine.innermost_layout(self.maps, 1))
        self.forward_calls = [
            self._product(
                (self._pixels(Arg.SRC), self._rows(self.image[1])),
                (self._weight(Arg.WEIGHTS), self._filters(turned=True)),
                (written, self._rows(self.maps[1])),
            )
        ]

    def _weights_gradient(self) -> Call:
        weight = GradArg(Arg.DST, self.at.params[0], self.engine.plain(self.w))
        return self._product(
            (self._results(Arg.SRC), self._rows(self.maps[1], turned=True)),
            (self._pixels(Arg.WEIGHTS), self._rows(self.image[1])),
            (weight, self._filters()),
        )

    def _data_gradient(self) -> Call:
        layout = self.engine.innermost_layout(self.image, 1)
        written = OutputArg(Arg.DST, self.at.bottom[0], layout, diff=True)
        return self._product(
            (self._results(Arg.SRC), self._rows(self.maps[1])),
            (self._weight(Arg.WEIGHTS), self._filters()),
            (written, self._rows(self.image[1])),
        )

    def _product(self, *matrices: tuple[Argument, int]) -> Call:
        """Return the product of the first two, of which the third is made; each is seen so."""
        for argument, seen in matrices:
            argument.descriptor = seen
        (_, one), (_, two), (_, result) = matrices
        found = self.engine.describe("matmul", one, two, None, result)
        return Call(self.engine, found, [argument for argument, _ in matrices])

    def _rows(self, channels: int, *, turned: bool = False) -> int:
        """Return how the groups' matrices lie: pixels by channels, or the other way round."""
        rows, each = self._sizes[0], channels // self.op.group
        if turned:
            return self.engine.strided((self.op.group, each, rows), (each, 1, channels))
        return self.engine.strided((self.op.group, rows, each), (each, channels, 1))

    def _filters(self, *, turned: bool = False) -> int:
        """Return how the groups' filters lie: outputs by channels, or the other way round."""
        _, c, m = self._sizes
        if turned:
            return self.engine.strided((self.op.group, c, m), (c * m, 1, c))
        return self.engine.strided((self.op.group, m, c), (c * m, c, 1))

    def _pixels(self, role: int) -> InputArg:
        return InputArg(role, self.at.bottom[0], self.engine.innermost_layout(self.image, 1))

    def _results(self, role: int) -> InputArg:
        layout = self.engine.innermost_layout(self.maps, 1)
        return InputArg(role, self.at.top[0], layout, diff=True)

    def _weight(self, role: int) -> InputArg:
        return InputArg(role, self.at.params[0], self.engine.plain(self.w))
