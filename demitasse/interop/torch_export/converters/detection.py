"""Converters of detection layers: boxes, proposals and pooling of regions."""

import math
from collections.abc import Mapping

from demitasse.interop.export.layer_graph import LayerNode, prior_boxes
from demitasse.interop.torch_export.code import Converter, ModuleCode, Result, literal
from demitasse.layers.detection.boxes import just_below
from demitasse.layers.detection.cascade import BoxGroupOutput, DecodeBBox
from demitasse.layers.detection.detection_output import DetectionOutput
from demitasse.layers.detection.proposal import Proposal
from demitasse.layers.detection.yolo_output import YoloDetectionOutput, YoloOutput
from demitasse.layers.region_pooling import ROIAlign


def _detection_output(node: LayerNode, code: ModuleCode) -> Result:
    layer = node.layer_as(DetectionOutput)
    detector = layer.detector
    return code.call(
        "detection_output",
        *node.bottoms[:3],
        classes=detector.classes,
        background=detector.background,
        shared=layer.boxes == 1,
        code=literal(detector.code),
        variance_in_target=detector.variance_in_target,
        confidence=float(detector.confidence),
        overlap=float(detector.overlap),
        eta=float(detector.eta),
        top_k=detector.top_k,
        keep=detector.keep,
    )


def _proposal(node: LayerNode, code: ModuleCode) -> Result:
    proposer = node.layer_as(Proposal)
    anchors = code.buffer(node, proposer.anchors)
    found = code.call(
        "propose",
        *node.bottoms,
        anchors,
        stride=proposer.stride,
        min_size=float(proposer.least),
        pre_nms_top_n=proposer.looked_at,
        post_nms_top_n=proposer.keep,
        overlap=float(proposer.overlap),
    )
    return code.let_tops(found, node.tops, 2)


def _roi_pooling(node: LayerNode, code: ModuleCode) -> Result:
    p = node.layer.param.roi_pooling_param
    ratio = [p.pad_ratio] if p.pad_ratio else []
    return code.call("roi_pool", *node.bottoms, (p.pooled_h, p.pooled_w), p.spatial_scale, *ratio)


def _roi_align(node: LayerNode, code: ModuleCode) -> Result:
    layer = node.layer_as(ROIAlign)
    how = tuple(layer.pooled), float(layer.scale), float(layer.pad_ratio)
    return code.call("roi_align", *node.bottoms, *how)


def _psroi_pooling(node: LayerNode, code: ModuleCode) -> Result:
    p = node.layer.param.psroi_pooling_param
    return code.call("psroi_pool", *node.bottoms, p.output_dim, p.group_size, p.spatial_scale)


def _decode_bbox(node: LayerNode, code: ModuleCode) -> Result:
    layer = node.layer_as(DecodeBBox)
    statistics = [code.buffer(node, one) for one in (layer.mean, layer.std)]
    return code.call("decode_regions", *node.bottoms[:2], *statistics)


def _box_group_output(node: LayerNode, code: ModuleCode) -> Result:
    layer, bottoms = node.layer_as(BoxGroupOutput), node.bottoms
    p = layer.param.box_group_output_param
    statistics = [code.buffer(node, one) for one in (layer.mean, layer.std)]
    maps = [
        code.call(
            "group_boxes", score, codes, code.buffer(node, fields), *statistics,
            stride=stride, shift=1 / p.field_xyr, factor=math.log(p.field_whr),
        )
        for score, codes, fields, stride in zip(
            bottoms[::2], bottoms[1::2], layer.fields, layer.strides, strict=True
        )
    ]  # fmt: skip
    found = code.call(
        "collect_regions", f"[{', '.join(maps)}]", score=p.fg_thr, overlap=p.iou_thr,
        min_size=float(p.min_size), pre_nms_top_n=p.max_nms_num, post_nms_top_n=p.max_post_nms_num,
    )  # fmt: skip
    return code.let_tops(found, node.tops, 2)


def _yolo_output(node: LayerNode, code: ModuleCode) -> Result:
    layer = node.layer_as(YoloOutput)
    best_only = isinstance(layer, YoloDetectionOutput)
    units = layer.units(list(node.place.bottom))
    maps = []
    for x, anchors, unit in zip(node.bottoms, layer.anchors, units, strict=True):
        scaled = code.buffer(node, anchors / unit)
        maps.append(code.call("yolo_map", x, scaled, layer.classes, best_only=best_only))
    above = just_below(layer.confidence) if best_only else layer.confidence
    how = {"above": float(above), "overlap": float(just_below(layer.overlap))}
    return code.call("yolo_output", f"[{', '.join(maps)}]", **how)


CONVERTERS: Mapping[str, Converter] = {
    "BoxGroupOutput": _box_group_output,
    "DecodeBBox": _decode_bbox,
    "DetectionOutput": _detection_output,
    "PSROIPooling": _psroi_pooling,
    "PriorBox": lambda node, code: code.buffer(node, prior_boxes(node)),
    "Proposal": _proposal,
    "ROIAlign": _roi_align,
    "ROIPooling": _roi_pooling,
    "YoloDetectionOutput": _yolo_output,
    "Yolov3DetectionOutput": _yolo_output,
}
