"""Boxes and regions: which of them stay depends on their values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.sizes import Size
from demitasse.interop.export.walk import Step
from demitasse.io.proto import LayerParameter
from demitasse.layers.detection.detection_output import DetectionOutput, Detector
from demitasse.layers.detection.proposal import Proposal, tile_anchors

__all__ = ["CONVERTERS", "detection_refusal"]

LOWEST = float(np.finfo(np.float32).min)


def prior_box(step: Step, graph: Graph) -> None:
    """Add the boxes as a constant: shapes alone decide about them."""
    place = step.place
    place.layer.run_forward(place.bottom, place.top)
    priors = np.array(place.top[0].cpu_data())
    graph.add("Identity", graph.constant(priors, "priors"), to=step.tops[0])


def detection_refusal(param: LayerParameter) -> str:
    """Say why a DetectionOutput has no form in ONNX."""
    eta = param.detection_output_param.nms_param.eta
    if eta != 1:
        return f"NonMaxSuppression of ONNX knows no nms_param.eta but 1, it is {eta:g}"
    return ""


def detection_output(step: Step, graph: Graph) -> None:
    """Add decoding, suppression for each class, and the choice of the best of each image."""
    layer, (location, scores, priors) = step.of(DetectionOutput), step.bottoms[:3]
    detector, shared = layer.detector, layer.boxes == 1
    n, count = location.sizes[0], layer.sizes[1]
    labels = [c for c in range(detector.classes) if c != detector.background]
    boxes = _decoded(
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
    looked_at = min(detector.top_k, count) if detector.top_k > -1 else count
    best, index = graph.name("scores"), graph.name("order")
    graph.add_several("TopK", score, graph.ints([looked_at]), to=[best, index], axis=2)
    kinds = len(labels)
    if shared:
        rows = graph.reshape(index, [n, kinds * looked_at, 1])
        one = graph.reshape(by_class, [n, count, 4])
        found = graph.add("GatherND", one, rows, batch_dims=1)
    else:
        rows = graph.reshape(index, [n, kinds, looked_at, 1])
        some = graph.add("Gather", by_class, chosen, axis=1)
        found = graph.add("GatherND", some, rows, batch_dims=2)
    # every class of every image is an item of its own, since each has looked at other boxes
    candidates = graph.reshape(found, [-1, looked_at, 4])
    selected = graph.suppress(
        candidates,
        graph.reshape(best, [-1, 1, looked_at]),
        keep=looked_at,
        overlap=min(1.0, detector.overlap),
        above=detector.confidence,
    )
    kept = _marked(graph, selected, graph.reshape(best, [-1, looked_at]))
    kept = graph.reshape(kept, [n, kinds * looked_at])
    if 0 <= detector.keep < kinds * looked_at:
        kept = _best_of_image(graph, kept, graph.reshape(best, [n, kinds * looked_at]),
                              detector.keep)  # fmt: skip
    places = graph.add("NonZero", graph.reshape(kept, [n, kinds, looked_at]))  # (3, K)
    which = graph.add("Transpose", places, perm=[1, 0])
    image = graph.floats(graph.add("Gather", places, graph.ints([0]), axis=0))
    kind = graph.add("Gather", places, graph.ints([1]), axis=0)
    label = graph.add("Gather", graph.constant(np.array(labels, np.float32), "labels"), kind)
    head = [
        graph.reshape(image, [-1, 1]),
        graph.reshape(label, [-1, 1]),
        graph.reshape(graph.add("GatherND", best, which), [-1, 1]),
        graph.add("GatherND", graph.reshape(candidates, [n, kinds, looked_at, 4]), which),
    ]
    rows = graph.add("Concat", *head, axis=1)
    _or_nothing(step, graph, rows, n)


def _decoded(graph: Graph, detector: Detector, code: str, priors: str) -> str:
    """Add the boxes that are predicted.

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
    half = graph.number(0.5)
    middle = graph.add("Mul", graph.add("Add", low, high), half)
    shift = graph.add("Mul", graph.slice(offset, 3, 0, 2), size)
    centre = graph.add("Add", shift, middle)
    grown = graph.add("Mul", graph.add("Exp", graph.slice(offset, 3, 2, 4)), size)
    reach = graph.add("Mul", grown, half)
    corners = graph.add("Sub", centre, reach), graph.add("Add", centre, reach)
    return graph.add("Concat", *corners, axis=3)


def _marked(graph: Graph, selected: str, like: str) -> str:
    """Add 1 for every selected (item, 0, box), else 0. Shapes: (S, 3), (items, boxes)."""
    nothing = graph.add("Mul", like, graph.number(0))
    pairs = graph.add("Gather", selected, graph.ints([0, 2]), axis=1)
    first = graph.slice(pairs, 1, 0, 1)
    ones = graph.floats(graph.add("Equal", first, first))
    return graph.add("ScatterND", nothing, pairs, graph.reshape(ones, [-1]))


