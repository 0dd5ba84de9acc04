"""Converters of detection layers: boxes, proposals and pooling of regions.

The layers of Cascade R-CNN and MobileNet-YOLO are at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.export.sizes import Size
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
from demitasse.io.proto import LayerParameter
from demitasse.layers.detection.boxes import just_below
from demitasse.layers.detection.cascade import NOTHING, BoxGroupOutput, DecodeBBox
from demitasse.layers.detection.detection_output import DetectionOutput, Detector
from demitasse.layers.detection.proposal import Proposal, tile_anchors
from demitasse.layers.detection.yolo_output import BOX, YoloDetectionOutput, YoloOutput
from demitasse.layers.region_pooling import ROIAlign

LOWEST = float(np.finfo(np.float32).min)


def _prior_box(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the boxes as a constant, as they depend on shapes alone."""
    place = node.place
    place.layer.run_forward(place.bottom, place.top)
    priors = np.array(place.top[0].cpu_data())
    graph.add("Identity", graph.constant(priors, "priors"), to=node.tops[0])


def detection_unsupported(param: LayerParameter) -> str:
    """Return why ONNX cannot express a DetectionOutput, or ""."""
    eta = param.detection_output_param.nms_param.eta
    if eta != 1:
        return f"got nms_param.eta {eta:g}, ONNX's NonMaxSuppression supports 1 only"
    return ""


def _detection_output(node: LayerNode, graph: GraphBuilder) -> None:
    """Add decoding, non-maximum suppression for each class, and the top boxes of each image."""
    layer, (location, scores, priors) = node.layer_as(DetectionOutput), node.bottoms[:3]
    detector, shared = layer.detector, layer.boxes == 1
    n, count = location.sizes[0], layer.sizes[1]
    labels = [c for c in range(detector.classes) if c != detector.background]
    boxes = _decode(
        graph,
        detector,
        graph.reshape(location, [n, count, layer.boxes, 4]),
        graph.reshape(priors, [2, count, 1, 4]),
    )
    by_class = graph.add("Transpose", boxes, perm=[0, 2, 1, 3])  # (N, L, P, 4)
    score = graph.add("Transpose", graph.reshape(scores, [n, count, detector.classes]),
                      perm=[0, 2, 1])  # fmt: skip
    chosen = graph.ints(labels)
    score = graph.add("Gather", score, chosen, axis=1)  # (N, K, P)
    top_k = min(detector.top_k, count) if detector.top_k > -1 else count
    best, index = graph.name("scores"), graph.name("order")
    graph.add_several("TopK", score, graph.ints([top_k]), to=[best, index], axis=2)
    kinds = len(labels)
    if shared:
        rows = graph.reshape(index, [n, kinds * top_k, 1])
        one = graph.reshape(by_class, [n, count, 4])
        found = graph.add("GatherND", one, rows, batch_dims=1)
    else:
        rows = graph.reshape(index, [n, kinds, top_k, 1])
        some = graph.add("Gather", by_class, chosen, axis=1)
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
        kept = _top_of_image(graph, kept, graph.reshape(best, [n, kinds * top_k]),
                              detector.keep)  # fmt: skip
    places = graph.add("NonZero", graph.reshape(kept, [n, kinds, top_k]))  # (3, K)
    which = graph.add("Transpose", places, perm=[1, 0])
    image = graph.to_float(graph.add("Gather", places, graph.ints([0]), axis=0))
    kind = graph.add("Gather", places, graph.ints([1]), axis=0)
    label = graph.add("Gather", graph.constant(np.array(labels, np.float32), "labels"), kind)
    head = [
        graph.reshape(image, [-1, 1]),
        graph.reshape(label, [-1, 1]),
        graph.reshape(graph.add("GatherND", best, which), [-1, 1]),
        graph.add("GatherND", graph.reshape(candidates, [n, kinds, top_k, 4]), which),
    ]
    rows = graph.add("Concat", *head, axis=1)
    rows_or_empty(node, graph, rows, n)


