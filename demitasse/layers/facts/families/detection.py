"""The facts about layer types: detection."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.facts.common import BOTTOMS
from demitasse.layers.facts.kinds import LayerFacts

__all__ = ["FACTS"]

FACTS: Mapping[str, LayerFacts] = {
    "BoxAnnotatorOHEM": LayerFacts(
        fields=("box_annotator_ohem_param",),
        gradient="none",
        host=True,
        holds={0: "regions"},
    ),
    "DetectionEvaluate": LayerFacts(
        fields=("detection_evaluate_param",),
        gradient="none",
        host=True,
        better="larger",
        result=True,
        holds={1: "objects"},
    ),
    "DetectionOutput": LayerFacts(
        fields=("detection_output_param",),
        gradient="none",
        judge="OpenCV",
        host=True,
        result=True,
    ),
    "PriorBox": LayerFacts(
        fields=("prior_box_param",),
        op="Fixed",
        gradient="none",
        judge="OpenCV",
        moves="tops",
    ),
    "Proposal": LayerFacts(fields=("proposal_param",), gradient="none", host=True),
    "PSROIPooling": LayerFacts(
        fields=("psroi_pooling_param",), op="RegionMeans", holds={1: "regions"}
    ),
    "ROIPooling": LayerFacts(
        fields=("roi_pooling_param",),
        op="RegionPool",
        reads=BOTTOMS,
        holds={1: "regions"},
    ),
}
