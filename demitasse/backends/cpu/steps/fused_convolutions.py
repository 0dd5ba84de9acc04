"""Depthwise and pointwise convolutions that run as one.

Their intermediate values are never written to memory; a few rows at a time stay in a core's cache.
"""

from collections.abc import Sequence

from demitasse.backends import ops
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, PackedKernel, kernel_tuning
from demitasse.backends.cpu.step import CpuStep, op_title
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.cpu.steps.epilogue import Epilogue, folded_offsets, rectifier_of
from demitasse.backends.kernels.separable import SeparableConvolution, plan_separable
from demitasse.backends.step import AnyStep, Declined, Operands, decline_gradients, decline_if


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
        first = Epilogue.match(each.op, each.at.top[0], rest[1:place])
        second = Epilogue.match(pixels.op, pixels.at.top[0], rest[place + 1 :])
        first.decline_all_but("links", "then")
        second.decline_all_but("links", "other", "then")
        self.followers = [op_title(op) for op in chain[1:]]
        tuning = kernel_tuning(engine, storage=at[0].storage)
        blocks = plan_separable(each.op, pixels.op, tuning)
        source = InputArg("src", at[0].bottom[0], self.expected(at[0].bottom[0]))
        target = OutputArg("dst", second.target, pixels.map_layout)
        x = suitable_images(source.layout, blocks.channels)
        y = suitable_images(target.layout, 1)
        decline_if(not y.is_rows, "one pixel each; separable convolution takes rows of pixels")
        then, added = (rectifier_of(first.then), rectifier_of(second.then)), []
        if second.other is not None:
            added = [InputArg("added", second.other, pixels.map_layout)]
        (windows, before), (weight, after) = each.folded(first.links), pixels.folded(second.links)
        before = before or folded_offsets(engine, each.maps[1], ())
        after = after or folded_offsets(engine, pixels.maps[1], ())
        kernel = SeparableConvolution(blocks, x, y, then, adds=bool(added))
        packed = PackedKernel(lambda: kernel, **{"depthwise.update": windows, "update": weight})
        arguments = source, target, before, after, *added
        self.forward_calls = [KernelCall(engine, packed, *arguments, code=blocks.code)]
