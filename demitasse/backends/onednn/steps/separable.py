"""A depthwise convolution and the pointwise one behind it, with what follows each, as one.

What lies between the two is never written to memory; each few rows of it stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import BLOCK, channel_blocks
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.pixels import separable_call
from demitasse.backends.onednn.own_kernels.rectifiers import rectifier_of
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep, called
from demitasse.backends.onednn.steps.convolution import ConvStep
from demitasse.backends.onednn.steps.folded import FoldedWeights
from demitasse.backends.onednn.steps.tail import Tail
from demitasse.backends.step import AnyStep, Declined, Operand, Operands, decline_gradients

__all__ = ["SeparableStep"]


class SeparableStep(OnednnStep[ops.Conv]):
    """Two convolutions, factors, offsets and ReLU behind each, and a sum behind the second.

    Args:
        engine: The engine.
        chain: The operations.
        at: Their blobs.
        steps: What each would run by itself.
        place: Which of them is the second convolution.

    Raises:
        Declined: They are others, gradients are wanted, or it would not be faster.
    """

    may_wait = True  # the weights that it makes anew are its own

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
            message = f"{called(chain[place])} behind {called(chain[0])}; both are to be oneDNN's"
            raise Declined(message)
        decline_gradients(at)
        super().__init__(engine, each.op, at[0])
        rest = list(zip(chain, at, steps, strict=True))
        tails = Tail.behind(each, rest[1:place]), Tail.behind(pixels, rest[place + 1 :])
        _check(tails)
        self.followers = [called(op) for op in chain[1:]]
        self.weights = tuple(
            FoldedWeights(conv, tail.links)
            for conv, tail in zip((each, pixels), tails, strict=True)
        )
        source, target, other = at[0].bottom[0], tails[1].target, tails[1].other
        y = engine.placed(target.data_memory, pixels.layouts[2])
        if other is None and y is pixels.layouts[2]:
            y = _layout(engine, target, y)
        self.forward_calls = [
            separable_call(
                engine,
                (each.op, pixels.op),
                Reader(Arg.SRC, source, engine.expected(source.data_memory, source.shape)),
                Writer(Arg.DST, target, y),
                (self.weights[0].folded, self.weights[1].folded),
                (rectifier_of(tails[0].then), rectifier_of(tails[1].then)),
                other=None if other is None else Reader(Arg.ADDED, other, _beside(y)),
            )
        ]
        self.kept = sum(one.folded.bias.nbytes for one in self.weights)

    @property
    def code(self) -> str:
        return " + ".join([super().code, *self.followers])

    def forward(self) -> None:
        for weights in self.weights:
            weights.follow()
        super().forward()


def _layout(engine: Engine, target: Operand, usual: Layout) -> Layout:
    """Return the layout in which the output is written.

    Args:
        engine: The engine.
        target: The blob.
        usual: The layout of the second convolution by itself.
    """
    if engine.wide and usual.shape[0] == 1 and usual.shape[1] % BLOCK == 0:
        with suppress(Declined):
            blocks = channel_blocks(engine, usual.shape, BLOCK)
            if engine.all_wish(target.data_memory, blocks):
                return blocks
    return usual


def _check(tails: tuple[Tail, Tail]) -> None:
    """Decline what kernels of separable convolutions do not do.

    Raises:
        Declined: It is something else than factors, offsets, ReLU and limits, and one sum.
    """
    ends = [tails[0].other, *(one for tail in tails for one in (tail.slopes, tail.pool))]
    if any(one is not None for one in ends):
        message = "PReLU or pooling behind one, or a sum between them; separable ones have ReLU"
        raise Declined(message)


def _beside(y: Layout) -> Layout:
    """Return the layout of what is added to outputs in this one.

    Raises:
        Declined: Another array has none like it.
    """
    if y.home is not None:
        message = "a sum that is written into a part of a larger array"
        raise Declined(message)
    return y
