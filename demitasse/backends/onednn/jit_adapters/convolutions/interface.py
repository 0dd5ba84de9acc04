"""Interface of the kernels that replace the library's convolution primitives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import InputArg, written_layout
from demitasse.backends.onednn.jit_adapters.calls import images_in_vectors
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

if TYPE_CHECKING:
    from demitasse.backends.onednn.jit_adapters.calls import ConvCall, KernelCall


class ConvKernels:
    """Here nothing does. Its methods return what a Step runs, or None where the library is to run.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, *spatial).
        why: Why there are no kernels; empty where there are some.

    Attributes:
        pads_filters: Whether filters of few channels fill no whole vectors.
        channels_last: Whether images are best with their channels last, where there are no
            gradients.
        trains_channels_last: The same where there are.
        gains_more: Whether our kernels gain more than it would to add another blob in the
            library's code.
        takes_slopes: Whether slopes of channels, for what is below 0, are no reason for the
            library's code.
    """

    pads_filters = False
    channels_last = False
    trains_channels_last = False
    gains_more = False
    takes_slopes = True

    def __init__(self, engine: Engine, x: ops.Shape, why: tuple[str, ...] = ()) -> None:
        self.engine, self.x, self.why = engine, x, why

    def within(self, x: Layout, y: Layout) -> ConvKernels:
        """Return the kernels that read and write images in these layouts."""
        del x, y
        return self

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> ConvCall | None:
        """Return the forward pass, and perhaps MAX pooling after it."""
        del operands, pool
        return None

    def weights(self, operands: GradientOperands) -> KernelCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        del operands
        return None

    def data(self, operands: ConvOperands) -> ConvCall | None:
        """Return the gradient of the input."""
        del operands
        return None

    def _plain(self, argument: InputArg) -> InputArg:
        """Return an argument for the same blob in C order."""
        return InputArg(Arg.SRC, argument.blob, self.engine.plain(self.x))

    def _as_it_comes(self, operands: ConvOperands, width: int) -> InputArg:
        """Return the source in the layout in which the blob is written, if that fits."""
        blob = operands.source.blob
        expected = written_layout(self.engine, operands.layouts, blob.data_memory, self.x)
        if images_in_vectors(expected, width):
            return InputArg(Arg.SRC, blob, expected)
        return operands.source
