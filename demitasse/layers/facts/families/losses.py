"""The facts about layer types: losses."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.facts.common import BOTTOMS, WEIGHED
from demitasse.layers.facts.kinds import ALWAYS, LayerFacts, ParamFacts, When

__all__ = ["FACTS"]

SECOND_TOP = When("with a second top", lambda param, phase: len(param.top) > 1)

FACTS: Mapping[str, LayerFacts] = {
    "CenterLoss": LayerFacts(
        fields=("center_loss_param",),
        params=(ParamFacts("centres", "value", "center_loss_param.center_filler"),),
        reads=WEIGHED,
        better="smaller",
        holds={1: "indices"},
    ),
    "ContrastiveLoss": LayerFacts(
        fields=("contrastive_loss_param",),
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        holds={2: "marks"},
    ),
    "EuclideanLoss": LayerFacts(op="PairLoss", judge="Caffe", reads=BOTTOMS, better="smaller"),
    "FocalLoss": LayerFacts(
        fields=("focal_loss_param", "loss_param", "softmax_param"),
        reads=BOTTOMS,
        better="smaller",
        contains=("Softmax", "Sigmoid"),
        holds={1: "indices"},
    ),
    "HingeLoss": LayerFacts(
        fields=("hinge_loss_param",),
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        holds={1: "classes"},
    ),
    "InfogainLoss": LayerFacts(
        fields=("infogain_loss_param", "loss_param"),
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        contains=("Softmax",),
        holds={1: "classes"},
        source="infogain_loss_param.source",
    ),
    "MultinomialLogisticLoss": LayerFacts(
        judge="Caffe", reads=BOTTOMS, better="smaller", holds={1: "classes"}
    ),
    "SigmoidCrossEntropyLoss": LayerFacts(
        fields=("loss_param",),
        op="PairLoss",
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        contains=("Sigmoid",),
    ),
    "MultiBoxLoss": LayerFacts(
        fields=("multibox_loss_param", "loss_param"),
        reads=BOTTOMS,
        better="smaller",
        holds={2: "priors", 3: "objects"},
    ),
    "SmoothL1Loss": LayerFacts(fields=("smooth_l1_loss_param",), reads=BOTTOMS, better="smaller"),
    "SmoothL1LossOHEM": LayerFacts(
        fields=("smooth_l1_loss_param", "loss_param"), reads=BOTTOMS, better="smaller"
    ),
    "SoftmaxWithLoss": LayerFacts(
        fields=("loss_param", "softmax_param"),
        op="SoftmaxLoss",
        judge="Caffe",
        reads={"bottoms": ALWAYS, "second top": SECOND_TOP},
        better="smaller",
        contains=("Softmax",),
        holds={1: "classes"},
    ),
    "SoftmaxWithLossOHEM": LayerFacts(
        fields=("loss_param", "softmax_param"),
        reads={"bottoms": ALWAYS, "second top": SECOND_TOP},
        better="smaller",
        contains=("Softmax",),
        holds={1: "classes"},
    ),
    "TripletLoss": LayerFacts(fields=("triplet_loss_param",), reads=BOTTOMS, better="smaller"),
}
