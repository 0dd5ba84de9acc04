"""Metadata of the built-in layer types, by family.

A type reads the message that is named after the type, unless ``fields`` are given.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

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
    TOPS_WITH_GRADIENT,
    WEIGHED,
    Condition,
    LayerMetadata,
    ParamMetadata,
    Read,
    Reference,
    constant,
    field_value,
    flag,
    has_field,
    product_params,
    unless,
)

_caffe = partial(LayerMetadata, reference="Caffe")

SECOND_BOTTOM = Condition("with a second bottom", lambda param, phase: len(param.bottom) >= 2)
LIMITED = flag("relu_param.relu6")
STOCHASTIC = PoolingParameter.STOCHASTIC


def _spreads(path: str) -> Condition:
    """Return the condition that pooling spreads a gradient over the window."""
    return Condition(
        "with STOCHASTIC, in phase TEST",
        lambda param, phase: phase == "TEST" and field_value(param, path) == STOCHASTIC,
    )


def _product(message: str, op: str, **properties: Any) -> LayerMetadata:
    """Return the metadata of a type of Caffe that multiplies by a weight."""
    return _caffe(
        fields=(message,),
        op=op,
        params=product_params(message),
        backward_inputs=WEIGHED,
        num_output=f"{message}.num_output",
        **properties,
    )


WINDOWS: Mapping[str, LayerMetadata] = {
    "Convolution": _product(
        "convolution_param",
        "Conv",
        aliases=("ConvolutionDepthwise", "DepthwiseConvolution", "NdConvolution"),
    ),
    "Deconvolution": _product("convolution_param", "Deconv"),
    "Im2col": _caffe(fields=("convolution_param",)),
    "Interp": LayerMetadata(op="Interpolation", macs_per_output=constant(4)),
    "Pooling": _caffe(
        aliases=("NdPooling",),
        op="Pool",
        backward_inputs=dict.fromkeys(
            ("bottoms", "tops with gradient"), _spreads("pooling_param.pool")
        ),
    ),
    "Reorg": LayerMetadata(),
    "SPP": _caffe(op="SpatialPyramidPool", backward_inputs={"bottoms": _spreads("spp_param.pool")}),
    "Upsample": LayerMetadata(
        op="Repeat", backward_inputs={"bottoms": SECOND_BOTTOM}, bottom_kinds={1: "indices"}
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


def _zero_slope(path: str) -> Condition:
    return Condition("with a slope of 0", lambda param, phase: field_value(param, path) == 0)


KEPT: Mapping[Read, Condition] = {"bottoms": ELSEWHERE}  # in place, the layer keeps its input

_activation = partial(LayerMetadata, reference="Caffe", same_shape=True)

ACTIVATIONS: Mapping[str, LayerMetadata] = {
    "AbsVal": _activation(op="abs", backward_inputs=BOTTOMS),
    "BNLL": _activation(op="bnll", backward_inputs=KEPT),
    "Clip": _activation(
        op="clip", backward_inputs=KEPT, preserves_sign=AROUND_0, stops_gradient=ALWAYS
    ),
    "Dropout": _activation(op="Dropout", preserves_sign=ALWAYS),
    "ELU": _activation(
        op="elu",
        backward_inputs={"bottoms": ELSEWHERE, "tops with gradient": ALWAYS},
        preserves_sign=_rectifies("elu_param.alpha"),
    ),
    "Exp": _activation(op="exp", backward_inputs=TOPS_WITH_GRADIENT),
    "GELU": _activation(
        op="gelu", reference="definition", backward_inputs=KEPT, preserves_sign=ALWAYS
    ),
    "HardSwish": _activation(
        op="hard_swish", reference="", backward_inputs=KEPT, preserves_sign=ALWAYS
    ),
    "Log": _activation(op="log", backward_inputs=KEPT),
    "Power": _activation(
        op="power", backward_inputs={"bottoms": ELSEWHERE & CURVED}, preserves_sign=FACTOR
    ),
    "PReLU": _activation(
        op="PReLU",
        params=(ParamMetadata("slope", "scale", "prelu_param.filler"),),
        backward_inputs={"bottoms": ELSEWHERE, "params": ALWAYS},
        macs_per_output=constant(1),
    ),
    "ReLU": _activation(
        op="relu",
        backward_inputs={
            "bottoms": ELSEWHERE,
            "signs": IN_PLACE & _rectifies("relu_param.negative_slope") & unless(LIMITED),
            "tops with gradient": IN_PLACE & _rectifies("relu_param.negative_slope") & LIMITED,
        },
        preserves_sign=_rectifies("relu_param.negative_slope"),
        stops_gradient=_zero_slope("relu_param.negative_slope"),
    ),
    "ReLU6": _activation(
        reference="",
        op="relu6",
        backward_inputs={
            "bottoms": ELSEWHERE,
            "tops with gradient": IN_PLACE & _rectifies("relu6_param.negative_slope"),
        },
        preserves_sign=_rectifies("relu6_param.negative_slope"),
        stops_gradient=_zero_slope("relu6_param.negative_slope"),
    ),
    "Sigmoid": _activation(op="sigmoid", backward_inputs=TOPS_WITH_GRADIENT),
    "Swish": _activation(op="swish", backward_inputs=TOPS_WITH_GRADIENT, preserves_sign=ALWAYS),
    "TanH": _activation(op="tanh", backward_inputs=TOPS_WITH_GRADIENT, preserves_sign=ALWAYS),
    "Threshold": _activation(gradient="none"),
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


def _is_stored(param: LayerParameter, phase: str) -> bool:
    p = param.batch_norm_param
    return p.use_global_stats if p.HasField("use_global_stats") else phase == "TEST"


STORED = Condition("with stored statistics", _is_stored)


def _batch_norm(param: LayerParameter, phase: str) -> int:
    """Return 1 for the quotient, 1 for the variance of a batch, 1 for scale and bias."""
    by_batch = not STORED.is_met(param, phase)
    return 1 + by_batch + bool(NV_SCALED.is_met(param, phase))


def _lrn(param: LayerParameter, phase: str) -> int:
    """Return the squares of a neighbourhood."""
    p = param.lrn_param
    within = p.norm_region == LRNParameter.WITHIN_CHANNEL
    return int(p.local_size ** (1 + within))


NORMALIZATION: Mapping[str, LayerMetadata] = {
    "BatchNorm": _caffe(
        op="BatchNorm",
        params=BATCH_NORM,
        backward_inputs={"bottoms": ELSEWHERE & NV_SCALED & STORED, "params": NV_SCALED},
        same_shape=True,
        macs_per_output=_batch_norm,
    ),
    "BN": LayerMetadata(
        op="AffineBatchNorm",
        params=BN,
        backward_inputs={"bottoms": ELSEWHERE & BN_UNIT, "params": ALWAYS},
        same_shape=True,
        macs_per_output=constant(2),
    ),
    "LRN": _caffe(op="LRN", backward_inputs=BOTH, same_shape=True, macs_per_output=_lrn),
    "MVN": _caffe(
        op="MVN",
        backward_inputs={"tops": flag("mvn_param.normalize_variance")},
        macs_per_output=constant(2),
    ),
    "Normalize": LayerMetadata(
        op="Normalize",
        fields=("norm_param",),
        reference="OpenCV",
        params=(ParamMetadata("scale", "scale", "norm_param.scale_filler"),),
        backward_inputs={"bottoms": ELSEWHERE, "params": ALWAYS},
        same_shape=True,
        macs_per_output=constant(3),
    ),
    "Softmax": _caffe(op="Softmax", backward_inputs={"tops": ALWAYS}, same_shape=True),
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


def _recurrent(states: int, output: tuple[ParamMetadata, ...] = ()) -> LayerMetadata:
    weight, bias = "recurrent_param.weight_filler", "recurrent_param.bias_filler"
    params = (
        ParamMetadata("weight of the input", "weight", weight),
        ParamMetadata("bias", "bias", bias),
        ParamMetadata("weight of the static bottom", "weight", weight, _static(states)),
        ParamMetadata("weight of the state", "weight", weight),
    )
    return _caffe(
        fields=("recurrent_param",),
        op="Recurrent",
        params=params + output,
        backward_inputs=WEIGHED,
        bottom_kinds={1: "marks"},
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
    "Bias": _caffe(
        op="Bias",
        params=(ParamMetadata("bias", "bias", "bias_param.filler", ONE_BOTTOM),),
        same_shape=True,
    ),
    "Eltwise": _caffe(
        op="Eltwise",
        backward_inputs={"bottoms": PRODUCT, "tops with gradient": PRODUCT & unless(STABLE)},
        same_shape=True,
        macs_per_output=_eltwise,
    ),
    "Embed": _caffe(
        op="Embed",
        params=product_params("embed_param"),
        backward_inputs=BOTTOMS,
        bottom_kinds={0: "indices"},
        moves="part",
    ),
    "InnerProduct": _product("inner_product_param", "InnerProduct"),
    "LSTM": _recurrent(2),
    "LSTMUnit": _caffe(
        backward_inputs={"bottoms": ALWAYS, "first top": ALWAYS},
        same_shape=True,
        bottom_kinds={2: "marks"},
        macs_per_output=constant(3),
    ),
    "Reduction": _caffe(backward_inputs={"bottoms": NOT_LINEAR}),
    "RNN": _recurrent(1, RNN_OUTPUT),
    "Scale": _caffe(
        op="Scale",
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
    "BatchReindex": _caffe(backward_inputs=BOTTOMS, bottom_kinds={1: "indices"}, moves="part"),
    "Concat": _caffe(op="Concat", shares=ONE_BOTTOM),
    "Crop": _caffe(op="Crop", moves="part"),
    "Filter": _caffe(bottom_kinds={-1: "selector"}, moves="part"),
    "Flatten": _caffe(shares=ALWAYS),
    "Permute": LayerMetadata(op="Permute", reference="OpenCV"),
    "Reshape": _caffe(shares=ALWAYS),
    "ShuffleChannel": LayerMetadata(op="Shuffle", same_shape=True),
    "Silence": _caffe(gradient="none", result=True, moves="nothing"),
    "Slice": _caffe(op="Slice", shares=ONE_TOP),
    "Squeeze": LayerMetadata(shares=ALWAYS),
    "Split": _caffe(op="Split", same_shape=True, shares=ALWAYS),
    "Tile": _caffe(op="Tile"),
}


SECOND_TOP = Condition("with a second top", lambda param, phase: len(param.top) > 1)

_loss = partial(LayerMetadata, better="smaller", backward_inputs=BOTTOMS)
_softmax_loss = partial(
    _loss,
    fields=("loss_param", "softmax_param"),
    backward_inputs={"bottoms": ALWAYS, "second top": SECOND_TOP},
    contains=("Softmax",),
    bottom_kinds={1: "classes"},
)

LOSSES: Mapping[str, LayerMetadata] = {
    "CenterLoss": _loss(
        params=(ParamMetadata("centres", "value", "center_loss_param.center_filler"),),
        backward_inputs=WEIGHED,
        bottom_kinds={1: "indices"},
    ),
    "ContrastiveLoss": _loss(reference="Caffe", bottom_kinds={2: "marks"}),
    "EuclideanLoss": _loss(op="PairLoss", reference="Caffe"),
    "FocalLoss": _loss(
        fields=("focal_loss_param", "loss_param", "softmax_param"),
        contains=("Softmax", "Sigmoid"),
        bottom_kinds={1: "indices"},
    ),
    "HingeLoss": _loss(reference="Caffe", bottom_kinds={1: "classes"}),
    "InfogainLoss": _loss(
        fields=("infogain_loss_param", "loss_param"),
        reference="Caffe",
        contains=("Softmax",),
        bottom_kinds={1: "classes"},
        source="infogain_loss_param.source",
    ),
    "MultinomialLogisticLoss": _loss(reference="Caffe", bottom_kinds={1: "classes"}),
    "SigmoidCrossEntropyLoss": _loss(
        fields=("loss_param",), op="PairLoss", reference="Caffe", contains=("Sigmoid",)
    ),
    "MultiBoxLoss": _loss(
        fields=("multibox_loss_param", "loss_param"), bottom_kinds={2: "priors", 3: "objects"}
    ),
    "SmoothL1Loss": _loss(),
    "SmoothL1LossOHEM": _loss(fields=("smooth_l1_loss_param", "loss_param")),
    "SoftmaxWithLoss": _softmax_loss(op="SoftmaxLoss", reference="Caffe"),
    "SoftmaxWithLossOHEM": _softmax_loss(),
    "TripletLoss": _loss(),
}


METRICS: Mapping[str, LayerMetadata] = {
    "Accuracy": _caffe(
        op="Accuracy", gradient="none", better="larger", result=True, bottom_kinds={1: "classes"}
    ),
    "ArgMax": _caffe(gradient="none", result=True),
    "SegAccuracy": LayerMetadata(
        gradient="none", better="larger", result=True, bottom_kinds={1: "classes"}
    ),
}


_data = partial(LayerMetadata, gradient="source", host=True, records=True)


def _images(message: str, reference: Reference = "") -> LayerMetadata:
    """Return the metadata of a type that reads the images of a list."""
    return _data(
        fields=(message, "transform_param", "data_param.prefetch"),
        reference=reference,
        source=f"{message}.source",
    )


DATA_LAYERS: Mapping[str, LayerMetadata] = {
    "AnnotatedData": _data(
        fields=("annotated_data_param", "data_param", "transform_param"), source="data_param.source"
    ),
    "Data": _data(
        fields=("data_param", "transform_param"), reference="Caffe", source="data_param.source"
    ),
    "DummyData": LayerMetadata(gradient="source", host=True),
    "HDF5Data": _data(
        fields=("hdf5_data_param", "data_param.prefetch"),
        reference="Caffe",
        source="hdf5_data_param.source",
    ),
    "HDF5Output": LayerMetadata(gradient="none", host=True, result=True),
    "ImageData": _images("image_data_param", "Caffe"),
    "DenseImageData": _images("dense_image_data_param"),
    "ImageSegData": _images("image_data_param"),
    "Input": _caffe(gradient="source", moves="nothing"),
    "MemoryData": _data(fields=("memory_data_param", "transform_param")),
    "Parameter": _caffe(
        gradient="source", params=(ParamMetadata("value", "value"),), moves="nothing"
    ),
    "Python": LayerMetadata(host=True, records=True, opaque=True, known=False),
    "WindowData": _images("window_data_param"),
}


_on_host = partial(LayerMetadata, gradient="none", host=True)

DETECTION: Mapping[str, LayerMetadata] = {
    "BoxAnnotatorOHEM": _on_host(bottom_kinds={0: "regions"}),
    "DetectionEvaluate": _on_host(better="larger", result=True, bottom_kinds={1: "objects"}),
    "DetectionOutput": _on_host(reference="OpenCV", result=True),
    "PriorBox": LayerMetadata(op="Constant", gradient="none", reference="OpenCV", moves="tops"),
    "Proposal": _on_host(),
    "PSROIPooling": LayerMetadata(op="PSROIPool", bottom_kinds={1: "regions"}),
    "BoxGroupOutput": _on_host(fields=("box_group_output_param", "bbox_reg_param")),
    "DecodeBBox": _on_host(
        fields=("decode_bbox_param", "bbox_reg_param"), bottom_kinds={1: "regions"}
    ),
    "YoloDetectionOutput": _on_host(),
    "Yolov3DetectionOutput": _on_host(),
    "ROIAlign": LayerMetadata(fields=("roi_pooling_param",), bottom_kinds={1: "regions"}),
    "ROIPooling": LayerMetadata(op="ROIPool", backward_inputs=BOTTOMS, bottom_kinds={1: "regions"}),
}
