"""Regions of interest: which pixels of a map each bin of each region covers.

Host code on numpy arrays, in the net's dtype, since rounding decides where bins end. Layers and
Steps both use it. A region is (item, x1, y1, x2, y2), its corners in pixels of the image and part
of it.

Source: Fast R-CNN (rbgirshick/caffe-fast-rcnn), ``src/caffe/layers/roi_pooling_layer.cpp``; R-FCN
(daijifeng001/caffe-rfcn), ``src/caffe/layers/psroi_pooling_layer.cu``.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.errors import ErrorCode, ShapeError

Span = tuple[int, int]


@dataclass(frozen=True)
class Region:
    """One region of ``Bins``, as numbers of Python."""

    item: int
    rows: tuple[Span, ...]
    columns: tuple[Span, ...]


class Bins(NamedTuple):
    """The bins of R regions.

    Attributes:
        items: Index of each one's image in the batch. Shape: (R,).
        rows: First row and the one after the last, for every row of bins; equal where empty.
            Shape: (R, height, 2).
        columns: The same for columns. Shape: (R, width, 2).
    """

    items: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    def each(self) -> list[Region]:
        """Return the regions one by one."""
        spans = (
            [tuple((first, last) for first, last in region) for region in axis.tolist()]
            for axis in (self.rows, self.columns)
        )
        return [Region(*parts) for parts in zip(self.items.tolist(), *spans, strict=True)]


def bins_of(op: ops.ROIPool | ops.PSROIPool, rois: np.ndarray) -> Bins:
    """Return the bins of regions of R x 5 values for an operation; see :func:`bins`."""
    rois, cut = rois.reshape(-1, 5), bins_between
    if isinstance(op, ops.ROIPool):
        rois, cut = widened(rois, op.pad_ratio), bins
    images, _, height, width = op.bottom
    return cut(rois, op.scale, (op.top[2], op.top[3]), images, (height, width))


def bins(
    rois: np.ndarray, scale: float, pooled: tuple[int, int], batch: int, size: tuple[int, int]
) -> Bins:
    """Cut regions (R, 5) whose corners are rounded on the map, as ROIPooling does.

    ``scale`` is the pixels of the map for one of the image. There are ``pooled`` rows and columns
    of bins, ``batch`` images, and ``size`` is height and width of the map.

    Raises:
        ShapeError: A region's image is not in the batch, or a corner is NaN.
    """
    kind = rois.dtype.type
    items = _items(rois, batch)
    corner = _rounded(rois[:, 1:] * kind(scale))  # (R, 4): x1, y1, x2, y2
    spans = []
    for first, last, count, length in zip(
        (corner[:, 1], corner[:, 0]), (corner[:, 3], corner[:, 2]), pooled, size, strict=True
    ):
        extent = np.maximum(last - first + 1, 1).astype(kind) / kind(count)
        spans.append(_spans(extent, np.zeros_like(extent), first, count, length))
    return Bins(items, *spans)


def widened(rois: np.ndarray, ratio: float) -> np.ndarray:
    """Return regions that are wider on each side by a ratio of their width and height.

    Source: Cascade R-CNN (zhaoweicai/cascade-rcnn), ``src/caffe/layers/roi_pooling_layer.cpp``.
    """
    if not ratio:
        return rois
    kind = rois.dtype.type
    pads = (rois[:, 3:] - rois[:, 1:3] + kind(1)) * kind(ratio)
    return np.concatenate([rois[:, :1], rois[:, 1:3] - pads, rois[:, 3:] + pads], axis=1)


def bins_between(
    rois: np.ndarray, scale: float, pooled: tuple[int, int], batch: int, size: tuple[int, int]
) -> Bins:
    """Cut regions whose corners lie between pixels of the map, as PSROIPooling does.

    Corners are rounded in the image; a region is at least 0.1 pixels of the map long. Arguments and
    errors are those of :func:`bins`.
    """
    kind = rois.dtype.type
    items = _items(rois, batch)
    corner = _rounded(rois[:, 1:]).astype(kind)
    spans = []
    for first, last, count, length in zip(
        (corner[:, 1], corner[:, 0]), (corner[:, 3], corner[:, 2]), pooled, size, strict=True
    ):
        start, end = first * kind(scale), (last + kind(1)) * kind(scale)
        extent = np.maximum(end - start, kind(0.1)) / kind(count)
        spans.append(_spans(extent, start, np.zeros(len(rois)), count, length))
    return Bins(items, *spans)


def grid_samples(
    rois: np.ndarray, scale: float, pooled: tuple[int, int], batch: int, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels between which ROIAlign interpolates the corners of bins; see ``bins``.

    Four pixels of each corner have an index in (batch, height, width), and a weight. Shapes:
    (4, R (rows + 1) (columns + 1)).

    Source: Cascade R-CNN (zhaoweicai/cascade-rcnn), ``src/caffe/layers/roi_align_layer.cpp``.
    """
    kind = rois.dtype.type
    items = _items(rois, batch)
    corner = rois[:, 1:] * kind(scale) - kind(0.5)
    extent = corner[:, 2:] - corner[:, :2]
    whole = (extent > 0).all(axis=1)
    axes = []
    for axis, (bins_along, length) in enumerate(zip(pooled, size, strict=True)):
        first, span = corner[:, 1 - axis], extent[:, 1 - axis]  # rows are y
        steps = np.arange(bins_along + 1).astype(kind) * (span / kind(bins_along))[:, None]
        place = first[:, None] + steps  # (R, bins + 1)
        inside = whole[:, None] & (place >= -0.5) & (place <= kind(length) - kind(0.5))
        floor = np.floor(np.where(inside, place, 0))
        near = np.clip(np.stack([floor, floor + 1]), 0, length - 1)
        part = np.clip(place, 0, length - 1) - near[0]
        weights = np.where(inside, np.stack([1 - part, part]), kind(0))
        axes.append((near.astype(np.int64), weights.astype(kind)))
    (rows, of_row), (columns, of_column) = axes
    shape = (4, -1)
    first_pixel = items[:, None, None] * (size[0] * size[1])
    pixels = first_pixel + rows[:, None, :, :, None] * size[1] + columns[None, :, :, None, :]
    weights = of_row[:, None, :, :, None] * of_column[None, :, :, None, :]
    return pixels.reshape(shape), weights.reshape(shape)