def _decode(graph: GraphBuilder, detector: Detector, code: str, priors: str) -> str:
    """Add the predicted boxes.

    Shapes: code (N, P, L, 4), priors and their variances (2, P, 1, 4) -> (N, P, L, 4).
    """
    prior = graph.slice(priors, 0, 0, 1)
    offset = code
    if not detector.variance_in_target:
        offset = graph.add("Mul", code, graph.slice(priors, 0, 1, 2))
    if detector.code == "CORNER":
        return graph.add("Add", prior, offset)
    low, high = graph.slice(prior, 3, 0, 2), graph.slice(prior, 3, 2, 4)
    size = graph.add("Sub", high, low)
    if detector.code == "CORNER_SIZE":
        both = graph.add("Concat", size, size, axis=3)
        return graph.add("Add", prior, graph.add("Mul", offset, both))
    half = graph.scalar(0.5)
    middle = graph.add("Mul", graph.add("Add", low, high), half)
    shift = graph.add("Mul", graph.slice(offset, 3, 0, 2), size)
    centre = graph.add("Add", shift, middle)
    scaled = graph.add("Mul", graph.add("Exp", graph.slice(offset, 3, 2, 4)), size)
    reach = graph.add("Mul", scaled, half)
    corners = graph.add("Sub", centre, reach), graph.add("Add", centre, reach)
    return graph.add("Concat", *corners, axis=3)


def _selection_mask(graph: GraphBuilder, selected: str, like: str) -> str:
    """Add 1 for every selected (item, 0, box), 0 for others. Shapes: (S, 3), (items, boxes)."""
    nothing = graph.add("Mul", like, graph.scalar(0))
    pairs = graph.add("Gather", selected, graph.ints([0, 2]), axis=1)
    first = graph.slice(pairs, 1, 0, 1)
    ones = graph.to_float(graph.add("Equal", first, first))
    return graph.add("ScatterND", nothing, pairs, graph.reshape(ones, [-1]))


def _top_of_image(graph: GraphBuilder, kept: str, score: str, count: int) -> str:
    """Add the marks of the boxes with the highest scores. Shapes: (N, boxes)."""
    is_kept = graph.add("Greater", kept, graph.scalar(0))
    counted = graph.add("Where", is_kept, score, graph.scalar(LOWEST))
    values, index = graph.name("best_scores"), graph.name("best")
    graph.add_several("TopK", counted, graph.ints([count]), to=[values, index], axis=1)
    ones = graph.to_float(graph.add("Equal", index, index))
    nothing = graph.add("Mul", kept, graph.scalar(0))
    best = graph.add("ScatterElements", nothing, index, ones, axis=1)
    return graph.add("Mul", kept, best)


def rows_or_empty(node: LayerNode, graph: GraphBuilder, rows: str, n: Size) -> None:
    """Add the rows; without any row, one row of image index and -1 for each image."""
    images = graph.reshape(graph.sizes([n]), [])
    numbers = graph.add("Range", graph.int_scalar(0), images, graph.int_scalar(1))
    first = graph.reshape(graph.to_float(numbers), [-1, 1])
    rest = graph.add("Tile", graph.constant(np.full((1, 6), -1, np.float32), "nothing"),
                     graph.sizes([n, 1]))  # fmt: skip
    nothing = graph.add("Concat", first, rest, axis=1)
    every = graph.add("Concat", rows, nothing, axis=0)
    count = graph.add("Gather", graph.add("Shape", rows), graph.ints([0]))
    some = graph.add("Greater", count, graph.ints([0]))
    end = graph.add("Where", some, count, graph.sizes([n]))
    found = graph.add("Slice", every, graph.ints([0]), end, graph.ints([0]))
    graph.reshape(found, [1, 1, -1, 7], to=node.tops[0])


