"""The kernels that may run a deconvolution in place of a primitive of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import BLOCK
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.conv_operands import ConvOperands
from demitasse.backends.onednn.threads import wanted

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.deconv_calls import OverlapCall

__all__ = ["overlap_call", "overlaps"]

IMAGE_AXES = 4


def overlaps(op: ops.Deconv) -> bool:
    """Whether a deconvolution gives few channels, and its windows are of whole strides.

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
    from demitasse.backends.onednn.own_kernels.deconv_calls import OverlapCall

    return OverlapCall(engine, op, operands, tuning)
