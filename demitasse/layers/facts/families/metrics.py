"""The facts about layer types: metrics."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.facts.kinds import LayerFacts

__all__ = ["FACTS"]

FACTS: Mapping[str, LayerFacts] = {
    "Accuracy": LayerFacts(
        fields=("accuracy_param",),
        op="Accuracy",
        gradient="none",
        judge="Caffe",
        better="larger",
        result=True,
        holds={1: "classes"},
    ),
    "ArgMax": LayerFacts(fields=("argmax_param",), gradient="none", judge="Caffe", result=True),
    "SegAccuracy": LayerFacts(
        fields=("seg_accuracy_param",),
        gradient="none",
        better="larger",
        result=True,
        holds={1: "classes"},
    ),
}
