"""Depthwise and pointwise convolutions that run as one.

Their intermediate values are never written to memory; a few rows at a time stay in a core's cache.
"""

from collections.abc import Sequence

from demitasse.backends import ops
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import rectifier_of
from demitasse.backends.cpu.step import CpuStep, op_title
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.cpu.steps.epilogue import (
    Epilogue,
    FoldedWeights,
    separable_call,
)
from demitasse.backends.step import (
    AnyStep,
    Declined,
    Operands,
    decline_gradients,
)


class SeparableStep(CpuStep[ops.Conv]):
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
            message = f"{pair}; both are to run in kernels"
            raise Declined(message)
        decline_gradients(at)
        super().__init__(engine, each.op, at[0])
        rest = list(zip(chain, at, strict=True))
        epilogues = Epilogue.match(each, rest[1:place]), Epilogue.match(pixels, rest[place + 1 :])
        epilogues[0].decline_all_but("links", "then")
        epilogues[1].decline_all_but("links", "other", "then")
        self.followers = [op_title(op) for op in chain[1:]]
        self.derived = weights = [
            FoldedWeights(conv, epilogue.links)
            for conv, epilogue in zip((each, pixels), epilogues, strict=True)
        ]
        source, target, other = at[0].bottom[0], epilogues[1].target, epilogues[1].other
        y = pixels.map_layout
        self.forward_calls = [
            separable_call(
                engine,
                (each.op, pixels.op),
                InputArg("src", source, self.expected(source)),
                OutputArg("dst", target, y),
                (weights[0].folded, weights[1].folded),
                (rectifier_of(epilogues[0].then), rectifier_of(epilogues[1].then)),
                other=None if other is None else InputArg("added", other, y),
                storage=at[0].storage,
            )
        ]
        self.kept_bytes = sum(one.folded.bias.nbytes for one in weights)
