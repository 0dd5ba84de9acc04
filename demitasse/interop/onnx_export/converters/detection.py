"""Converters of detection layers: boxes, proposals and pooling of regions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.export.sizes import Size
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
from demitasse.io.proto import LayerParameter
from demitasse.layers.detection.detection_output import DetectionOutput, Detector
from demitasse.layers.detection.proposal import Proposal, tile_anchors

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


CONVERTERS: Mapping[str, Converter] = {
    "DetectionOutput": _detection_output,
    "PSROIPooling": _psroi_pooling,
    "PriorBox": _prior_box,
    "Proposal": _proposal,
    "ROIPooling": _roi_pooling,
}
