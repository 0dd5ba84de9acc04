"""Depthwise and pointwise convolutions that run as one.

Their intermediate values are never written to memory; a few rows at a time stay in a core's cache.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    Folded,
    KernelCall,
    images_in_vectors,
    images_of,
    kernel_tuning,
    rectifier_of,
)
from demitasse.backends.cpu.step import CpuStep, op_title
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.cpu.steps.epilogue import Epilogue, FoldedWeights
from demitasse.backends.kernels.epilogue import Rectifier
from demitasse.backends.kernels.separable import plan_separable
from demitasse.backends.step import AnyStep, Declined, Operands, decline_gradients
from demitasse.backends.storage import Stored


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


def separable_call(
    engine: Engine,
    convolutions: tuple[ops.Conv, ops.Conv],
    source: InputArg,
    target: OutputArg,
    folded: tuple[Folded, Folded],
    then: tuple[Rectifier, Rectifier],
    other: InputArg | None,
    storage: Stored,
) -> KernelCall:
    """Return a call of a depthwise convolution fused with a pointwise convolution.

    ``update`` of both ``folded`` is set. ``other`` has the target's layout, and is added to the
    second's sums before ``then``.
    """
    blocks = plan_separable(*convolutions, kernel_tuning(engine, storage=storage))
    x, y = images_in_vectors(source.layout, blocks.channels), images_of(target.layout)
    from demitasse.backends.kernels.separable.convolution import SeparableConvolution

    if x is None or y is None or not y.is_rows:
        message = "images whose channels do not lie side by side; separable convolution needs that"
        raise Declined(message)
    kernel = SeparableConvolution(blocks, x, y, then, adds=other is not None)
    folded[0].update, folded[1].update = kernel.depthwise.update, kernel.update
    offsets = folded[0].bias, folded[1].bias

    def run(x: np.ndarray, *arrays: np.ndarray) -> None:
        *added, y, scratch = arrays
        kernel(x, y, (*offsets, *added), scratch)

    arguments = (source, target) if other is None else (source, other, target)
    sizes = {"scratch": kernel.scratch_size, "held": kernel.filters_nbytes}
    return KernelCall(engine, arguments, blocks.code, run, **sizes)
