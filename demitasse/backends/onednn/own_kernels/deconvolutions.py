"""The kernels that may run a deconvolution in place of a primitive of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import BLOCK
from demitasse.backends.onednn.library.constants import Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.primitive import Description
from demitasse.backends.onednn.ports import Parameter, Reader, Writer
from demitasse.backends.onednn.steps.conv_operands import ConvOperands
from demitasse.backends.onednn.threads import wanted

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.deconv_calls import OverlapCall
    from demitasse.backends.onednn.own_kernels.plane_calls import PlaneCall

__all__ = ["overlap_call", "overlaps", "plane_call"]

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
    from demitasse.backends.onednn.own_kernels.deconv_calls import OverlapCall

    return OverlapCall(engine, op, operands, tuning)


def plane_call(
    engine: Engine, op: ops.Deconv, plain: Description, ports: tuple[Reader, Parameter, Writer]
) -> PlaneCall | None:
    """Return what computes one channel at a time; None where that does not pay or cannot be made.

    Args:
        engine: The engine.
        op: The deconvolution.
        plain: The library's code for it, which may compute all windows before it adds them up.
        ports: Bottom, weight and top, in C order.

    Raises:
        Declined: The library has no product for it.
    """
    tuning = engine.tuning.as_set(wanted())
    images = len(op.bottom) == IMAGE_AXES and op.axis == 1
    alone = op.group == 1 and all(n == 1 for n in op.dilation) and not op.bias
    overlap = all(size >= step for size, step in zip(op.kernel, op.stride, strict=True))
    if not (tuning.width and images and alone and overlap):
        return None
    if "gemm:jit" not in plain.implementation or plain.bytes_of(Query.SCRATCHPAD) < LARGE:
        return None
    from demitasse.backends.onednn.own_kernels.plane_calls import PlaneCall

    return PlaneCall(engine, op, ports, tuning)
