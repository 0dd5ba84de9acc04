"""Kernels that make one blob of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.images import images_of
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from demitasse.backends.kernels.classes import FewClasses
    from demitasse.backends.kernels.interpolation import Interpolation
    from demitasse.backends.kernels.lengths import Lengths
    from demitasse.backends.onednn.own_kernels.elementwise_calls import ElementwiseCall
    from demitasse.backends.onednn.own_kernels.lrn_calls import Response
    from demitasse.backends.onednn.own_kernels.map_calls import MapCall, Maps
    from demitasse.backends.onednn.own_kernels.region_calls import RegionCall

__all__ = [
    "elementwise_call",
    "factors_call",
    "interpolation_kernel",
    "lengths_kernel",
    "lrn_kernel",
    "map_call",
    "means_call",
    "region_call",
    "rows_kernel",
]


def elementwise_call(
    engine: Engine,
    function: str,
    numbers: Sequence[float],
    sources: Sequence[Reader],
    *targets: Writer,
) -> ElementwiseCall:
    """Return what computes a function of every element.

    Args:
        engine: The engine.
        function: Its name in ``kernels.elementwise``.
        numbers: Its constants.
        sources: What is read, one array or two.
        targets: What is written, in the same layout, one array or two.

    Raises:
        Declined: There are no kernels here.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        message = f"no kernels are made at run time; {function} needs those"
        raise Declined(message)
    from demitasse.backends.kernels.elementwise import Elementwise
    from demitasse.backends.onednn.own_kernels.elementwise_calls import ElementwiseCall

    kernel = Elementwise(function, numbers, targets[0].layout.size, tuning)
    return ElementwiseCall(engine, kernel, sources, targets)


def factors_call(
    engine: Engine, source: Reader, target: Writer, values: tuple[np.ndarray, np.ndarray]
) -> MapCall | None:
    """Return what multiplies channels with factors, adds offsets and rectifies; perhaps None.

    Args:
        engine: The engine.
        source: What is read.
        target: What is written, in the same layout or one with the same blocks of channels.
        values: Factors and offsets, which may change between calls.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    x, y = (images_of(port.layout) for port in (source, target))
    if x is None or y is None:
        return None
    from demitasse.backends.kernels.channel_affine import ChannelFactors, takes

    if not takes(x, tuning.width):
        return None
    return map_call(engine, source, target, ChannelFactors((x, y), *values, tuning))


def map_call(engine: Engine, source: Reader, target: Writer, kernel: Maps) -> MapCall:
    """Return what runs a kernel that makes one blob of another."""
    from demitasse.backends.onednn.own_kernels.map_calls import MapCall

    return MapCall(engine, source, target, kernel)


def interpolation_kernel(engine: Engine, op: ops.Interpolation) -> Interpolation | None:
    """Return what resizes planes, with the channels last; None where no kernels can be made."""
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    from demitasse.backends.kernels.images import Images
    from demitasse.backends.kernels.interpolation import Interpolation

    n, c, *bottom = op.bottom
    x, y = (Images.in_blocks((n, c, h, w), c) for h, w in (bottom, op.top[2:]))
    return Interpolation(x, y, op.cut, op.size, tuning)


def lengths_kernel(engine: Engine, layout: Layout, eps: float) -> Lengths | None:
    """Return what divides pixels in a layout by their lengths; perhaps None.

    Args:
        engine: The engine.
        layout: Of input and output.
        eps: What is added to the sums of squares.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout)
    if not tuning.width or images is None:
        return None
    from demitasse.backends.kernels import lengths

    return lengths.Lengths(images, eps, tuning) if lengths.takes(images, tuning.width) else None


def region_call(
    engine: Engine, op: ops.RegionPool, source: Reader, target: Writer
) -> RegionCall | None:
    """Return what pools regions of a map, whatever they are; perhaps None.

    Args:
        engine: The engine.
        op: What is to be computed.
        source: The map.
        target: The results, in C order.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(source.layout)
    if not tuning.width or images is None:
        return None
    from demitasse.backends.kernels.roi_pooling import RegionMaxima, takes
    from demitasse.backends.onednn.own_kernels.region_calls import RegionCall

    if not takes(images, tuning.width):
        return None
    regions, _, rows, columns = op.top
    kernel = RegionMaxima(images, regions, (rows, columns), tuning)
    return RegionCall(engine, source, target, kernel)


def means_call(
    engine: Engine, op: ops.RegionMeans, source: Reader, target: Writer
) -> RegionCall | None:
    """Return what takes means of bins, both in C order; None where no kernels can be made."""
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    from demitasse.backends.kernels.roi_pooling import RegionMeans
    from demitasse.backends.onednn.own_kernels.region_calls import RegionCall

    regions, _, rows, columns = op.top
    kernel = RegionMeans(op.bottom, regions, (rows, columns), tuning)
    return RegionCall(engine, source, target, kernel)


def rows_kernel(
    engine: Engine, rows: int, length: int, images: int | None = None
) -> FewClasses | None:
    """Return the softmax of many short rows; None for others, or where none can be made.

    Args:
        engine: The engine.
        rows: How many there are, one behind the other, or in each image.
        length: Elements of a row.
        images: How many images there are whose planes are classes.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    from demitasse.backends.kernels import classes

    pays = classes.takes(rows, length, tuning.width)
    return classes.FewClasses(rows, length, tuning, images) if pays else None


def lrn_kernel(engine: Engine, op: ops.LRN, layout: Layout) -> Response | None:
    """Return what normalises by neighbours in a layout, in both directions; perhaps None.

    Args:
        engine: The engine.
        op: What is to be computed, across channels or within them.
        layout: Of input, output and their gradients.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout)
    if not tuning.width or images is None:
        return None
    sizes, width = (op.size, op.alpha, op.k), tuning.width
    from demitasse.backends.kernels import lrn

    if op.region == "ACROSS_CHANNELS":
        across = lrn.takes(images, op.size, op.beta, width)
        return lrn.LocalResponse(images, *sizes, tuning) if across else None
    within = lrn.takes_within(images, op.size, op.beta, width)
    return lrn.WithinResponse(images, *sizes, tuning) if within else None
