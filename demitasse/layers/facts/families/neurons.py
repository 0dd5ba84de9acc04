"""The facts about layer types: neurons."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.facts.common import BOTTOMS, ELSEWHERE, TOPS, constant
from demitasse.layers.facts.kinds import (
    ALWAYS,
    IN_PLACE,
    LayerFacts,
    ParamFacts,
    Read,
    When,
    field_of,
)

__all__ = ["FACTS"]

CURVED = When(
    "with a power that is neither 0 nor 1",
    lambda param, phase: param.power_param.power not in {0, 1} and param.power_param.scale != 0,
)
FACTOR = When(
    "with a positive scale alone",
    lambda param, phase: (
        param.power_param.power == 1
        and param.power_param.shift == 0
        and param.power_param.scale > 0
    ),
)
AROUND_0 = When(
    "with limits on both sides of 0",
    lambda param, phase: param.clip_param.min <= 0 < param.clip_param.max,
)


def _rectifies(path: str) -> When:
    return When("with a slope of 0 or more", lambda param, phase: field_of(param, path) >= 0)


KEPT: Mapping[Read, When] = {"bottoms": ELSEWHERE}  # in place, the layer keeps its input

FACTS: Mapping[str, LayerFacts] = {
    "AbsVal": LayerFacts(op="abs", judge="Caffe", reads=BOTTOMS, same_shape=True),
    "BNLL": LayerFacts(op="bnll", judge="Caffe", reads=KEPT, same_shape=True),
    "Clip": LayerFacts(
        fields=("clip_param",),
        op="clip",
        judge="Caffe",
        reads=KEPT,
        same_shape=True,
        keeps_signs=AROUND_0,
    ),
    "Dropout": LayerFacts(
        fields=("dropout_param",),
        op="Dropout",
        judge="Caffe",
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "ELU": LayerFacts(
        fields=("elu_param",),
        op="elu",
        judge="Caffe",
        reads={"bottoms": ELSEWHERE, "tops": ALWAYS},
        same_shape=True,
        keeps_signs=_rectifies("elu_param.alpha"),
    ),
    "Exp": LayerFacts(fields=("exp_param",), op="exp", judge="Caffe", reads=TOPS, same_shape=True),
    "GELU": LayerFacts(
        op="gelu",
        judge="definition",
        reads=KEPT,
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "Log": LayerFacts(fields=("log_param",), op="log", judge="Caffe", reads=KEPT, same_shape=True),
    "Power": LayerFacts(
        fields=("power_param",),
        op="power",
        judge="Caffe",
        reads={"bottoms": ELSEWHERE & CURVED},
        same_shape=True,
        keeps_signs=FACTOR,
    ),
    "PReLU": LayerFacts(
        fields=("prelu_param",),
        op="PReLU",
        judge="Caffe",
        params=(ParamFacts("slope", "scale", "prelu_param.filler"),),
        reads={"bottoms": ELSEWHERE, "params": ALWAYS},
        same_shape=True,
        per_value=constant(1),
    ),
    "ReLU": LayerFacts(
        fields=("relu_param",),
        op="relu",
        judge="Caffe",
        reads={"bottoms": ELSEWHERE, "signs": IN_PLACE & _rectifies("relu_param.negative_slope")},
        same_shape=True,
        keeps_signs=_rectifies("relu_param.negative_slope"),
    ),
    "ReLU6": LayerFacts(
        fields=("relu6_param",),
        op="relu6",
        reads={"bottoms": ELSEWHERE, "tops": IN_PLACE & _rectifies("relu6_param.negative_slope")},
        same_shape=True,
        keeps_signs=_rectifies("relu6_param.negative_slope"),
    ),
    "Sigmoid": LayerFacts(op="sigmoid", judge="Caffe", reads=TOPS, same_shape=True),
    "Swish": LayerFacts(
        fields=("swish_param",),
        op="swish",
        judge="Caffe",
        reads=TOPS,
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "TanH": LayerFacts(
        op="tanh",
        judge="Caffe",
        reads=TOPS,
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "Threshold": LayerFacts(
        fields=("threshold_param",),
        gradient="none",
        judge="Caffe",
        same_shape=True,
    ),
}
