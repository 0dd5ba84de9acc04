"""Converters of detection layers: boxes, proposals and pooling of regions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.torch_export.code import Converter, ModuleCode, literal, number
from demitasse.layers.detection.boxes import just_below
from demitasse.layers.detection.cascade import BoxGroupOutput, DecodeBBox
from demitasse.layers.detection.detection_output import DetectionOutput
from demitasse.layers.detection.proposal import Proposal
from demitasse.layers.detection.yolo_output import YoloDetectionOutput, YoloOutput
from demitasse.layers.region_pooling import ROIAlign


def _prior_box(node: LayerNode, code: ModuleCode) -> None:
    """Add the boxes as a buffer, as they depend on shapes alone."""
    place = node.place
    place.layer.run_forward(place.bottom, place.top)
    code.let(code.buffer(node, np.array(place.top[0].cpu_data())), node.tops[0])


def _detection_output(node: LayerNode, code: ModuleCode) -> None:
    layer = node.layer_as(DetectionOutput)
    detector = layer.detector
    options = {
        "classes": str(detector.classes),
        "background": str(detector.background),
        "shared": str(layer.boxes == 1),
        "code": literal(detector.code),
        "variance_in_target": str(detector.variance_in_target),
        "confidence": number(detector.confidence),
        "overlap": number(detector.overlap),
        "eta": number(detector.eta),
        "top_k": str(detector.top_k),
        "keep": str(detector.keep),
    }
    arguments = [code.variable(one) for one in node.bottoms[:3]]
    arguments += [f"{name}={value}" for name, value in options.items()]
    code.let(code.call("detection_output", *arguments), node.tops[0])


def _proposal(node: LayerNode, code: ModuleCode) -> None:
    proposer = node.layer_as(Proposal).proposer
    options = {
        "stride": str(proposer.stride),
        "min_size": number(proposer.least),
        "pre_nms_top_n": str(proposer.looked_at),
        "post_nms_top_n": str(proposer.keep),
        "overlap": number(proposer.overlap),
    }
    anchors = code.buffer(node, proposer.anchors)
    arguments = [*map(code.variable, node.bottoms), anchors]
    arguments += [f"{name}={value}" for name, value in options.items()]
    names: list[Value | str] = [*node.tops]
    names += ["unused"] * (2 - len(names))
    code.let_several(code.call("propose", *arguments), names)


def _roi_pooling(node: LayerNode, code: ModuleCode) -> None:
    p, (x, rois) = node.layer.param.roi_pooling_param, map(code.variable, node.bottoms)
    how = [str((p.pooled_h, p.pooled_w)), number(p.spatial_scale)]
    how += [number(p.pad_ratio)] if p.pad_ratio else []
    code.let(code.call("roi_pool", x, rois, *how), node.tops[0])


def _roi_align(node: LayerNode, code: ModuleCode) -> None:
    layer, (x, rois) = node.layer_as(ROIAlign), map(code.variable, node.bottoms)
    how = [str(tuple(layer.pooled)), number(layer.scale), number(layer.pad_ratio)]
    code.let(code.call("roi_align", x, rois, *how), node.tops[0])


def _decode_bbox(node: LayerNode, code: ModuleCode) -> None:
    layer, arguments = node.layer_as(DecodeBBox), [*map(code.variable, node.bottoms[:2])]
    arguments += [code.buffer(node, one) for one in (layer.mean, layer.std)]
    code.let(code.call("decode_regions", *arguments), node.tops[0])


def _box_group_output(node: LayerNode, code: ModuleCode) -> None:
    layer, bottoms = node.layer_as(BoxGroupOutput), [*map(code.variable, node.bottoms)]
    p = layer.param.box_group_output_param
    statistics = [code.buffer(node, one) for one in (layer.mean, layer.std)]
    limits = f"shift={number(1 / p.field_xyr)}, factor={number(math.log(p.field_whr))}"
    maps = []
    for score, codes, fields, stride in zip(
        bottoms[::2], bottoms[1::2], layer.fields, layer.strides, strict=True
    ):
        arguments = [score, codes, code.buffer(node, fields), *statistics]
        maps.append(code.call("group_boxes", *arguments, f"stride={stride}", limits))
    options = {
        "score": number(p.fg_thr),
        "overlap": number(p.iou_thr),
        "min_size": number(p.min_size),
        "pre_nms_top_n": str(p.max_nms_num),
        "post_nms_top_n": str(p.max_post_nms_num),
    }
    arguments = [f"[{', '.join(maps)}]", *(f"{name}={value}" for name, value in options.items())]
    names: list[Value | str] = [*node.tops]
    names += ["unused"] * (2 - len(names))
    code.let_several(code.call("collect_regions", *arguments), names)


def _yolo_output(node: LayerNode, code: ModuleCode) -> None:
    layer = node.layer_as(YoloOutput)
    best_only = isinstance(layer, YoloDetectionOutput)
    units = layer.units(list(node.place.bottom))
    maps = []
    for x, anchors, unit in zip(node.bottoms, layer.anchors, units, strict=True):
        arguments = [code.variable(x), code.buffer(node, anchors / unit), str(layer.classes)]
        maps.append(code.call("yolo_map", *arguments, f"best_only={best_only}"))
    above = just_below(layer.confidence) if best_only else layer.confidence
    how = [f"above={number(above)}", f"overlap={number(just_below(layer.overlap))}"]
    code.let(code.call("yolo_output", f"[{', '.join(maps)}]", *how), node.tops[0])


def _psroi_pooling(node: LayerNode, code: ModuleCode) -> None:
    p, (x, rois) = node.layer.param.psroi_pooling_param, map(code.variable, node.bottoms)
    how = [str(p.output_dim), str(p.group_size), number(p.spatial_scale)]
    code.let(code.call("psroi_pool", x, rois, *how), node.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "BoxGroupOutput": _box_group_output,
    "DecodeBBox": _decode_bbox,
    "ROIAlign": _roi_align,
    "YoloDetectionOutput": _yolo_output,
    "Yolov3DetectionOutput": _yolo_output,
    "DetectionOutput": _detection_output,
    "PriorBox": _prior_box,
    "Proposal": _proposal,
    "PSROIPooling": _psroi_pooling,
    "ROIPooling": _roi_pooling,
}
