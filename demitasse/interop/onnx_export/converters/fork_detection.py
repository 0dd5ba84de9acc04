"""Converters of the detection layers of Cascade R-CNN and MobileNet-YOLO."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.onnx_export.converters.detection import (
    LOWEST,
    rows_or_empty,
    widened_regions,
)
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
from demitasse.layers.detection.boxes import just_below
from demitasse.layers.detection.cascade import NOTHING, BoxGroupOutput, DecodeBBox
from demitasse.layers.detection.yolo_output import BOX, YoloDetectionOutput, YoloOutput
from demitasse.layers.region_pooling import ROIAlign

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
    "ROIAlign": _roi_align,
    "YoloDetectionOutput": _yolo_output,
    "Yolov3DetectionOutput": _yolo_output,
}