def _proposal(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the regions: moved anchors after non-maximum suppression."""
    proposer, (scores, deltas, images) = node.layer_as(Proposal).proposer, node.bottoms
    n, anchors = scores.sizes[0], len(proposer.anchors)
    height, width = scores.shape[2:]
    count = height * width * anchors
    score = graph.slice(scores, 1, anchors, 2 * anchors)
    score = graph.reshape(graph.add("Transpose", score, perm=[0, 2, 3, 1]), [n, count])
    code = graph.reshape(graph.add("Transpose", deltas, perm=[0, 2, 3, 1]), [n, count, 4])
    sides = graph.reshape(images, [n, 1, 3])
    boxes = _move_anchors(
        graph, tile_anchors(proposer.anchors, (height, width), proposer.stride), code
    )
    high, wide = graph.slice(sides, 2, 0, 1), graph.slice(sides, 2, 1, 2)
    ends = graph.add("Sub", graph.add("Concat", wide, high, wide, high, axis=2), graph.scalar(1))
    boxes = graph.add("Min", graph.add("Max", boxes, graph.scalar(0)), ends)
    low, top = graph.slice(boxes, 2, 0, 2), graph.slice(boxes, 2, 2, 4)
    size = graph.add("Add", graph.add("Sub", top, low), graph.scalar(1))
    least = graph.add("Mul", graph.slice(sides, 2, 2, 3), graph.scalar(proposer.least))
    smallest = graph.reduce("ReduceMin", size, [2], keep=False)
    large = graph.add("GreaterOrEqual", smallest, graph.reshape(least, [n, 1]))
    score = graph.add("Where", large, score, graph.scalar(LOWEST))
    top_k = min(proposer.looked_at or count, count)
    best, index = graph.name("scores"), graph.name("order")
    graph.add_several("TopK", score, graph.ints([top_k]), to=[best, index], axis=1)
    some = graph.add("GatherND", boxes, graph.add("Unsqueeze", index, graph.ints([2])),
                     batch_dims=1)  # fmt: skip
    behind = graph.constant(np.array([0, 0, 1, 1], np.float32), "behind_the_last_pixel")
    selected = graph.non_max_suppression(
        graph.add("Add", some, behind),
        graph.add("Unsqueeze", best, graph.ints([1])),
        keep=min(proposer.keep or top_k, top_k),
        overlap=min(1.0, proposer.overlap),
        above=LOWEST,
    )
    which = graph.add("Gather", selected, graph.ints([0, 2]), axis=1)
    image = graph.to_float(graph.slice(which, 1, 0, 1))
    regions = graph.add("GatherND", some, which)
    graph.add("Concat", image, regions, to=node.tops[0], axis=1)
    if len(node.tops) > 1:
        found = graph.add("GatherND", best, which)
        graph.reshape(found, [-1, 1], to=node.tops[1])


def _move_anchors(graph: GraphBuilder, anchors: np.ndarray, code: str) -> str:
    """Add anchors with shifted centers and scaled sides. Shape: (N, K, 4)."""
    flat = anchors.reshape(1, -1, 4).astype(np.float32)
    size = flat[..., 2:] - flat[..., :2] + 1
    sides = graph.constant(size, "sides")
    shift = graph.add("Mul", graph.slice(code, 2, 0, 2), sides)
    centre = graph.add("Add", shift, graph.constant(flat[..., :2] + size / 2, "centres"))
    scaled = graph.add("Exp", graph.slice(code, 2, 2, 4))
    half = graph.add("Mul", scaled, graph.constant(size / 2, "halves"))
    corners = graph.add("Sub", centre, half), graph.add("Add", centre, half)
    return graph.add("Concat", *corners, axis=2)


# -- regions -----------------------------------------------------------------------------------


def _roi_pooling(node: LayerNode, graph: GraphBuilder) -> None:
    p, (x, rois), [y] = node.layer.param.roi_pooling_param, node.bottoms, node.tops
    regions = rois.name if len(rois.shape) == 2 else graph.reshape(rois, [-1, 5])
    regions = widened_regions(graph, regions, p.pad_ratio)
    size = [p.pooled_h, p.pooled_w]
    graph.add("MaxRoiPool", x, regions, to=y, pooled_shape=size, spatial_scale=p.spatial_scale)


def widened_regions(graph: GraphBuilder, regions: str, ratio: float) -> str:
    """Add regions that are wider on each side by a ratio of their size: a product and a sum."""
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


def _psroi_pooling(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the means of bins by integral images.

    Sums are float64, as sums of whole maps are large compared with those of bins.
    """
    p, (x, rois), [y] = node.layer.param.psroi_pooling_param, node.bottoms, node.tops
    g, (height, width) = p.group_size, x.shape[2:]
    regions = rois.name if len(rois.shape) == 2 else graph.reshape(rois, [-1, 5])
    corners = _rounded(graph, graph.slice(regions, 1, 1, 5))
    left, right = _bins(graph, corners, 0, p.spatial_scale, g, width)
    upper, lower = _bins(graph, corners, 1, p.spatial_scale, g, height)

    edge = graph.ints([0, 0, 1, 1, 0, 0, 0, 0])
    total = graph.add("Pad", graph.to_double(x), edge)
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
    divisor = graph.to_double(graph.add("Max", area, graph.ints([1])))
    means = graph.to_float(graph.add("Div", sums, divisor))  # the sum of an empty bin is 0
    graph.add("Transpose", means, perm=[0, 3, 1, 2], to=y)


def _rounded(graph: GraphBuilder, corners: str) -> str:
    """Add rounding of halves away from 0; ONNX's Round takes halves to even numbers."""
    far = graph.add("Floor", graph.add("Add", graph.add("Abs", corners), graph.scalar(0.5)))
    return graph.add("Mul", graph.add("Sign", corners), far)


def _bins(
    graph: GraphBuilder, corners: str, axis: int, scale: float, bins: int, length: int
) -> tuple[str, str]:
    """Add the starts and ends of bins along an axis, int64 (R, G).

    Args:
        graph: The graph.
        corners: x1, y1, x2, y2, rounded. Shape: (R, 4).
        axis: 0 for x, 1 for y.
        scale: Pixels of the map per pixel of the image.
        bins: Number of bins, G.
        length: Pixels of the map.
    """
    factor = graph.scalar(scale)
    start = graph.add("Mul", graph.slice(corners, 1, axis, axis + 1), factor)
    last = graph.add("Add", graph.slice(corners, 1, axis + 2, axis + 3), graph.scalar(1))
    extent = graph.add("Sub", graph.add("Mul", last, factor), start)
    extent = graph.add("Max", extent, graph.scalar(0.1))
    extent = graph.add("Div", extent, graph.scalar(bins))
    number = graph.constant(np.arange(bins + 1, dtype=np.float32).reshape(1, -1), "bins")
    edges = graph.add("Add", graph.add("Mul", extent, number), start)  # (R, G + 1)
    limits = graph.scalar(0), graph.scalar(length)
    low = graph.add("Clip", graph.add("Floor", graph.slice(edges, 1, 0, bins)), *limits)
    high = graph.add("Clip", graph.add("Ceil", graph.slice(edges, 1, 1, bins + 1)), *limits)
    return graph.to_int(low), graph.to_int(graph.add("Max", low, high))


# -- regions -----------------------------------------------------------------------------------


def _roi_align(node: LayerNode, graph: GraphBuilder) -> None:
    """Add four gathers of pixels, weighted; ONNX's RoiAlign has other rules at the edges."""
    layer, (x, rois), [y] = node.layer_as(ROIAlign), node.bottoms, node.tops
    regions = rois.name if len(rois.shape) == 2 else graph.reshape(rois, [-1, 5])
    regions = widened_regions(graph, regions, layer.pad_ratio)
    corners = graph.add("Mul", graph.slice(regions, 1, 1, 5), graph.scalar(layer.scale))
    corners = graph.add("Sub", corners, graph.scalar(0.5))
    low, high = graph.slice(corners, 1, 0, 2), graph.slice(corners, 1, 2, 4)
    extent = graph.add("Sub", high, low)
    signs = graph.to_float(graph.add("Greater", extent, graph.scalar(0)))
    whole = graph.reduce("ReduceMin", signs, [1])  # (R, 1)
    axes = []
    for axis, (bins, length) in enumerate(zip(layer.pooled, x.shape[2:], strict=True)):
        first = graph.slice(low, 1, 1 - axis, 2 - axis)  # rows are y
        step = graph.add("Div", graph.slice(extent, 1, 1 - axis, 2 - axis), graph.scalar(bins))
        number = graph.constant(np.arange(bins + 1, dtype=np.float32)[None], "corners")
        place = graph.add("Add", first, graph.add("Mul", step, number))
        inside = graph.add(
            "And",
            graph.add("GreaterOrEqual", place, graph.scalar(-0.5)),
            graph.add("LessOrEqual", place, graph.scalar(length - 0.5)),
        )
        counts = graph.add("Mul", graph.to_float(inside), whole)
        limits = graph.scalar(0), graph.scalar(length - 1)
        floor = graph.add("Floor", place)
        near = graph.add("Clip", floor, *limits)
        far = graph.add("Clip", graph.add("Add", floor, graph.scalar(1)), *limits)
        part = graph.add("Sub", graph.add("Clip", place, *limits), near)
        rest = graph.add("Sub", graph.scalar(1), part)
        shape = [-1, bins + 1, 1] if axis == 0 else [-1, 1, bins + 1]
        axes.append([
            (graph.reshape(graph.to_int(pixel), shape),
             graph.reshape(graph.add("Mul", weight, counts), [*shape, 1]))
            for pixel, weight in ((near, rest), (far, part))
        ])  # fmt: skip
    pixels = graph.add("Transpose", x, perm=[0, 2, 3, 1])
    item = graph.reshape(graph.to_int(graph.slice(regions, 1, 0, 1)), [-1, 1, 1])
    total = ""
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            grid = graph.add("Shape", graph.add("Add", row, column))
            index = [
                graph.add("Unsqueeze", graph.add("Expand", one, grid), graph.ints([3]))
                for one in (item, row, column)
            ]
            value = graph.add("GatherND", pixels, graph.add("Concat", *index, axis=3))
            value = graph.add("Mul", value, graph.add("Mul", row_weight, column_weight))
            total = graph.add("Add", total, value) if total else value
    graph.add("Transpose", total, perm=[0, 3, 1, 2], to=y)


def _decode_bbox(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the moved regions."""
    layer, (codes, rois), [y] = node.layer_as(DecodeBBox), node.bottoms[:2], node.tops
    code = graph.slice(graph.reshape(codes, [-1, 8]), 1, 4, 8)
    code = _normalized(graph, layer, code)
    regions = graph.reshape(rois, [-1, 5])
    low, high = graph.slice(regions, 1, 1, 3), graph.slice(regions, 1, 3, 5)
    one, half = graph.scalar(1), graph.scalar(0.5)
    size = graph.add("Add", graph.add("Sub", high, low), one)
    centre = graph.add("Mul", graph.add("Add", low, high), half)
    centre = graph.add("Add", centre, graph.add("Mul", graph.slice(code, 1, 0, 2), size))
    sides = graph.add("Mul", size, graph.add("Exp", graph.slice(code, 1, 2, 4)))
    reach = graph.add("Sub", sides, one)
    first = graph.add("Sub", centre, graph.add("Mul", reach, half))
    last = graph.add("Add", first, reach)
    rows = graph.add("Concat", graph.slice(regions, 1, 0, 1), first, last, axis=1)
    graph.reshape(rows, [-1, 5, 1, 1], to=y)


def _normalized(graph: GraphBuilder, layer: DecodeBBox | BoxGroupOutput, code: str) -> str:
    """Add the product with the deviation, and the sum with the mean, along the last axis."""
    scaled = graph.add("Mul", code, graph.constant(layer.std.astype(np.float32), "std"))
    return graph.add("Add", scaled, graph.constant(layer.mean.astype(np.float32), "mean"))


def _box_group_output(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the regions of all maps after non-maximum suppression."""
    layer = node.layer_as(BoxGroupOutput)
    p, bottoms = layer.param.box_group_output_param, node.bottoms
    parts = [
        _group(graph, layer, scores, codes, fields, stride)
        for scores, codes, fields, stride in zip(
            bottoms[::2], bottoms[1::2], layer.fields, layer.strides, strict=True
        )
    ]
    boxes, score = (
        graph.add("Concat", *one, axis=1) if len(one) > 1 else one[0]
        for one in zip(*parts, strict=True)
    )
    count = sum(
        len(fields) * math.prod(scores.shape[2:])
        for scores, fields in zip(bottoms[::2], layer.fields, strict=True)
    )
    low, high = graph.slice(boxes, 2, 0, 2), graph.slice(boxes, 2, 2, 4)
    size = graph.add("Add", graph.add("Sub", high, low), graph.scalar(1))
    least = graph.reduce("ReduceMin", size, [2], keep=False)
    large = graph.add("GreaterOrEqual", least, graph.scalar(p.min_size))
    score = graph.add("Where", large, score, graph.scalar(LOWEST))
    top_k = min(p.max_nms_num or count, count)
    best, index = graph.name("scores"), graph.name("order")
    graph.add_several("TopK", score, graph.ints([top_k]), to=[best, index], axis=1)
    rows = graph.add("Unsqueeze", index, graph.ints([2]))
    some = graph.add("GatherND", boxes, rows, batch_dims=1)
    behind = graph.constant(np.array([0, 0, 1, 1], np.float32), "behind_the_last_pixel")
    selected = graph.non_max_suppression(
        graph.add("Add", some, behind),
        graph.add("Unsqueeze", best, graph.ints([1])),
        keep=min(p.max_post_nms_num or top_k, top_k),
        overlap=min(1.0, p.iou_thr),
        above=max(just_below(p.fg_thr), LOWEST),
    )
    which = graph.add("Gather", selected, graph.ints([0, 2]), axis=1)
    image = graph.to_float(graph.slice(which, 1, 0, 1))
    regions = graph.add("Concat", image, graph.add("GatherND", some, which), axis=1)
    found = graph.reshape(graph.add("GatherND", best, which), [-1, 1])
    scored = graph.add("Concat", regions, found, axis=1)
    nothing = [np.array([NOTHING], np.float32), np.zeros((1, 6), np.float32)]
    for top, values, one in zip(node.tops, (regions, scored), nothing, strict=False):
        filled = _or_else(graph, values, one)
        graph.reshape(filled, [-1, one.shape[1], 1, 1], to=top)


def _or_else(graph: GraphBuilder, rows: str, nothing: np.ndarray) -> str:
    """Add the rows, or one row if there are none."""
    every = graph.add("Concat", rows, graph.constant(nothing, "nothing"), axis=0)
    count = graph.add("Gather", graph.add("Shape", rows), graph.ints([0]))
    end = graph.add("Max", count, graph.ints([1]))
    return graph.add("Slice", every, graph.ints([0]), end, graph.ints([0]))


def _group(
    graph: GraphBuilder,
    layer: BoxGroupOutput,
    scores: Value,
    codes: Value,
    fields: np.ndarray,
    stride: int,
) -> tuple[str, str]:
    """Add boxes and scores of one map. Shapes: (N, K, 4), (N, K)."""
    p, (height, width) = layer.param.box_group_output_param, codes.shape[2:]
    count = len(fields) * height * width
    code = graph.reshape(codes, [-1, len(fields), 4, height, width])
    code = _normalized(graph, layer, graph.add("Transpose", code, perm=[0, 1, 3, 4, 2]))
    by, whr = graph.scalar(1 / p.field_xyr), math.log(p.field_whr)
    shift = graph.add("Clip", graph.slice(code, 4, 0, 2), graph.scalar(-1 / p.field_xyr), by)
    factor = graph.slice(code, 4, 2, 4)
    factor = graph.add("Clip", factor, graph.scalar(-whr), graph.scalar(whr))
    size = graph.constant(fields.astype(np.float32)[:, None, None, :], "fields")
    y, x = np.meshgrid(*((np.arange(n) + 0.5) * stride for n in (height, width)), indexing="ij")
    centre = graph.constant(np.stack([x, y], axis=-1).astype(np.float32), "centres")
    sides = graph.add("Mul", size, graph.add("Exp", factor))
    first = graph.add("Add", graph.add("Mul", shift, size), centre)
    low = graph.add("Sub", first, graph.add("Mul", sides, graph.scalar(0.5)))
    high = graph.add("Sub", graph.add("Add", low, sides), graph.scalar(1))
    low = graph.add("Max", low, graph.scalar(0))
    ends = np.array([width * stride, height * stride], np.float32)
    high = graph.add("Min", high, graph.constant(ends, "ends"))
    boxes = graph.reshape(graph.add("Concat", low, high, axis=4), [-1, count, 4])
    background = graph.reshape(graph.slice(scores, 1, 0, 1), [-1, count])
    return boxes, graph.add("Sub", graph.scalar(1), background)


# -- YOLO --------------------------------------------------------------------------------------


def _yolo_output(node: LayerNode, graph: GraphBuilder) -> None:
    """Add decoding, and non-maximum suppression across classes."""
    layer = node.layer_as(YoloOutput)
    best_only = isinstance(layer, YoloDetectionOutput)
    units = layer.units(list(node.place.bottom))
    n, parts, count = node.bottoms[0].sizes[0], [], 0
    for x, anchors, unit in zip(node.bottoms, layer.anchors, units, strict=True):
        parts.append(_yolo_map(graph, layer, x, anchors / unit, best_only=best_only))
        count += len(anchors) * math.prod(x.shape[2:]) * (1 if best_only else layer.classes)
    boxes, score, kind = (
        graph.add("Concat", *one, axis=1) if len(one) > 1 else one[0]
        for one in zip(*parts, strict=True)
    )
    selected = graph.non_max_suppression(
        boxes,
        graph.add("Unsqueeze", score, graph.ints([1])),
        keep=count,
        overlap=just_below(layer.overlap),
        above=just_below(layer.confidence) if best_only else layer.confidence,
    )
    which = graph.add("Gather", selected, graph.ints([0, 2]), axis=1)
    columns = [
        graph.to_float(graph.slice(which, 1, 0, 1)),
        graph.reshape(graph.add("GatherND", kind, which), [-1, 1]),
        graph.reshape(graph.add("GatherND", score, which), [-1, 1]),
        graph.add("GatherND", boxes, which),
    ]
    rows_or_empty(node, graph, graph.add("Concat", *columns, axis=1), n)


def _yolo_map(
    graph: GraphBuilder, layer: YoloOutput, x: Value, anchors: np.ndarray, *, best_only: bool
) -> tuple[str, str, str]:
    """Add boxes, scores and classes of a map. Shapes: (N, K, 4), (N, K), (N, K)."""
    (height, width), kinds = x.shape[2:], 1 if best_only else layer.classes
    count = len(anchors) * height * width
    values = graph.reshape(x, [-1, len(anchors), BOX + layer.classes, height, width])
    values = graph.add("Transpose", values, perm=[0, 3, 4, 1, 2])  # (N, H, W, A, numbers)
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    cells = np.stack([columns, rows], axis=-1).astype(np.float32)[:, :, None, :]
    sides = graph.constant(np.array([width, height], np.float32), "sides")
    centre = graph.add("Sigmoid", graph.slice(values, 4, 0, 2))
    centre = graph.add("Div", graph.add("Add", centre, graph.constant(cells, "cells")), sides)
    halves = graph.constant(anchors.astype(np.float32) / 2, "half_anchors")
    half = graph.add("Mul", graph.add("Exp", graph.slice(values, 4, 2, 4)), halves)
    corners = graph.add("Sub", centre, half), graph.add("Add", centre, half)
    boxes = graph.reshape(graph.add("Concat", *corners, axis=4), [-1, count, 1, 4])
    chance = graph.add("Sigmoid", graph.slice(values, 4, 4, 5))
    classes = graph.slice(values, 4, BOX, BOX + layer.classes)
    if best_only:
        shares = graph.add("Softmax", classes, axis=4)
        score = graph.add("Mul", chance, graph.reduce("ReduceMax", shares, [4]))
        kind = graph.to_float(graph.add("ArgMax", classes, axis=4, keepdims=1))
    else:
        score = graph.add("Mul", chance, graph.add("Sigmoid", classes))
        numbers = graph.constant(np.arange(layer.classes, dtype=np.float32), "classes")
        kind = graph.add("Add", graph.add("Mul", classes, graph.scalar(0)), numbers)
        repeated = graph.ints([1, 1, kinds, 1])
        boxes = graph.add("Tile", boxes, repeated)
    kind = graph.add("Add", kind, graph.scalar(1))
    return (
        graph.reshape(boxes, [-1, count * kinds, 4]),
        graph.reshape(score, [-1, count * kinds]),
        graph.reshape(kind, [-1, count * kinds]),
    )


CONVERTERS: Mapping[str, Converter] = {
    "BoxGroupOutput": _box_group_output,
    "DecodeBBox": _decode_bbox,
    "DetectionOutput": _detection_output,
    "PSROIPooling": _psroi_pooling,
    "PriorBox": _prior_box,
    "Proposal": _proposal,
    "ROIAlign": _roi_align,
    "ROIPooling": _roi_pooling,
    "YoloDetectionOutput": _yolo_output,
    "Yolov3DetectionOutput": _yolo_output,
}
