"""The facts about layer types: products, sums and sequences."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.io.proto import EltwiseParameter, LayerParameter, ReductionParameter
from demitasse.layers.facts.common import (
    BOTTOMS,
    ELSEWHERE,
    ONE_BOTTOM,
    WEIGHED,
    constant,
    flag,
    product_params,
)
from demitasse.layers.facts.kinds import ALWAYS, LayerFacts, ParamFacts, When, unless

__all__ = ["FACTS"]

PRODUCT = When(
    "with PROD", lambda param, phase: param.eltwise_param.operation == EltwiseParameter.PROD
)
STABLE = flag("eltwise_param.stable_prod_grad")
NOT_LINEAR = When(
    "with ASUM or SUMSQ",
    lambda param, phase: (
        param.reduction_param.operation in {ReductionParameter.ASUM, ReductionParameter.SUMSQ}
    ),
)


def _static(states: int) -> When:
    """Return when a recurrent layer with so many states has a static bottom."""

    def holds(param: LayerParameter, phase: str) -> bool:
        exposed = states if param.recurrent_param.expose_hidden else 0
        return len(param.bottom) > 2 + exposed

    return When("with a static bottom", holds)


def _recurrent(states: int) -> tuple[ParamFacts, ...]:
    weight, bias = "recurrent_param.weight_filler", "recurrent_param.bias_filler"
    return (
        ParamFacts("weight of the input", "weight", weight),
        ParamFacts("bias", "bias", bias),
        ParamFacts("weight of the static bottom", "weight", weight, _static(states)),
        ParamFacts("weight of the state", "weight", weight),
    )


RNN_OUTPUT = (
    ParamFacts("weight of the output", "weight", "recurrent_param.weight_filler"),
    ParamFacts("bias of the output", "bias", "recurrent_param.bias_filler"),
)


def _eltwise(param: LayerParameter, phase: str) -> int:
    """Return the factors of a product but the first, or the coefficients of a sum."""
    p = param.eltwise_param
    if p.operation == EltwiseParameter.PROD:
        return len(param.bottom) - 1
    return len(p.coeff) if p.operation == EltwiseParameter.SUM else 0


FACTS: Mapping[str, LayerFacts] = {
    "Axpy": LayerFacts(op="Axpy", reads=BOTTOMS, per_value=constant(1)),
    "Bias": LayerFacts(
        fields=("bias_param",),
        judge="Caffe",
        params=(ParamFacts("bias", "bias", "bias_param.filler", ONE_BOTTOM),),
        same_shape=True,
    ),
    "Eltwise": LayerFacts(
        fields=("eltwise_param",),
        op="Eltwise",
        judge="Caffe",
        reads={"bottoms": PRODUCT, "tops": PRODUCT & unless(STABLE)},
        same_shape=True,
        per_value=_eltwise,
    ),
    "Embed": LayerFacts(
        fields=("embed_param",),
        judge="Caffe",
        params=product_params("embed_param"),
        reads=BOTTOMS,
        holds={0: "indices"},
        moves="part",
    ),
    "InnerProduct": LayerFacts(
        fields=("inner_product_param",),
        op="InnerProduct",
        judge="Caffe",
        params=product_params("inner_product_param"),
        reads=WEIGHED,
        num_output="inner_product_param.num_output",
    ),
    "LSTM": LayerFacts(
        fields=("recurrent_param",),
        op="Recurrent",
        judge="Caffe",
        params=_recurrent(2),
        reads=WEIGHED,
        holds={1: "marks"},
    ),
    "LSTMUnit": LayerFacts(
        judge="Caffe",
        reads={"bottoms": ALWAYS, "first top": ALWAYS},
        same_shape=True,
        holds={2: "marks"},
        per_value=constant(3),
    ),
    "Reduction": LayerFacts(
        fields=("reduction_param",), judge="Caffe", reads={"bottoms": NOT_LINEAR}
    ),
    "RNN": LayerFacts(
        fields=("recurrent_param",),
        op="Recurrent",
        judge="Caffe",
        params=_recurrent(1) + RNN_OUTPUT,
        reads=WEIGHED,
        holds={1: "marks"},
    ),
    "Scale": LayerFacts(
        fields=("scale_param",),
        op="Scale",
        judge="Caffe",
        params=(
            ParamFacts("scale", "scale", "scale_param.filler", ONE_BOTTOM),
            ParamFacts("bias", "bias", "scale_param.bias_filler", flag("scale_param.bias_term")),
        ),
        reads={"bottoms": ELSEWHERE, "params": ONE_BOTTOM},
        same_shape=True,
        per_value=constant(1),
    ),
}
