"""The facts about layer types: normalisation."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.io.proto import BNParameter, LayerParameter, LRNParameter
from demitasse.layers.facts.common import BOTH, ELSEWHERE, TOPS, constant, flag
from demitasse.layers.facts.kinds import ALWAYS, LayerFacts, ParamFacts, When, given, unless

__all__ = ["FACTS"]

NV_SCALED = When(
    "with `scale_bias` or a filler",
    lambda param, phase: (
        param.batch_norm_param.scale_bias
        or given(param, "batch_norm_param.scale_filler")
        or given(param, "batch_norm_param.bias_filler")
    ),
)


def _is_segnet(param: LayerParameter, phase: str) -> bool:
    p = param.bn_param
    if any(p.HasField(name) for name in ("scale_filler", "shift_filler", "bn_mode")):
        return True
    return len(p.ListFields()) == 0 and len(param.blobs) == 2


SEGNET = When("of SegNet", _is_segnet)
PSPNET = When("of PSPNet", unless(SEGNET).holds)
FROZEN = PSPNET & flag("bn_param.frozen")
MOVING = PSPNET & unless(flag("bn_param.frozen"))
BN_UNIT = When(
    "with statistics that are not of the batch",
    lambda param, phase: (
        param.bn_param.bn_mode == BNParameter.INFERENCE
        if SEGNET.holds(param, phase)
        else phase == "TEST" and not param.bn_param.frozen
    ),
)
BATCH_NORM = (
    ParamFacts("sum of means", "average"),
    ParamFacts("sum of variances", "average"),
    ParamFacts("factor of the sums", "average"),
    ParamFacts("scale", "scale", "batch_norm_param.scale_filler", NV_SCALED),
    ParamFacts("bias", "bias", "batch_norm_param.bias_filler", NV_SCALED),
)
BN = (
    ParamFacts("scale", "scale", "bn_param.scale_filler", SEGNET),
    ParamFacts("shift", "bias", "bn_param.shift_filler", SEGNET),
    ParamFacts("slope", "scale", "bn_param.slope_filler", MOVING),
    ParamFacts("bias", "bias", "bn_param.bias_filler", MOVING),
    ParamFacts("slope", "average", "bn_param.slope_filler", FROZEN),
    ParamFacts("bias", "average", "bn_param.bias_filler", FROZEN),
    ParamFacts("mean", "average", "", PSPNET),
    ParamFacts("variance", "average", "", PSPNET),
)


def _batch_norm(param: LayerParameter, phase: str) -> int:
    """Return 1 for the quotient, 1 for the variance of a batch, 1 for scale and bias."""
    p = param.batch_norm_param
    stored = p.use_global_stats if p.HasField("use_global_stats") else phase == "TEST"
    return 1 + (not stored) + bool(NV_SCALED.holds(param, phase))


def _lrn(param: LayerParameter, phase: str) -> int:
    """Return the squares of a neighbourhood."""
    p = param.lrn_param
    within = p.norm_region == LRNParameter.WITHIN_CHANNEL
    return int(p.local_size ** (1 + within))


FACTS: Mapping[str, LayerFacts] = {
    "BatchNorm": LayerFacts(
        fields=("batch_norm_param",),
        op="BatchNorm",
        judge="Caffe",
        params=BATCH_NORM,
        reads={"params": NV_SCALED},
        same_shape=True,
        per_value=_batch_norm,
    ),
    "BN": LayerFacts(
        fields=("bn_param",),
        params=BN,
        reads={"bottoms": ELSEWHERE & BN_UNIT, "params": ALWAYS},
        same_shape=True,
        per_value=constant(2),
    ),
    "LRN": LayerFacts(
        fields=("lrn_param",),
        op="LRN",
        judge="Caffe",
        reads=BOTH,
        same_shape=True,
        per_value=_lrn,
    ),
    "MVN": LayerFacts(
        fields=("mvn_param",),
        op="MVN",
        judge="Caffe",
        reads={"tops": flag("mvn_param.normalize_variance")},
        per_value=constant(2),
    ),
    "Normalize": LayerFacts(
        fields=("norm_param",),
        op="Normalize",
        judge="OpenCV",
        params=(ParamFacts("scale", "scale", "norm_param.scale_filler"),),
        reads={"bottoms": ELSEWHERE, "params": ALWAYS},
        same_shape=True,
        per_value=constant(3),
    ),
    "Softmax": LayerFacts(
        fields=("softmax_param",),
        op="Softmax",
        judge="Caffe",
        reads=TOPS,
        same_shape=True,
    ),
}
