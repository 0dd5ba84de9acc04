"""Converters of detection layers: boxes, proposals and pooling of regions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.torch_export.code import Converter, ModuleCode, literal, number
from demitasse.layers.detection.detection_output import DetectionOutput
from demitasse.layers.detection.proposal import Proposal


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
    size = str((p.pooled_h, p.pooled_w))
    code.let(code.call("roi_pool", x, rois, size, number(p.spatial_scale)), node.tops[0])


def _psroi_pooling(node: LayerNode, code: ModuleCode) -> None:
    p, (x, rois) = node.layer.param.psroi_pooling_param, map(code.variable, node.bottoms)
    how = [str(p.output_dim), str(p.group_size), number(p.spatial_scale)]
    code.let(code.call("psroi_pool", x, rois, *how), node.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "DetectionOutput": _detection_output,
    "PriorBox": _prior_box,
    "Proposal": _proposal,
    "PSROIPooling": _psroi_pooling,
    "ROIPooling": _roi_pooling,
}