def _best_of_image(graph: Graph, kept: str, score: str, count: int) -> str:
    """Add the marks of the best alone. Shapes: (N, boxes)."""
    is_kept = graph.add("Greater", kept, graph.number(0))
    counted = graph.add("Where", is_kept, score, graph.number(LOWEST))
    values, index = graph.name("best_scores"), graph.name("best")
    graph.add_several("TopK", counted, graph.ints([count]), to=[values, index], axis=1)
    ones = graph.floats(graph.add("Equal", index, index))
    nothing = graph.add("Mul", kept, graph.number(0))
    best = graph.add("ScatterElements", nothing, index, ones, axis=1)
    return graph.add("Mul", kept, best)


def _or_nothing(step: Step, graph: Graph, rows: str, n: Size) -> None:
    """Add the rows; where there is none, one of its index and -1 for each image."""
    images = graph.reshape(graph.sizes([n]), [])
    numbers = graph.add("Range", graph.whole(0), images, graph.whole(1))
    first = graph.reshape(graph.floats(numbers), [-1, 1])
    rest = graph.add("Tile", graph.constant(np.full((1, 6), -1, np.float32), "nothing"),
                     graph.sizes([n, 1]))  # fmt: skip
    nothing = graph.add("Concat", first, rest, axis=1)
    every = graph.add("Concat", rows, nothing, axis=0)
    count = graph.add("Gather", graph.add("Shape", rows), graph.ints([0]))
    some = graph.add("Greater", count, graph.ints([0]))
    end = graph.add("Where", some, count, graph.sizes([n]))
    found = graph.add("Slice", every, graph.ints([0]), end, graph.ints([0]))
    graph.reshape(found, [1, 1, -1, 7], to=step.tops[0])


def proposal(step: Step, graph: Graph) -> None:
    """Add the regions that anchors are moved to, those that stay."""
    proposer, (scores, deltas, images) = step.of(Proposal).proposer, step.bottoms
    n, anchors = scores.sizes[0], len(proposer.anchors)
    height, width = scores.shape[2:]
    count = height * width * anchors
    score = graph.slice(scores, 1, anchors, 2 * anchors)
    score = graph.reshape(graph.add("Transpose", score, perm=[0, 2, 3, 1]), [n, count])
    code = graph.reshape(graph.add("Transpose", deltas, perm=[0, 2, 3, 1]), [n, count, 4])
    sides = graph.reshape(images, [n, 1, 3])
    boxes = _moved(graph, tile_anchors(proposer.anchors, (height, width), proposer.stride), code)
    high, wide = graph.slice(sides, 2, 0, 1), graph.slice(sides, 2, 1, 2)
    ends = graph.add("Sub", graph.add("Concat", wide, high, wide, high, axis=2), graph.number(1))
    boxes = graph.add("Min", graph.add("Max", boxes, graph.number(0)), ends)
    low, top = graph.slice(boxes, 2, 0, 2), graph.slice(boxes, 2, 2, 4)
    size = graph.add("Add", graph.add("Sub", top, low), graph.number(1))
    least = graph.add("Mul", graph.slice(sides, 2, 2, 3), graph.number(proposer.least))
    smallest = graph.reduce("ReduceMin", size, [2], keep=False)
    large = graph.add("GreaterOrEqual", smallest, graph.reshape(least, [n, 1]))
    score = graph.add("Where", large, score, graph.number(LOWEST))
    looked_at = min(proposer.looked_at or count, count)
    best, index = graph.name("scores"), graph.name("order")
    graph.add_several("TopK", score, graph.ints([looked_at]), to=[best, index], axis=1)
    some = graph.add("GatherND", boxes, graph.add("Unsqueeze", index, graph.ints([2])),
                     batch_dims=1)  # fmt: skip
    behind = graph.constant(np.array([0, 0, 1, 1], np.float32), "behind_the_last_pixel")
    selected = graph.suppress(
        graph.add("Add", some, behind),
        graph.add("Unsqueeze", best, graph.ints([1])),
        keep=min(proposer.keep or looked_at, looked_at),
        overlap=min(1.0, proposer.overlap),
        above=LOWEST,
    )
    which = graph.add("Gather", selected, graph.ints([0, 2]), axis=1)
    image = graph.floats(graph.slice(which, 1, 0, 1))
    regions = graph.add("GatherND", some, which)
    graph.add("Concat", image, regions, to=step.tops[0], axis=1)
    if len(step.tops) > 1:
        found = graph.add("GatherND", best, which)
        graph.reshape(found, [-1, 1], to=step.tops[1])


def _moved(graph: Graph, anchors: np.ndarray, code: str) -> str:
    """Add anchors whose centres are shifted and whose sides are scaled. Shape: (N, K, 4)."""
    flat = anchors.reshape(1, -1, 4).astype(np.float32)
    size = flat[..., 2:] - flat[..., :2] + 1
    sides = graph.constant(size, "sides")
    shift = graph.add("Mul", graph.slice(code, 2, 0, 2), sides)
    centre = graph.add("Add", shift, graph.constant(flat[..., :2] + size / 2, "centres"))
    grown = graph.add("Exp", graph.slice(code, 2, 2, 4))
    half = graph.add("Mul", grown, graph.constant(size / 2, "halves"))
    corners = graph.add("Sub", centre, half), graph.add("Add", centre, half)
    return graph.add("Concat", *corners, axis=2)


CONVERTERS: Mapping[str, Converter] = {
    "DetectionOutput": detection_output,
    "PriorBox": prior_box,
    "Proposal": proposal,
}
