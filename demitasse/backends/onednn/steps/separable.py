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
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep, called
from demitasse.backends.onednn.steps.convolution import ConvStep
from demitasse.backends.onednn.steps.folded import FoldedWeights
from demitasse.backends.onednn.steps.tail import Tail
from demitasse.backends.step import AnyStep, Declined, Operand, Operands, decline_gradients

__all__ = ["SeparableStep"]


class SeparableStep(OnednnStep[ops.Conv]):
    """Two convolutions, and factors, offsets and ReLU behind each.

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
        for tail in tails:
            _check(tail)
        self.followers = [called(op) for op in chain[1:]]
        self.weights = tuple(
            FoldedWeights(conv, tail.links)
            for conv, tail in zip((each, pixels), tails, strict=True)
        )
        source, target = at[0].bottom[0], tails[1].target
        self.forward_calls = [
            separable_call(
                engine,
                (each.op, pixels.op),
                Reader(Arg.SRC, source, engine.expected(source.data_memory, source.shape)),
                Writer(Arg.DST, target, _layout(engine, target, pixels.layouts[2])),
                (self.weights[0].folded, self.weights[1].folded),
                (tails[0].then is not None, tails[1].then is not None),
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
    memory, layout = target.data_memory, engine.placed(target.data_memory, usual)
    if engine.wide and layout is usual and usual.shape[0] == 1:
        with suppress(Declined):
            blocks = channel_blocks(engine, usual.shape, BLOCK)
            if usual.shape[1] % BLOCK == 0 and engine.all_wish(memory, blocks):
                return blocks
    return layout


def _check(tail: Tail) -> None:
    """Decline what kernels of separable convolutions do not do.

    Raises:
        Declined: It is something else than factors, offsets and ReLU.
    """
    other = tail.then is not None and tail.then.function != "relu"
    if other or any(one is not None for one in (tail.other, tail.slopes, tail.pool)):
        message = "more than ReLU behind a convolution; separable ones have factors and ReLU alone"
        raise Declined(message)
