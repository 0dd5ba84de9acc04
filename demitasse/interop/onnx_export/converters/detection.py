"""Converters of detection layers: boxes, proposals and pooling of regions.

The layers of Cascade R-CNN and MobileNet-YOLO are at the end.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, Value, prior_boxes
from demitasse.interop.export.sizes import Size
from demitasse.interop.onnx_export.graph import Array, Converter, GraphBuilder, Operand, Result
from demitasse.io.proto import LayerParameter
from demitasse.layers.detection.boxes import just_below
from demitasse.layers.detection.cascade import NOTHING, BoxGroupOutput, DecodeBBox
from demitasse.layers.detection.detection_output import DetectionOutput, Detector
from demitasse.layers.detection.proposal import Proposal, tile_anchors
from demitasse.layers.detection.yolo_output import BOX, YoloDetectionOutput, YoloOutput
from demitasse.layers.region_pooling import ROIAlign

LOWEST = float(np.finfo(np.float32).min)


def detection_unsupported(param: LayerParameter) -> str:
    """Return why ONNX cannot express a DetectionOutput, or ""."""
    eta = param.detection_output_param.nms_param.eta
    if eta != 1:
        return f"got nms_param.eta {eta:g}, ONNX's NonMaxSuppression supports 1 only"
    return ""


def _detection_output(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add decoding, non-maximum suppression for each class, and the top boxes of each image."""
    layer, (location, scores, priors) = node.layer_as(DetectionOutput), node.bottoms[:3]
    detector = layer.detector
    n, count = location.sizes[0], layer.sizes[1]
    labels = [c for c in range(detector.classes) if c != detector.background]
    code = graph.reshape(location, [n, count, layer.boxes, 4])
    boxes = _decode(graph, detector, code, graph.reshape(priors, [2, count, 1, 4]))
    by_class = graph.add("Transpose", boxes, perm=[0, 2, 1, 3])  # (N, L, P, 4)
    score = graph.reshape(scores, [n, count, detector.classes])
    score = graph.add("Transpose", score, perm=[0, 2, 1])
    score = graph.add("Gather", score, labels, axis=1)  # (N, K, P)
    top_k = min(detector.top_k, count) if detector.top_k > -1 else count
    best, index = graph.add_several("TopK", score, [top_k], names=["scores", "order"], axis=2)
    kinds = len(labels)
    if layer.boxes == 1:
        rows = graph.reshape(index, [n, kinds * top_k, 1])
        one = graph.reshape(by_class, [n, count, 4])
        found = graph.add("GatherND", one, rows, batch_dims=1)
    else:
        rows = graph.reshape(index, [n, kinds, top_k, 1])
        some = graph.add("Gather", by_class, labels, axis=1)
        found = graph.add("GatherND", some, rows, batch_dims=2)
    # each class of each image is one item, as its candidates differ
    candidates = graph.reshape(found, [-1, top_k, 4])
    selected = graph.non_max_suppression(
        candidates,
        graph.reshape(best, [-1, 1, top_k]),
        keep=top_k,
        overlap=min(1.0, detector.overlap),
        above=detector.confidence,
    )
    kept = _selection_mask(graph, selected, graph.reshape(best, [-1, top_k]))
    kept = graph.reshape(kept, [n, kinds * top_k])
    if 0 <= detector.keep < kinds * top_k:
        scored = graph.reshape(best, [n, kinds * top_k])
        counted = graph.add("Where", graph.add("Greater", kept, 0), scored, LOWEST)
        _, top = graph.add_several(
            "TopK", counted, [detector.keep], names=["best_scores", "best"], axis=1
        )
        ones = graph.to_float(graph.add("Equal", top, top))
        kept *= graph.add("ScatterElements", kept * 0, top, ones, axis=1)
    places = graph.add("NonZero", graph.reshape(kept, [n, kinds, top_k]))  # (3, K)
    which = graph.add("Transpose", places, perm=[1, 0])
    image = graph.to_float(graph.add("Gather", places, [0], axis=0))
    kind = graph.add("Gather", places, [1], axis=0)
    label = graph.add("Gather", graph.constant(np.array(labels, np.float32), "labels"), kind)
    head = [
        graph.reshape(image, [-1, 1]),
        graph.reshape(label, [-1, 1]),
        graph.reshape(graph.add("GatherND", best, which), [-1, 1]),
        graph.add("GatherND", graph.reshape(candidates, [n, kinds, top_k, 4]), which),
    ]
    return _rows_or_empty(graph, graph.add("Concat", *head, axis=1), n)


