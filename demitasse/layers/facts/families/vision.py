"""The facts about layer types: windows and maps."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.io.proto import PoolingParameter
from demitasse.layers.facts.common import WEIGHED, constant, product_params
from demitasse.layers.facts.kinds import LayerFacts, When, phase_is

__all__ = ["FACTS"]

SECOND_BOTTOM = When("with a second bottom", lambda param, phase: len(param.bottom) >= 2)
STOCHASTIC = PoolingParameter.STOCHASTIC
SPREADS = When(
    "with STOCHASTIC", lambda param, phase: param.pooling_param.pool == STOCHASTIC
) & phase_is("TEST")
SPP_SPREADS = When(
    "with STOCHASTIC", lambda param, phase: param.spp_param.pool == STOCHASTIC
) & phase_is("TEST")

FACTS: Mapping[str, LayerFacts] = {
    "Convolution": LayerFacts(
        fields=("convolution_param",),
        aliases=("ConvolutionDepthwise", "DepthwiseConvolution"),
        op="Conv",
        judge="Caffe",
        params=product_params("convolution_param"),
        reads=WEIGHED,
        num_output="convolution_param.num_output",
    ),
    "Deconvolution": LayerFacts(
        fields=("convolution_param",),
        op="Deconv",
        judge="Caffe",
        params=product_params("convolution_param"),
        reads=WEIGHED,
        num_output="convolution_param.num_output",
    ),
    "Im2col": LayerFacts(fields=("convolution_param",), judge="Caffe"),
    "Interp": LayerFacts(fields=("interp_param",), op="Interpolation", per_value=constant(4)),
    "Pooling": LayerFacts(
        fields=("pooling_param",),
        op="Pool",
        judge="Caffe",
        reads={"bottoms": SPREADS, "tops": SPREADS},
    ),
    "Reorg": LayerFacts(fields=("reorg_param",)),
    "SPP": LayerFacts(
        fields=("spp_param",), op="Pyramid", judge="Caffe", reads={"bottoms": SPP_SPREADS}
    ),
    "Upsample": LayerFacts(
        fields=("upsample_param",),
        reads={"bottoms": SECOND_BOTTOM},
        holds={1: "indices"},
    ),
}
