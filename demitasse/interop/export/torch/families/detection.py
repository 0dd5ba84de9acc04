"""Boxes and regions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.interop.export.torch.code import Code
from demitasse.interop.export.torch.converter import Converter
from demitasse.interop.export.torch.names import literal, number
from demitasse.interop.export.walk import Step, Value
from demitasse.layers.detection.detection_output import DetectionOutput
from demitasse.layers.detection.proposal import Proposal

__all__ = ["CONVERTERS"]


def prior_box(step: Step, code: Code) -> None:
    """Add the boxes as a buffer: shapes alone decide about them."""
    place = step.place
    place.layer.run_forward(place.bottom, place.top)
    code.let(code.buffer(step, np.array(place.top[0].cpu_data())), step.tops[0])


def detection_output(step: Step, code: Code) -> None:
    """Add decoding, suppression for each class, and the choice of the best of each image."""
    layer = step.of(DetectionOutput)
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
    arguments = [code.variable(one) for one in step.bottoms[:3]]
    arguments += [f"{name}={value}" for name, value in options.items()]
    code.let(code.call("detection_output", *arguments), step.tops[0])


def proposal(step: Step, code: Code) -> None:
    """Add the regions that anchors are moved to, those that stay."""
    proposer = step.of(Proposal).proposer
    options = {
        "stride": str(proposer.stride),
        "least": number(proposer.least),
        "looked_at": str(proposer.looked_at),
        "keep": str(proposer.keep),
        "overlap": number(proposer.overlap),
    }
    anchors = code.buffer(step, proposer.anchors)
    arguments = [*map(code.variable, step.bottoms), anchors]
    arguments += [f"{name}={value}" for name, value in options.items()]
    names: list[Value | str] = [*step.tops]
    names += ["unused"] * (2 - len(names))
    code.let_several(code.call("propose", *arguments), names)


def roi_pooling(step: Step, code: Code) -> None:
    """Add the largest values of bins."""
    p, (x, rois) = step.layer.param.roi_pooling_param, map(code.variable, step.bottoms)
    size = str((p.pooled_h, p.pooled_w))
    code.let(code.call("roi_pool", x, rois, size, number(p.spatial_scale)), step.tops[0])


def psroi_pooling(step: Step, code: Code) -> None:
    """Add the means of bins."""
    p, (x, rois) = step.layer.param.psroi_pooling_param, map(code.variable, step.bottoms)
    how = [str(p.output_dim), str(p.group_size), number(p.spatial_scale)]
    code.let(code.call("psroi_pool", x, rois, *how), step.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "DetectionOutput": detection_output,
    "PriorBox": prior_box,
    "Proposal": proposal,
    "PSROIPooling": psroi_pooling,
    "ROIPooling": roi_pooling,
}
