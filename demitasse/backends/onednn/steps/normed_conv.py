"""A normalisation with fixed statistics and a ReLU before a convolution of single pixels.

The kernel normalises the pixels that it is about to multiply, so the normalised image, often the
widest of a net, is never written.
"""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.pixels import pointwise_call
from demitasse.backends.onednn.own_kernels.rectifiers import rectifier_of
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep, called
from demitasse.backends.onednn.steps.convolution import ConvStep
from demitasse.backends.onednn.steps.factors import FixedFactors, links_of
from demitasse.backends.onednn.steps.folded import FoldedWeights
from demitasse.backends.onednn.steps.tail import Tail
from demitasse.backends.step import AnyStep, Declined, Operands, decline_gradients

__all__ = ["NormedConvStep"]


class NormedConvStep(OnednnStep[ops.BatchNorm | ops.Scale]):
    """BatchNorm and Scale, either or both, ReLU, a convolution and what may follow it.

    Args:
        engine: The engine.
        chain: The operations.
        at: Their blobs.
        steps: What each would run by itself.
        place: Which of them is the convolution.

    Raises:
        Declined: They are others, gradients are wanted, or it would not be faster.
    """

    may_wait = True  # the factors and weights that it makes anew are its own

    def __init__(
        self,
        engine: Engine,
        chain: Sequence[ops.Op],
        at: Sequence[Operands],
        steps: Sequence[AnyStep | None],
        place: int,
    ) -> None:
        conv, source = steps[place], at[0].bottom[0]
        if not isinstance(conv, ConvStep):
            message = f"{called(chain[place])} there; a convolution of oneDNN's is normalised for"
            raise Declined(message)
        decline_gradients(at)
        links = links_of(chain[:place], at[:place], source.shape)
        rest = zip(chain[place + 1 :], at[place + 1 :], steps[place + 1 :], strict=True)
        tail = Tail.behind(conv, list(rest))
        if tail.other is not None or tail.pool is not None:
            message = "a sum or pooling after it; kernels of pixels have factors and ReLU alone"
            raise Declined(message)
        super().__init__(engine, links[0][0], at[0])
        self.followers = [called(op) for op in chain[1:]]
        self.factors = FixedFactors(source.shape[1], links)
        self.weights = FoldedWeights(conv, tail.links)
        folded, expected = self.weights.folded, engine.expected(source.data_memory, source.shape)
        call, folded.update = pointwise_call(
            engine,
            conv.op,
            Reader(Arg.SRC, source, expected),
            Writer(Arg.DST, tail.target, engine.placed(tail.target.data_memory, conv.layouts[2])),
            (self.factors.factor, self.factors.offset),
            folded.bias,
            rectifier_of(tail.then),
        )
        self.forward_calls = [call]
        self.kept = self.factors.nbytes + folded.bias.nbytes

    @property
    def code(self) -> str:
        return " + ".join([super().code, *self.followers])

    def forward(self) -> None:
        self.factors.follow()
        self.weights.follow()
        super().forward()