def _spans(
    extent: np.ndarray, start: np.ndarray, shift: np.ndarray, count: int, length: int
) -> np.ndarray:
    """Return where bins begin and end along one axis of each region. Shape: (R, count, 2).

    ``extent`` is the length of a bin (R,); a region begins at ``start``, which is added before
    rounding, or at ``shift``, which is added after rounding. The map has ``length`` pixels.
    """
    number = np.arange(count + 1).astype(extent.dtype)
    edge = number * extent[:, None] + start[:, None]  # (R, count + 1)
    low = np.clip(np.floor(edge[:, :-1]) + shift[:, None], 0, length).astype(np.int64)
    high = np.clip(np.ceil(edge[:, 1:]) + shift[:, None], 0, length).astype(np.int64)
    return np.stack([low, np.maximum(low, high)], axis=2)


def _items(rois: np.ndarray, batch: int) -> np.ndarray:
    """Return the index of each region's image; refuse regions without one, or with NaN."""
    good = np.isfinite(rois).all(axis=1) & (rois[:, 0] > -1) & (rois[:, 0] < batch)
    if not good.all():
        wrong = int(np.argmin(good))
        message = (
            f"region {wrong} is {rois[wrong].tolist()}; it must be (item, x1, y1, x2, y2) with an "
            f"item below {batch}"
        )
        raise ShapeError(message, code=ErrorCode.OUT_OF_RANGE, region=wrong, items=batch)
    return rois[:, 0].astype(np.int64)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to whole numbers, halves away from zero. Shapes: any -> the same, float64."""
    exact = values.astype(np.float64)
    return np.trunc(exact + np.copysign(0.5, exact))
