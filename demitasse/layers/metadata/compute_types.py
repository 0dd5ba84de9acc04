"""Metadata of layer types that compute: windows, activations, normalization, products, shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from demitasse.io.proto import (
    BNParameter,
    EltwiseParameter,
    LayerParameter,
    LRNParameter,
    PoolingParameter,
    ReductionParameter,
)
from demitasse.layers.metadata.schema import (
    ALWAYS,
    BOTH,
    BOTTOMS,
    ELSEWHERE,
    IN_PLACE,
    ONE_BOTTOM,
    TOPS,
    WEIGHED,
    Condition,
    LayerMetadata,
    ParamMetadata,
    Read,
    constant,
    field_value,
    flag,
    has_field,
    phase_is,
    product_params,
    unless,
)

SECOND_BOTTOM = Condition("with a second bottom", lambda param, phase: len(param.bottom) >= 2)
LIMITED = flag("relu_param.relu6")
STOCHASTIC = PoolingParameter.STOCHASTIC
SPREADS = Condition(
    "with STOCHASTIC", lambda param, phase: param.pooling_param.pool == STOCHASTIC
) & phase_is("TEST")
SPP_SPREADS = Condition(
    "with STOCHASTIC", lambda param, phase: param.spp_param.pool == STOCHASTIC
) & phase_is("TEST")

WINDOWS: Mapping[str, LayerMetadata] = {
    "Convolution": LayerMetadata(
        fields=("convolution_param",),
        aliases=("ConvolutionDepthwise", "DepthwiseConvolution", "NdConvolution"),
        op="Conv",
        reference="Caffe",
        params=product_params("convolution_param"),
        backward_inputs=WEIGHED,
        num_output="convolution_param.num_output",
    ),
    "Deconvolution": LayerMetadata(
        fields=("convolution_param",),
        op="Deconv",
        reference="Caffe",
        params=product_params("convolution_param"),
        backward_inputs=WEIGHED,
        num_output="convolution_param.num_output",
    ),
    "Im2col": LayerMetadata(fields=("convolution_param",), reference="Caffe"),
    "Interp": LayerMetadata(
        fields=("interp_param",), op="Interpolation", macs_per_output=constant(4)
    ),
    "Pooling": LayerMetadata(
        fields=("pooling_param",),
        aliases=("NdPooling",),
        op="Pool",
        reference="Caffe",
        backward_inputs={"bottoms": SPREADS, "tops": SPREADS},
    ),
    "Reorg": LayerMetadata(fields=("reorg_param",)),
    "SPP": LayerMetadata(
        fields=("spp_param",),
        op="SpatialPyramidPool",
        reference="Caffe",
        backward_inputs={"bottoms": SPP_SPREADS},
    ),
    "Upsample": LayerMetadata(
        fields=("upsample_param",),
        backward_inputs={"bottoms": SECOND_BOTTOM},
        bottom_kinds={1: "indices"},
    ),
}


CURVED = Condition(
    "with a power that is neither 0 nor 1",
    lambda param, phase: param.power_param.power not in {0, 1} and param.power_param.scale != 0,
)
FACTOR = Condition(
    "with a positive scale alone",
    lambda param, phase: (
        param.power_param.power == 1
        and param.power_param.shift == 0
        and param.power_param.scale > 0
    ),
)
AROUND_0 = Condition(
    "with limits on both sides of 0",
    lambda param, phase: param.clip_param.min <= 0 < param.clip_param.max,
)


def _rectifies(path: str) -> Condition:
    return Condition(
        "with a slope of 0 or more", lambda param, phase: field_value(param, path) >= 0
    )


KEPT: Mapping[Read, Condition] = {"bottoms": ELSEWHERE}  # in place, the layer keeps its input

_activation = partial(LayerMetadata, reference="Caffe", same_shape=True)

ACTIVATIONS: Mapping[str, LayerMetadata] = {
    "AbsVal": _activation(op="abs", backward_inputs=BOTTOMS),
    "BNLL": _activation(op="bnll", backward_inputs=KEPT),
    "Clip": _activation(
        fields=("clip_param",), op="clip", backward_inputs=KEPT, preserves_sign=AROUND_0
    ),
    "Dropout": _activation(fields=("dropout_param",), op="Dropout", preserves_sign=ALWAYS),
    "ELU": _activation(
        fields=("elu_param",),
        op="elu",
        backward_inputs={"bottoms": ELSEWHERE, "tops": ALWAYS},
        preserves_sign=_rectifies("elu_param.alpha"),
    ),
    "Exp": _activation(fields=("exp_param",), op="exp", backward_inputs=TOPS),
    "GELU": _activation(
        op="gelu", reference="definition", backward_inputs=KEPT, preserves_sign=ALWAYS
    ),
    "HardSwish": _activation(
        op="hard_swish", reference="", backward_inputs=KEPT, preserves_sign=ALWAYS
    ),
    "Log": _activation(fields=("log_param",), op="log", backward_inputs=KEPT),
    "Power": _activation(
        fields=("power_param",),
        op="power",
        backward_inputs={"bottoms": ELSEWHERE & CURVED},
        preserves_sign=FACTOR,
    ),
    "PReLU": _activation(
        fields=("prelu_param",),
        op="PReLU",
        params=(ParamMetadata("slope", "scale", "prelu_param.filler"),),
        backward_inputs={"bottoms": ELSEWHERE, "params": ALWAYS},
        macs_per_output=constant(1),
    ),
    "ReLU": _activation(
        fields=("relu_param",),
        op="relu",
        backward_inputs={
            "bottoms": ELSEWHERE,
            "signs": IN_PLACE & _rectifies("relu_param.negative_slope") & unless(LIMITED),
            "tops": IN_PLACE & _rectifies("relu_param.negative_slope") & LIMITED,
        },
        preserves_sign=_rectifies("relu_param.negative_slope"),
    ),
    "ReLU6": _activation(
        reference="",
        fields=("relu6_param",),
        op="relu6",
        backward_inputs={
            "bottoms": ELSEWHERE,
            "tops": IN_PLACE & _rectifies("relu6_param.negative_slope"),
        },
        preserves_sign=_rectifies("relu6_param.negative_slope"),
    ),
    "Sigmoid": _activation(op="sigmoid", backward_inputs=TOPS),
    "Swish": _activation(
        fields=("swish_param",), op="swish", backward_inputs=TOPS, preserves_sign=ALWAYS
    ),
    "TanH": _activation(op="tanh", backward_inputs=TOPS, preserves_sign=ALWAYS),
    "Threshold": _activation(fields=("threshold_param",), gradient="none"),
}


NV_SCALED = Condition(
    "with `scale_bias` or a filler",
    lambda param, phase: (
        param.batch_norm_param.scale_bias
        or has_field(param, "batch_norm_param.scale_filler")
        or has_field(param, "batch_norm_param.bias_filler")
    ),
)


def _is_segnet(param: LayerParameter, phase: str) -> bool:
    p = param.bn_param
    if any(p.HasField(name) for name in ("scale_filler", "shift_filler", "bn_mode")):
        return True
    return len(p.ListFields()) == 0 and len(param.blobs) == 2


SEGNET = Condition("of SegNet", _is_segnet)
PSPNET = Condition("of PSPNet", unless(SEGNET).is_met)
FROZEN = PSPNET & flag("bn_param.frozen")
MOVING = PSPNET & unless(flag("bn_param.frozen"))
BN_UNIT = Condition(
    "with statistics that are not of the batch",
    lambda param, phase: (
        param.bn_param.bn_mode == BNParameter.INFERENCE
        if SEGNET.is_met(param, phase)
        else phase == "TEST" and not param.bn_param.frozen
    ),
)
BATCH_NORM = (
    ParamMetadata("sum of means", "average"),
    ParamMetadata("sum of variances", "average"),
    ParamMetadata("factor of the sums", "average"),
    ParamMetadata("scale", "scale", "batch_norm_param.scale_filler", NV_SCALED),
    ParamMetadata("bias", "bias", "batch_norm_param.bias_filler", NV_SCALED),
)
BN = (
    ParamMetadata("scale", "scale", "bn_param.scale_filler", SEGNET),
    ParamMetadata("shift", "bias", "bn_param.shift_filler", SEGNET),
    ParamMetadata("slope", "scale", "bn_param.slope_filler", MOVING),
    ParamMetadata("bias", "bias", "bn_param.bias_filler", MOVING),
    ParamMetadata("slope", "average", "bn_param.slope_filler", FROZEN),
    ParamMetadata("bias", "average", "bn_param.bias_filler", FROZEN),
    ParamMetadata("mean", "average", "", PSPNET),
    ParamMetadata("variance", "average", "", PSPNET),
)


def _batch_norm(param: LayerParameter, phase: str) -> int:
    """Return 1 for the quotient, 1 for the variance of a batch, 1 for scale and bias."""
    p = param.batch_norm_param
    stored = p.use_global_stats if p.HasField("use_global_stats") else phase == "TEST"
    return 1 + (not stored) + bool(NV_SCALED.is_met(param, phase))


def _lrn(param: LayerParameter, phase: str) -> int:
    """Return the squares of a neighbourhood."""
    p = param.lrn_param
    within = p.norm_region == LRNParameter.WITHIN_CHANNEL
    return int(p.local_size ** (1 + within))


NORMALIZATION: Mapping[str, LayerMetadata] = {
    "BatchNorm": LayerMetadata(
        fields=("batch_norm_param",),
        op="BatchNorm",
        reference="Caffe",
        params=BATCH_NORM,
        backward_inputs={"params": NV_SCALED},
        same_shape=True,
        macs_per_output=_batch_norm,
    ),
    "BN": LayerMetadata(
        fields=("bn_param",),
        params=BN,
        backward_inputs={"bottoms": ELSEWHERE & BN_UNIT, "params": ALWAYS},
        same_shape=True,
        macs_per_output=constant(2),
    ),
    "LRN": LayerMetadata(
        fields=("lrn_param",),
        op="LRN",
        reference="Caffe",
        backward_inputs=BOTH,
        same_shape=True,
        macs_per_output=_lrn,
    ),
    "MVN": LayerMetadata(
        fields=("mvn_param",),
        op="MVN",
        reference="Caffe",
        backward_inputs={"tops": flag("mvn_param.normalize_variance")},
        macs_per_output=constant(2),
    ),
    "Normalize": LayerMetadata(
        fields=("norm_param",),
        op="L2Normalize",
        reference="OpenCV",
        params=(ParamMetadata("scale", "scale", "norm_param.scale_filler"),),
        backward_inputs={"bottoms": ELSEWHERE, "params": ALWAYS},
        same_shape=True,
        macs_per_output=constant(3),
    ),
    "Softmax": LayerMetadata(
        fields=("softmax_param",),
        op="Softmax",
        reference="Caffe",
        backward_inputs=TOPS,
        same_shape=True,
    ),
}


PRODUCT = Condition(
    "with PROD", lambda param, phase: param.eltwise_param.operation == EltwiseParameter.PROD
)
STABLE = flag("eltwise_param.stable_prod_grad")
NOT_LINEAR = Condition(
    "with ASUM or SUMSQ",
    lambda param, phase: (
        param.reduction_param.operation in {ReductionParameter.ASUM, ReductionParameter.SUMSQ}
    ),
)


def _static(states: int) -> Condition:
    """Return when a recurrent layer with so many states has a static bottom."""

    def holds(param: LayerParameter, phase: str) -> bool:
        exposed = states if param.recurrent_param.expose_hidden else 0
        return len(param.bottom) > 2 + exposed

    return Condition("with a static bottom", holds)


def _recurrent(states: int) -> tuple[ParamMetadata, ...]:
    weight, bias = "recurrent_param.weight_filler", "recurrent_param.bias_filler"
    return (
        ParamMetadata("weight of the input", "weight", weight),
        ParamMetadata("bias", "bias", bias),
        ParamMetadata("weight of the static bottom", "weight", weight, _static(states)),
        ParamMetadata("weight of the state", "weight", weight),
    )


RNN_OUTPUT = (
    ParamMetadata("weight of the output", "weight", "recurrent_param.weight_filler"),
    ParamMetadata("bias of the output", "bias", "recurrent_param.bias_filler"),
)


def _eltwise(param: LayerParameter, phase: str) -> int:
    """Return the factors of a product but the first, or the coefficients of a sum."""
    p = param.eltwise_param
    if p.operation == EltwiseParameter.PROD:
        return len(param.bottom) - 1
    return len(p.coeff) if p.operation == EltwiseParameter.SUM else 0


PRODUCTS: Mapping[str, LayerMetadata] = {
    "Axpy": LayerMetadata(op="Axpy", backward_inputs=BOTTOMS, macs_per_output=constant(1)),
    "Bias": LayerMetadata(
        fields=("bias_param",),
        reference="Caffe",
        params=(ParamMetadata("bias", "bias", "bias_param.filler", ONE_BOTTOM),),
        same_shape=True,
    ),
    "Eltwise": LayerMetadata(
        fields=("eltwise_param",),
        op="Eltwise",
        reference="Caffe",
        backward_inputs={"bottoms": PRODUCT, "tops": PRODUCT & unless(STABLE)},
        same_shape=True,
        macs_per_output=_eltwise,
    ),
    "Embed": LayerMetadata(
        fields=("embed_param",),
        reference="Caffe",
        params=product_params("embed_param"),
        backward_inputs=BOTTOMS,
        bottom_kinds={0: "indices"},
        moves="part",
    ),
    "InnerProduct": LayerMetadata(
        fields=("inner_product_param",),
        op="InnerProduct",
        reference="Caffe",
        params=product_params("inner_product_param"),
        backward_inputs=WEIGHED,
        num_output="inner_product_param.num_output",
    ),
    "LSTM": LayerMetadata(
        fields=("recurrent_param",),
        op="Recurrent",
        reference="Caffe",
        params=_recurrent(2),
        backward_inputs=WEIGHED,
        bottom_kinds={1: "marks"},
    ),
    "LSTMUnit": LayerMetadata(
        reference="Caffe",
        backward_inputs={"bottoms": ALWAYS, "first top": ALWAYS},
        same_shape=True,
        bottom_kinds={2: "marks"},
        macs_per_output=constant(3),
    ),
    "Reduction": LayerMetadata(
        fields=("reduction_param",), reference="Caffe", backward_inputs={"bottoms": NOT_LINEAR}
    ),
    "RNN": LayerMetadata(
        fields=("recurrent_param",),
        op="Recurrent",
        reference="Caffe",
        params=_recurrent(1) + RNN_OUTPUT,
        backward_inputs=WEIGHED,
        bottom_kinds={1: "marks"},
    ),
    "Scale": LayerMetadata(
        fields=("scale_param",),
        op="Scale",
        reference="Caffe",
        params=(
            ParamMetadata("scale", "scale", "scale_param.filler", ONE_BOTTOM),
            ParamMetadata("bias", "bias", "scale_param.bias_filler", flag("scale_param.bias_term")),
        ),
        backward_inputs={"bottoms": ELSEWHERE, "params": ONE_BOTTOM},
        same_shape=True,
        macs_per_output=constant(1),
    ),
}


ONE_TOP = Condition("with one top", lambda param, phase: len(param.top) == 1)

SHAPES: Mapping[str, LayerMetadata] = {
    "BatchReindex": LayerMetadata(
        reference="Caffe", backward_inputs=BOTTOMS, bottom_kinds={1: "indices"}, moves="part"
    ),
    "Concat": LayerMetadata(
        fields=("concat_param",), op="Concat", reference="Caffe", shares=ONE_BOTTOM
    ),
    "Crop": LayerMetadata(fields=("crop_param",), op="Crop", reference="Caffe", moves="part"),
    "Filter": LayerMetadata(reference="Caffe", bottom_kinds={-1: "selector"}, moves="part"),
    "Flatten": LayerMetadata(fields=("flatten_param",), reference="Caffe", shares=ALWAYS),
    "Permute": LayerMetadata(fields=("permute_param",), op="Permute", reference="OpenCV"),
    "Reshape": LayerMetadata(fields=("reshape_param",), reference="Caffe", shares=ALWAYS),
    "ShuffleChannel": LayerMetadata(
        fields=("shuffle_channel_param",), op="Shuffle", same_shape=True
    ),
    "Silence": LayerMetadata(gradient="none", reference="Caffe", result=True, moves="nothing"),
    "Slice": LayerMetadata(fields=("slice_param",), op="Slice", reference="Caffe", shares=ONE_TOP),
    "Squeeze": LayerMetadata(fields=("squeeze_param",), shares=ALWAYS),
    "Split": LayerMetadata(op="Split", reference="Caffe", same_shape=True, shares=ALWAYS),
    "Tile": LayerMetadata(fields=("tile_param",), reference="Caffe"),
}