def _decode(graph: GraphBuilder, detector: Detector, code: Array, priors: Array) -> Array:
    """Add the predicted boxes.

    Shapes: code (N, P, L, 4), priors and their variances (2, P, 1, 4) -> (N, P, L, 4).
    """
    prior, offset = graph.slice(priors, 0, 0, 1), code
    if not detector.variance_in_target:
        offset = code * graph.slice(priors, 0, 1, 2)
    if detector.code == "CORNER":
        return prior + offset
    low, high = graph.slice(prior, 3, 0, 2), graph.slice(prior, 3, 2, 4)
    size = high - low
    if detector.code == "CORNER_SIZE":
        return prior + offset * graph.add("Concat", size, size, axis=3)
    centre = graph.slice(offset, 3, 0, 2) * size + (low + high) * 0.5
    half = graph.add("Exp", graph.slice(offset, 3, 2, 4)) * size * 0.5
    return graph.add("Concat", centre - half, centre + half, axis=3)


def _selection_mask(graph: GraphBuilder, selected: Array, like: Array) -> Array:
    """Add 1 for every selected (item, 0, box), 0 for others. Shapes: (S, 3), (items, boxes)."""
    pairs = graph.add("Gather", selected, [0, 2], axis=1)
    first = graph.slice(pairs, 1, 0, 1)
    ones = graph.to_float(graph.add("Equal", first, first))
    return graph.add("ScatterND", like * 0, pairs, graph.reshape(ones, [-1]))


def _rows_or_empty(graph: GraphBuilder, rows: Array, n: Size) -> Array:
    """Add the rows; without any row, one row of image index and -1 for each image."""
    images = graph.reshape(graph.sizes([n]), [])
    numbers = graph.add("Range", graph.int_scalar(0), images, graph.int_scalar(1))
    first = graph.reshape(graph.to_float(numbers), [-1, 1])
    rest = graph.constant(np.full((1, 6), -1, np.float32), "nothing")
    rest = graph.add("Tile", rest, graph.sizes([n, 1]))
    nothing = graph.add("Concat", first, rest, axis=1)
    every = graph.add("Concat", rows, nothing, axis=0)
    count = graph.add("Gather", graph.add("Shape", rows), [0])
    end = graph.add("Where", graph.add("Greater", count, [0]), count, graph.sizes([n]))
    return graph.reshape(graph.add("Slice", every, [0], end, [0]), [1, 1, -1, 7])


