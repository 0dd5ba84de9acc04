"""Pooling of regions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.walk import Step

__all__ = ["CONVERTERS"]


def roi_pooling(step: Step, graph: Graph) -> None:
    """Add MaxRoiPool."""
    p, (x, rois), [y] = step.layer.param.roi_pooling_param, step.bottoms, step.tops
    regions = rois.name if len(rois.shape) == 2 else graph.reshape(rois, [-1, 5])
    size = [p.pooled_h, p.pooled_w]
    graph.add("MaxRoiPool", x, regions, to=y, pooled_shape=size, spatial_scale=p.spatial_scale)


def psroi_pooling(step: Step, graph: Graph) -> None:
    """Add the means of bins, each from the sums of four corners of the maps.

    The sums are of float64: those of whole maps are large beside the bins'.
    """
    p, (x, rois), [y] = step.layer.param.psroi_pooling_param, step.bottoms, step.tops
    g, (height, width) = p.group_size, x.shape[2:]
    regions = rois.name if len(rois.shape) == 2 else graph.reshape(rois, [-1, 5])
    corners = _rounded(graph, graph.slice(regions, 1, 1, 5))
    left, right = _bins(graph, corners, 0, p.spatial_scale, g, width)
    upper, lower = _bins(graph, corners, 1, p.spatial_scale, g, height)

    edge = graph.ints([0, 0, 1, 1, 0, 0, 0, 0])
    total = graph.add("Pad", graph.doubles(x), edge)
    for axis in (2, 3):
        total = graph.add("CumSum", total, graph.whole(axis))
    parts = graph.reshape(total, [x.sizes[0], p.output_dim, g, g, height + 1, width + 1])
    parts = graph.add("Transpose", parts, perm=[0, 2, 3, 4, 5, 1])  # (N, G, G, H, W, D)

    item = graph.integers(graph.slice(regions, 1, 0, 1))
    fixed = [
        graph.reshape(item, [-1, 1, 1]),
        graph.constant(np.arange(g).reshape(1, g, 1), "bin_rows"),
        graph.constant(np.arange(g).reshape(1, 1, g), "bin_columns"),
    ]
    rows = [graph.reshape(one, [-1, g, 1]) for one in (upper, lower)]
    columns = [graph.reshape(one, [-1, 1, g]) for one in (left, right)]
    shape = graph.add("Shape", graph.add("Mul", rows[0], columns[0]))  # (R, G, G)

    def at(row: str, column: str) -> str:
        parts_of_index = [
            graph.add("Unsqueeze", graph.add("Expand", one, shape), graph.ints([3]))
            for one in (*fixed, row, column)
        ]
        return graph.add("GatherND", parts, graph.add("Concat", *parts_of_index, axis=3))

    inside = graph.add("Sub", at(rows[1], columns[1]), at(rows[0], columns[1]))
    outside = graph.add("Sub", at(rows[1], columns[0]), at(rows[0], columns[0]))
    sums = graph.add("Sub", inside, outside)
    area = graph.add("Mul", graph.add("Sub", rows[1], rows[0]),
                     graph.add("Sub", columns[1], columns[0]))  # fmt: skip
    area = graph.add("Unsqueeze", area, graph.ints([3]))
    divisor = graph.doubles(graph.add("Max", area, graph.ints([1])))
    means = graph.floats(graph.add("Div", sums, divisor))  # the sum of an empty bin is 0
    graph.add("Transpose", means, perm=[0, 3, 1, 2], to=y)


def _rounded(graph: Graph, corners: str) -> str:
    """Add whole numbers, halves away from 0, which Round of ONNX takes to even ones."""
    far = graph.add("Floor", graph.add("Add", graph.add("Abs", corners), graph.number(0.5)))
    return graph.add("Mul", graph.add("Sign", corners), far)


def _bins(
    graph: Graph, corners: str, axis: int, scale: float, bins: int, length: int
) -> tuple[str, str]:
    """Add where bins begin and end along an axis, int64 (R, G).

    Args:
        graph: Where.
        corners: x1, y1, x2, y2, whole. Shape: (R, 4).
        axis: 0 for x, 1 for y.
        scale: Pixels of the map for one of the image.
        bins: G.
        length: Pixels of the map.
    """
    factor = graph.number(scale)
    start = graph.add("Mul", graph.slice(corners, 1, axis, axis + 1), factor)
    last = graph.add("Add", graph.slice(corners, 1, axis + 2, axis + 3), graph.number(1))
    extent = graph.add("Sub", graph.add("Mul", last, factor), start)
    extent = graph.add("Max", extent, graph.number(0.1))
    extent = graph.add("Div", extent, graph.number(bins))
    number = graph.constant(np.arange(bins + 1, dtype=np.float32).reshape(1, -1), "bins")
    edges = graph.add("Add", graph.add("Mul", extent, number), start)  # (R, G + 1)
    limits = graph.number(0), graph.number(length)
    low = graph.add("Clip", graph.add("Floor", graph.slice(edges, 1, 0, bins)), *limits)
    high = graph.add("Clip", graph.add("Ceil", graph.slice(edges, 1, 1, bins + 1)), *limits)
    return graph.integers(low), graph.integers(graph.add("Max", low, high))


CONVERTERS: Mapping[str, Converter] = {
    "PSROIPooling": psroi_pooling,
    "ROIPooling": roi_pooling,
}
