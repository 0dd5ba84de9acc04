"""Deconvolutions: kernels of a Step, and their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.arguments import InputArg, OutputArg, ParamArg
from demitasse.backends.onednn.jit_adapters.calls import ConvCall
from demitasse.backends.onednn.library.constants import Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.primitive import BLOCK, CodeFamily, Description, Primitive
from demitasse.backends.onednn.steps.conv_operands import ConvOperands
from demitasse.backends.onednn.threads import wanted

if TYPE_CHECKING:
    from demitasse.backends.onednn.jit_adapters.norms import PlaneCall

IMAGE_AXES = 4

LARGE = 4 << 20
"""Bytes of windows beyond which they do not stay in the caches until they are added up."""


def overlaps(op: ops.Deconv) -> bool:
    """Return whether a deconvolution gives few channels, and its windows are of whole strides.

    The library pads few channels to sixteen, and multiplies with the padding.
    """
    images = len(op.bottom) == IMAGE_AXES and op.axis == 1
    alone = op.group == 1 and all(n == 1 for n in op.dilation)
    whole = all(size % step == 0 for size, step in zip(op.kernel, op.stride, strict=True))
    return images and alone and whole and op.top[1] < BLOCK


def overlap_call(engine: Engine, op: ops.Deconv, operands: ConvOperands) -> OverlapCall | None:
    """Return what multiplies each pixel and adds up what overlaps; None where none can be made.

    Args:
        engine: The engine.
        op: The deconvolution, of which ``overlaps`` says yes.
        operands: Its operands, with their channels last.

    Raises:
        Declined: The library has no product for it.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None

    return OverlapCall(engine, op, operands, tuning)


def plane_call(
    engine: Engine,
    op: ops.Deconv,
    plain: Description,
    arguments: tuple[InputArg, ParamArg, OutputArg],
) -> PlaneCall | None:
    """Return what computes one channel at a time; None where that does not pay or cannot be made.

    Args:
        engine: The engine.
        op: The deconvolution.
        plain: The library's code for it, which may compute all windows before it adds them up.
        arguments: Bottom, weight and top, in C order.

    Raises:
        Declined: The library has no product for it.
    """
    tuning = engine.tuning.as_set(wanted())
    images = len(op.bottom) == IMAGE_AXES and op.axis == 1
    alone = op.group == 1 and all(n == 1 for n in op.dilation) and not op.bias
    overlap = all(size >= step for size, step in zip(op.kernel, op.stride, strict=True))
    off = "plane_deconvolution" in tuning.without
    if off or not (tuning.width and images and alone and overlap):
        return None
    if plain.family is not CodeFamily.GEMM or plain.bytes_of(Query.SCRATCHPAD) < LARGE:
        return None
    from demitasse.backends.onednn.jit_adapters.norms import PlaneCall

    return PlaneCall(engine, op, arguments, tuning)


class OverlapCall(ConvCall):
    """A deconvolution of one group over two axes, with the channels last.

    Args:
        engine: The engine.
        op: The deconvolution.
        operands: Its operands.
        tuning: The kernel's vectors and threads.

    Raises:
        Declined: The library has no product for it.
    """

    def __init__(
        self, engine: Engine, op: ops.Deconv, operands: ConvOperands, tuning: Tuning
    ) -> None:
        from demitasse.backends.kernels.col2im import Col2Im

        n, c, *bottom = op.bottom
        _, m, *top = op.top
        rows, outputs = n * bottom[0] * bottom[1], op.kernel[0] * op.kernel[1] * m
        self._filters = m, c, *op.kernel
        x, self._plain, y = (
            engine.plain(shape) for shape in ((rows, c), (outputs, c), (rows, outputs))
        )
        found = engine.describe(
            "inner_product_forward",
            Pass.INFERENCE,
            x.handle,
            engine.any((outputs, c)),
            None,
            y.handle,
            engine.attributes,
        )
        self._weight, self._size = found.layout(Query.WEIGHTS), y.size
        self._packed = aligned(self._weight.size)
        uses = (Arg.SRC, x.handle), (Arg.WEIGHTS, self._weight.handle), (Arg.DST, y.handle)
        self._product = Primitive(engine.stream, found, uses)
        self._product.bind(self._product.place(Arg.WEIGHTS), self._packed)
        images = (n, *bottom), (n, *top, m)
        self._kernel = Col2Im(*images, op.kernel, op.stride, op.pad, tuning)
        code = f"{found.implementation}, overlaps llvm:{tuning.instructions}"
        super().__init__(engine, operands, code, self._pass_weights, self._kernel.take_offsets)

    def _pass_weights(self, weights: np.ndarray) -> None:
        m, c, *kernel = self._filters
        rows = weights.reshape(c, m, *kernel).transpose(2, 3, 1, 0)
        ordered = np.ascontiguousarray(rows).reshape(-1)
        self.engine.reorder(ordered, self._plain, self._packed, self._weight)

    @property
    def kept_bytes(self) -> int:
        return self._packed.nbytes

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        [windows] = self.engine.workspaces(self._size)
        product = self._product
        product.bind(product.place(Arg.SRC), source)
        product.bind(product.place(Arg.DST), windows)
        product.run()
        self._kernel(windows, target)