def _proposal(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add the regions: moved anchors after non-maximum suppression."""
    proposer, (scores, deltas, images) = node.layer_as(Proposal), node.bottoms
    n, anchors = scores.sizes[0], len(proposer.anchors)
    height, width = scores.shape[2:]
    count = height * width * anchors
    score = graph.slice(scores, 1, anchors, 2 * anchors)
    score = graph.reshape(graph.add("Transpose", score, perm=[0, 2, 3, 1]), [n, count])
    code = graph.reshape(graph.add("Transpose", deltas, perm=[0, 2, 3, 1]), [n, count, 4])
    sides = graph.reshape(images, [n, 1, 3])
    tiled = tile_anchors(proposer.anchors, (height, width), proposer.stride)
    boxes = _move_anchors(graph, tiled, code)
    high, wide = graph.slice(sides, 2, 0, 1), graph.slice(sides, 2, 1, 2)
    ends = graph.add("Concat", wide, high, wide, high, axis=2) - 1
    boxes = graph.add("Min", graph.add("Max", boxes, 0), ends)
    least = graph.slice(sides, 2, 2, 3) * proposer.least
    image, regions, found = _best_regions(
        graph, boxes, score, count, smallest=graph.reshape(least, [n, 1]),
        candidates=proposer.looked_at, keep=proposer.keep, overlap=proposer.overlap, above=LOWEST,
    )  # fmt: skip
    rows = graph.add("Concat", image, regions, axis=1)
    return [rows, graph.reshape(found, [-1, 1])] if len(node.tops) > 1 else rows


def _best_regions(
    graph: GraphBuilder, boxes: Array, score: Array, count: int, *, smallest: Operand,
    candidates: int, keep: int, overlap: float, above: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Add the boxes with the highest scores after non-maximum suppression.

    The ends of boxes are their last pixels, and ``smallest`` is the least side in pixels. At most
    ``candidates`` and ``keep`` boxes are before and after the suppression; 0 for all.

    Shapes: boxes (N, count, 4), score (N, count) -> image (R, 1), box (R, 4) and score (R,).
    """
    size = graph.slice(boxes, 2, 2, 4) - graph.slice(boxes, 2, 0, 2) + 1
    shortest = graph.reduce("ReduceMin", size, [2], keep=False)
    score = graph.add("Where", graph.add("GreaterOrEqual", shortest, smallest), score, LOWEST)
    top_k = min(candidates or count, count)
    best, index = graph.add_several("TopK", score, [top_k], names=["scores", "order"], axis=1)
    some = graph.add("GatherND", boxes, graph.add("Unsqueeze", index, [2]), batch_dims=1)
    behind = graph.constant(np.array([0, 0, 1, 1], np.float32), "behind_the_last_pixel")
    selected = graph.non_max_suppression(
        some + behind,
        graph.add("Unsqueeze", best, [1]),
        keep=min(keep or top_k, top_k),
        overlap=min(1.0, overlap),
        above=above,
    )
    which = graph.add("Gather", selected, [0, 2], axis=1)
    image = graph.to_float(graph.slice(which, 1, 0, 1))
    return image, graph.add("GatherND", some, which), graph.add("GatherND", best, which)


def _move_anchors(graph: GraphBuilder, anchors: np.ndarray, code: Array) -> Array:
    """Add anchors with shifted centers and scaled sides. Shape: (N, K, 4)."""
    flat = anchors.reshape(1, -1, 4).astype(np.float32)
    size = flat[..., 2:] - flat[..., :2] + 1
    shift = graph.slice(code, 2, 0, 2) * graph.constant(size, "sides")
    centre = shift + graph.constant(flat[..., :2] + size / 2, "centres")
    scaled = graph.add("Exp", graph.slice(code, 2, 2, 4))
    half = scaled * graph.constant(size / 2, "halves")
    return graph.add("Concat", centre - half, centre + half, axis=2)


# -- regions -----------------------------------------------------------------------------------


def _roi_pooling(node: LayerNode, graph: GraphBuilder) -> Result:
    p, (x, rois) = node.layer.param.roi_pooling_param, node.bottoms
    regions = _widened_regions(graph, rois, p.pad_ratio)
    size = [p.pooled_h, p.pooled_w]
    return graph.add("MaxRoiPool", x, regions, pooled_shape=size, spatial_scale=p.spatial_scale)


def _widened_regions(graph: GraphBuilder, rois: Value, ratio: float) -> Array | Value:
    """Add regions that are wider on each side by a ratio of their size: a product and a sum."""
    regions = rois if len(rois.shape) == 2 else graph.reshape(rois, [-1, 5])
    if not ratio:
        return regions
    factors, shift = np.eye(5, dtype=np.float32), np.zeros(5, np.float32)
    for low, high in ((1, 3), (2, 4)):
        for corner, sign in ((low, 1), (high, -1)):
            factors[low, corner] += sign * ratio
            factors[high, corner] -= sign * ratio
            shift[corner] = -sign * ratio
    weights = graph.constant(factors, "widening"), graph.constant(shift, "shift")
    return graph.add("Gemm", regions, *weights)


def _psroi_pooling(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add the means of bins by integral images.

    Sums are float64, as sums of whole maps are large compared with those of bins.
    """
    p, (x, rois) = node.layer.param.psroi_pooling_param, node.bottoms
    g, (height, width) = p.group_size, x.shape[2:]
    regions = _widened_regions(graph, rois, 0)
    corners = graph.slice(regions, 1, 1, 5)
    # halves are rounded away from 0; ONNX's Round takes halves to even numbers
    far = graph.add("Floor", graph.add("Abs", corners) + 0.5)
    corners = graph.add("Sign", corners) * far
    left, right = _bins(graph, corners, 0, p.spatial_scale, g, width)
    upper, lower = _bins(graph, corners, 1, p.spatial_scale, g, height)

    total = graph.add("Pad", graph.to_double(x), [0, 0, 1, 1, 0, 0, 0, 0])
    for axis in (2, 3):
        total = graph.add("CumSum", total, graph.int_scalar(axis))
    parts = graph.reshape(total, [x.sizes[0], p.output_dim, g, g, height + 1, width + 1])
    parts = graph.add("Transpose", parts, perm=[0, 2, 3, 4, 5, 1])  # (N, G, G, H, W, D)

    item = graph.to_int(graph.slice(regions, 1, 0, 1))
    fixed = [
        graph.reshape(item, [-1, 1, 1]),
        graph.constant(np.arange(g).reshape(1, g, 1), "bin_rows"),
        graph.constant(np.arange(g).reshape(1, 1, g), "bin_columns"),
    ]
    top, bottom = (graph.reshape(one, [-1, g, 1]) for one in (upper, lower))
    first, last = (graph.reshape(one, [-1, 1, g]) for one in (left, right))
    shape = graph.add("Shape", top * first)  # (R, G, G)

    def at(row: Array, column: Array) -> Array:
        return _gather_at(graph, parts, [*fixed, row, column], shape)

    inside = at(bottom, last) - at(top, last)
    outside = at(bottom, first) - at(top, first)
    sums = inside - outside
    area = graph.add("Unsqueeze", (bottom - top) * (last - first), [3])
    divisor = graph.to_double(graph.add("Max", area, [1]))
    means = graph.to_float(sums / divisor)  # the sum of an empty bin is 0
    return graph.add("Transpose", means, perm=[0, 3, 1, 2])


def _gather_at(graph: GraphBuilder, x: Array, index: Sequence[Array], shape: Array) -> Array:
    """Add the elements at indices that broadcast to a shape of three axes."""
    full = [graph.add("Unsqueeze", graph.add("Expand", one, shape), [3]) for one in index]
    return graph.add("GatherND", x, graph.add("Concat", *full, axis=3))


def _bins(
    graph: GraphBuilder, corners: Array, axis: int, scale: float, bins: int, length: int
) -> tuple[Array, Array]:
    """Add the starts and ends of bins along an axis, 0 for x, of a map of ``length`` pixels.

    ``scale`` is in pixels of the map per pixel of the image.

    Shapes: corners x1, y1, x2, y2, rounded (R, 4) -> twice int64 (R, bins).
    """
    start = graph.slice(corners, 1, axis, axis + 1) * scale
    extent = (graph.slice(corners, 1, axis + 2, axis + 3) + 1) * scale - start
    extent = graph.add("Max", extent, 0.1) / bins
    number = graph.constant(np.arange(bins + 1, dtype=np.float32).reshape(1, -1), "bins")
    edges = extent * number + start  # (R, G + 1)
    low = graph.add("Clip", graph.add("Floor", graph.slice(edges, 1, 0, bins)), 0, length)
    high = graph.add("Clip", graph.add("Ceil", graph.slice(edges, 1, 1, bins + 1)), 0, length)
    return graph.to_int(low), graph.to_int(graph.add("Max", low, high))


def _roi_align(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add four gathers of pixels, weighted; ONNX's RoiAlign has other rules at the edges."""
    layer, (x, rois) = node.layer_as(ROIAlign), node.bottoms
    regions = _widened_regions(graph, rois, layer.pad_ratio)
    corners = graph.slice(regions, 1, 1, 5) * layer.scale - 0.5
    low, high = graph.slice(corners, 1, 0, 2), graph.slice(corners, 1, 2, 4)
    extent = high - low
    signs = graph.to_float(graph.add("Greater", extent, 0))
    whole = graph.reduce("ReduceMin", signs, [1])  # (R, 1)
    axes = []
    for axis, (bins, length) in enumerate(zip(layer.pooled, x.shape[2:], strict=True)):
        first = graph.slice(low, 1, 1 - axis, 2 - axis)  # rows are y
        step = graph.slice(extent, 1, 1 - axis, 2 - axis) / bins
        number = graph.constant(np.arange(bins + 1, dtype=np.float32)[None], "corners")
        place = first + step * number
        after = graph.add("GreaterOrEqual", place, -0.5)
        inside = graph.add("And", after, graph.add("LessOrEqual", place, length - 0.5))
        counts = graph.to_float(inside) * whole
        floor = graph.add("Floor", place)
        near = graph.add("Clip", floor, 0, length - 1)
        far = graph.add("Clip", floor + 1, 0, length - 1)
        part = graph.add("Clip", place, 0, length - 1) - near
        shape = [-1, bins + 1, 1] if axis == 0 else [-1, 1, bins + 1]
        axes.append([
            (graph.reshape(graph.to_int(pixel), shape),
             graph.reshape(weight * counts, [*shape, 1]))
            for pixel, weight in ((near, 1 - part), (far, part))
        ])  # fmt: skip
    pixels = graph.add("Transpose", x, perm=[0, 2, 3, 1])
    item = graph.reshape(graph.to_int(graph.slice(regions, 1, 0, 1)), [-1, 1, 1])
    total: Array | None = None
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            grid = graph.add("Shape", row + column)
            value = _gather_at(graph, pixels, [item, row, column], grid)
            value *= row_weight * column_weight
            total = total + value if total else value
    return graph.add("Transpose", total, perm=[0, 3, 1, 2])


def _decode_bbox(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add the moved regions."""
    layer, (codes, rois) = node.layer_as(DecodeBBox), node.bottoms[:2]
    code = _normalized(graph, layer, graph.slice(graph.reshape(codes, [-1, 8]), 1, 4, 8))
    regions = graph.reshape(rois, [-1, 5])
    low, high = graph.slice(regions, 1, 1, 3), graph.slice(regions, 1, 3, 5)
    size = high - low + 1
    centre = (low + high) * 0.5 + graph.slice(code, 1, 0, 2) * size
    reach = size * graph.add("Exp", graph.slice(code, 1, 2, 4)) - 1
    first = centre - reach * 0.5
    rows = graph.add("Concat", graph.slice(regions, 1, 0, 1), first, first + reach, axis=1)
    return graph.reshape(rows, [-1, 5, 1, 1])


def _normalized(graph: GraphBuilder, layer: DecodeBBox | BoxGroupOutput, code: Array) -> Array:
    """Add the product with the deviation, and the sum with the mean, along the last axis."""
    scaled = code * graph.constant(layer.std.astype(np.float32), "std")
    return scaled + graph.constant(layer.mean.astype(np.float32), "mean")


def _box_group_output(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add the regions of all maps after non-maximum suppression."""
    layer = node.layer_as(BoxGroupOutput)
    p, scores = layer.param.box_group_output_param, node.bottoms[::2]
    maps = zip(scores, node.bottoms[1::2], layer.fields, layer.strides, strict=True)
    boxes, score = _concatenated(graph, [_group(graph, layer, *one) for one in maps])
    count = sum(
        len(fields) * math.prod(one.shape[2:])
        for one, fields in zip(scores, layer.fields, strict=True)
    )
    image, regions, found = _best_regions(
        graph, boxes, score, count, smallest=p.min_size, candidates=p.max_nms_num,
        keep=p.max_post_nms_num, overlap=p.iou_thr, above=max(just_below(p.fg_thr), LOWEST),
    )  # fmt: skip
    regions = graph.add("Concat", image, regions, axis=1)
    scored = graph.add("Concat", regions, graph.reshape(found, [-1, 1]), axis=1)
    nothing = [np.array([NOTHING], np.float32), np.zeros((1, 6), np.float32)]
    results = []
    for _, rows, row in zip(node.tops, (regions, scored), nothing, strict=False):
        # without any row, one row of defaults
        every = graph.add("Concat", rows, graph.constant(row, "nothing"), axis=0)
        count_of_rows = graph.add("Gather", graph.add("Shape", rows), [0])
        filled = graph.add("Slice", every, [0], graph.add("Max", count_of_rows, [1]), [0])
        results.append(graph.reshape(filled, [-1, row.shape[1], 1, 1]))
    return results


def _concatenated(graph: GraphBuilder, parts: Sequence[tuple[Array, ...]]) -> list[Array]:
    """Add the concatenations of the values of several maps along axis 1."""
    return [
        graph.add("Concat", *one, axis=1) if len(one) > 1 else one[0]
        for one in zip(*parts, strict=True)
    ]


def _group(
    graph: GraphBuilder, layer: BoxGroupOutput, scores: Value, codes: Value, fields: np.ndarray,
    stride: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Add boxes and scores of one map. Shapes: (N, K, 4), (N, K)."""
    p, (height, width) = layer.param.box_group_output_param, codes.shape[2:]
    count = len(fields) * height * width
    code = graph.reshape(codes, [-1, len(fields), 4, height, width])
    code = _normalized(graph, layer, graph.add("Transpose", code, perm=[0, 1, 3, 4, 2]))
    by, whr = 1 / p.field_xyr, math.log(p.field_whr)
    shift = graph.add("Clip", graph.slice(code, 4, 0, 2), -by, by)
    factor = graph.add("Clip", graph.slice(code, 4, 2, 4), -whr, whr)
    size = graph.constant(fields.astype(np.float32)[:, None, None, :], "fields")
    y, x = np.meshgrid(*((np.arange(n) + 0.5) * stride for n in (height, width)), indexing="ij")
    centre = graph.constant(np.stack([x, y], axis=-1).astype(np.float32), "centres")
    sides = size * graph.add("Exp", factor)
    low = shift * size + centre - sides * 0.5
    high = low + sides - 1
    ends = np.array([width * stride, height * stride], np.float32)
    high = graph.add("Min", high, graph.constant(ends, "ends"))
    boxes = graph.add("Concat", graph.add("Max", low, 0), high, axis=4)
    background = graph.reshape(graph.slice(scores, 1, 0, 1), [-1, count])
    return graph.reshape(boxes, [-1, count, 4]), 1 - background


# -- YOLO --------------------------------------------------------------------------------------


def _yolo_output(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add decoding, and non-maximum suppression across classes."""
    layer = node.layer_as(YoloOutput)
    best_only = isinstance(layer, YoloDetectionOutput)
    units = layer.units(list(node.place.bottom))
    n, parts, count = node.bottoms[0].sizes[0], [], 0
    for x, anchors, unit in zip(node.bottoms, layer.anchors, units, strict=True):
        parts.append(_yolo_map(graph, layer, x, anchors / unit, best_only=best_only))
        count += len(anchors) * math.prod(x.shape[2:]) * (1 if best_only else layer.classes)
    boxes, score, kind = _concatenated(graph, parts)
    selected = graph.non_max_suppression(
        boxes,
        graph.add("Unsqueeze", score, [1]),
        keep=count,
        overlap=just_below(layer.overlap),
        above=just_below(layer.confidence) if best_only else layer.confidence,
    )
    which = graph.add("Gather", selected, [0, 2], axis=1)
    columns = [
        graph.to_float(graph.slice(which, 1, 0, 1)),
        graph.reshape(graph.add("GatherND", kind, which), [-1, 1]),
        graph.reshape(graph.add("GatherND", score, which), [-1, 1]),
        graph.add("GatherND", boxes, which),
    ]
    return _rows_or_empty(graph, graph.add("Concat", *columns, axis=1), n)


def _yolo_map(
    graph: GraphBuilder, layer: YoloOutput, x: Value, anchors: np.ndarray, *, best_only: bool
) -> tuple[Array, Array, Array]:
    """Add boxes, scores and classes of a map. Shapes: (N, K, 4), (N, K), (N, K)."""
    (height, width), kinds = x.shape[2:], 1 if best_only else layer.classes
    count = len(anchors) * height * width
    values = graph.reshape(x, [-1, len(anchors), BOX + layer.classes, height, width])
    values = graph.add("Transpose", values, perm=[0, 3, 4, 1, 2])  # (N, H, W, A, numbers)
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    cells = np.stack([columns, rows], axis=-1).astype(np.float32)[:, :, None, :]
    sides = graph.constant(np.array([width, height], np.float32), "sides")
    centre = graph.add("Sigmoid", graph.slice(values, 4, 0, 2))
    centre = (centre + graph.constant(cells, "cells")) / sides
    halves = graph.constant(anchors.astype(np.float32) / 2, "half_anchors")
    half = graph.add("Exp", graph.slice(values, 4, 2, 4)) * halves
    boxes = graph.add("Concat", centre - half, centre + half, axis=4)
    boxes = graph.reshape(boxes, [-1, count, 1, 4])
    chance = graph.add("Sigmoid", graph.slice(values, 4, 4, 5))
    classes = graph.slice(values, 4, BOX, BOX + layer.classes)
    if best_only:
        shares = graph.add("Softmax", classes, axis=4)
        score = chance * graph.reduce("ReduceMax", shares, [4])
        kind = graph.to_float(graph.add("ArgMax", classes, axis=4, keepdims=1))
    else:
        score = chance * graph.add("Sigmoid", classes)
        numbers = graph.constant(np.arange(layer.classes, dtype=np.float32), "classes")
        kind = classes * 0 + numbers
        boxes = graph.add("Tile", boxes, [1, 1, kinds, 1])
    return (
        graph.reshape(boxes, [-1, count * kinds, 4]),
        graph.reshape(score, [-1, count * kinds]),
        graph.reshape(kind + 1, [-1, count * kinds]),
    )


CONVERTERS: Mapping[str, Converter] = {
    "BoxGroupOutput": _box_group_output,
    "DecodeBBox": _decode_bbox,
    "DetectionOutput": _detection_output,
    "PSROIPooling": _psroi_pooling,
    "PriorBox": lambda node, graph: graph.constant(prior_boxes(node), "priors"),
    "Proposal": _proposal,
    "ROIAlign": _roi_align,
    "ROIPooling": _roi_pooling,
    "YoloDetectionOutput": _yolo_output,
    "Yolov3DetectionOutput": _yolo_output,
}
