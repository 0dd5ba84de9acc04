"""The facts about every layer type of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.layers.facts.kinds import (
    ALWAYS,
    IN_PLACE,
    LayerFacts,
    ParamFacts,
    Read,
    When,
    field_of,
    given,
    phase_is,
    unless,
)
from demitasse.proto import (
    BNParameter,
    EltwiseParameter,
    LayerParameter,
    LRNParameter,
    PoolingParameter,
    ReductionParameter,
)

__all__ = ["FACTS", "FAMILIES", "describe", "facts_of", "first_name", "forget"]

VISION, NEURONS, NORMAL = "Windows and maps", "Neurons", "Normalisation"
DENSE, SHAPES, LOSSES = "Products, sums and sequences", "Shapes and selections", "Losses"
METRICS, DATA, DETECTION = "Metrics", "Data, inputs and outputs", "Detection"
FAMILIES = (VISION, NEURONS, NORMAL, DENSE, SHAPES, LOSSES, METRICS, DATA, DETECTION)
"""The headings, in order."""

# -- conditions --------------------------------------------------------------------------------

ELSEWHERE = unless(IN_PLACE)


def _field(path: str, text: str = "") -> When:
    return When(
        text or f"with `{path.partition('.')[2]}`", lambda param, phase: field_of(param, path)
    )


def _bottoms(least: int, text: str) -> When:
    return When(text, lambda param, phase: len(param.bottom) >= least)


SECOND_BOTTOM = _bottoms(2, "with a second bottom")
SECOND_TOP = When("with a second top", lambda param, phase: len(param.top) > 1)
ONE_BOTTOM = When("with one bottom", lambda param, phase: len(param.bottom) <= 1)
ONE_TOP = When("with one top", lambda param, phase: len(param.top) == 1)

STOCHASTIC = PoolingParameter.STOCHASTIC
SPREADS = When(
    "with STOCHASTIC", lambda param, phase: param.pooling_param.pool == STOCHASTIC
) & phase_is("TEST")
SPP_SPREADS = When(
    "with STOCHASTIC", lambda param, phase: param.spp_param.pool == STOCHASTIC
) & phase_is("TEST")
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
PRODUCT = When(
    "with PROD", lambda param, phase: param.eltwise_param.operation == EltwiseParameter.PROD
)
STABLE = _field("eltwise_param.stable_prod_grad")
NOT_LINEAR = When(
    "with ASUM or SUMSQ",
    lambda param, phase: (
        param.reduction_param.operation in {ReductionParameter.ASUM, ReductionParameter.SUMSQ}
    ),
)
NV_SCALED = When(
    "with `scale_bias` or a filler",
    lambda param, phase: (
        param.batch_norm_param.scale_bias
        or given(param, "batch_norm_param.scale_filler")
        or given(param, "batch_norm_param.bias_filler")
    ),
)


def _rectifies(path: str) -> When:
    return When("with a slope of 0 or more", lambda param, phase: field_of(param, path) >= 0)


def _is_segnet(param: LayerParameter, phase: str) -> bool:
    p = param.bn_param
    if any(p.HasField(name) for name in ("scale_filler", "shift_filler", "bn_mode")):
        return True
    return len(p.ListFields()) == 0 and len(param.blobs) == 2


SEGNET = When("of SegNet", _is_segnet)
PSPNET = When("of PSPNet", unless(SEGNET).holds)
FROZEN = PSPNET & _field("bn_param.frozen")
MOVING = PSPNET & unless(_field("bn_param.frozen"))
BN_UNIT = When(
    "with statistics that are not of the batch",
    lambda param, phase: (
        param.bn_param.bn_mode == BNParameter.INFERENCE
        if SEGNET.holds(param, phase)
        else phase == "TEST" and not param.bn_param.frozen
    ),
)


def _static(states: int) -> When:
    """Return when a recurrent layer with so many states has a static bottom."""

    def holds(param: LayerParameter, phase: str) -> bool:
        exposed = states if param.recurrent_param.expose_hidden else 0
        return len(param.bottom) > 2 + exposed

    return When("with a static bottom", holds)


# -- parameters --------------------------------------------------------------------------------


def _product(message: str) -> tuple[ParamFacts, ...]:
    """Return a weight and, with ``bias_term``, a bias."""
    return (
        ParamFacts("weight", "weight", f"{message}.weight_filler"),
        ParamFacts("bias", "bias", f"{message}.bias_filler", _field(f"{message}.bias_term")),
    )


def _recurrent(states: int) -> tuple[ParamFacts, ...]:
    weight, bias = "recurrent_param.weight_filler", "recurrent_param.bias_filler"
    return (
        ParamFacts("weight of the input", "weight", weight),
        ParamFacts("bias", "bias", bias),
        ParamFacts("weight of the static bottom", "weight", weight, _static(states)),
        ParamFacts("weight of the state", "weight", weight),
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
RNN_OUTPUT = (
    ParamFacts("weight of the output", "weight", "recurrent_param.weight_filler"),
    ParamFacts("bias of the output", "bias", "recurrent_param.bias_filler"),
)

# -- multiply-adds for each value of the first top ---------------------------------------------


def _one(param: LayerParameter, phase: str) -> int:
    return 1


def _two(param: LayerParameter, phase: str) -> int:
    return 2


def _three(param: LayerParameter, phase: str) -> int:
    return 3


def _four(param: LayerParameter, phase: str) -> int:
    return 4


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


def _eltwise(param: LayerParameter, phase: str) -> int:
    """Return the factors of a product but the first, or the coefficients of a sum."""
    p = param.eltwise_param
    if p.operation == EltwiseParameter.PROD:
        return len(param.bottom) - 1
    return len(p.coeff) if p.operation == EltwiseParameter.SUM else 0


# -- what backward reads -----------------------------------------------------------------------

BOTTOMS: Mapping[Read, When] = {"bottoms": ALWAYS}
TOPS: Mapping[Read, When] = {"tops": ALWAYS}
BOTH: Mapping[Read, When] = {"bottoms": ALWAYS, "tops": ALWAYS}
WEIGHED: Mapping[Read, When] = {"bottoms": ALWAYS, "params": ALWAYS}
KEPT: Mapping[Read, When] = {"bottoms": ELSEWHERE}  # in place, the layer keeps its input

# -- the table ---------------------------------------------------------------------------------

FACTS: Mapping[str, LayerFacts] = {
    # -- windows and maps
    "Convolution": LayerFacts(
        family=VISION,
        fields=("convolution_param",),
        aliases=("ConvolutionDepthwise", "DepthwiseConvolution"),
        op="Conv",
        judge="Caffe",
        params=_product("convolution_param"),
        reads=WEIGHED,
        num_output="convolution_param.num_output",
    ),
    "Deconvolution": LayerFacts(
        family=VISION,
        fields=("convolution_param",),
        op="Deconv",
        judge="Caffe",
        params=_product("convolution_param"),
        reads=WEIGHED,
        num_output="convolution_param.num_output",
    ),
    "Im2col": LayerFacts(family=VISION, fields=("convolution_param",), judge="Caffe"),
    "Interp": LayerFacts(family=VISION, fields=("interp_param",), per_value=_four),
    "Pooling": LayerFacts(
        family=VISION,
        fields=("pooling_param",),
        op="Pool",
        judge="Caffe",
        reads={"bottoms": SPREADS, "tops": SPREADS},
    ),
    "Reorg": LayerFacts(family=VISION, fields=("reorg_param",)),
    "SPP": LayerFacts(
        family=VISION, fields=("spp_param",), judge="Caffe", reads={"bottoms": SPP_SPREADS}
    ),
    "Upsample": LayerFacts(
        family=VISION,
        fields=("upsample_param",),
        reads={"bottoms": SECOND_BOTTOM},
        holds={1: "indices"},
    ),
    # -- neurons
    "AbsVal": LayerFacts(family=NEURONS, judge="Caffe", reads=BOTTOMS, same_shape=True),
    "BNLL": LayerFacts(family=NEURONS, judge="Caffe", reads=KEPT, same_shape=True),
    "Clip": LayerFacts(
        family=NEURONS,
        fields=("clip_param",),
        judge="Caffe",
        reads=KEPT,
        same_shape=True,
        keeps_signs=AROUND_0,
    ),
    "Dropout": LayerFacts(
        family=NEURONS,
        fields=("dropout_param",),
        op="Dropout",
        judge="Caffe",
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "ELU": LayerFacts(
        family=NEURONS,
        fields=("elu_param",),
        judge="Caffe",
        reads={"bottoms": ELSEWHERE, "tops": ALWAYS},
        same_shape=True,
        keeps_signs=_rectifies("elu_param.alpha"),
    ),
    "Exp": LayerFacts(
        family=NEURONS, fields=("exp_param",), judge="Caffe", reads=TOPS, same_shape=True
    ),
    "GELU": LayerFacts(
        family=NEURONS,
        op="gelu",
        judge="definition",
        reads=KEPT,
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "Log": LayerFacts(
        family=NEURONS, fields=("log_param",), judge="Caffe", reads=KEPT, same_shape=True
    ),
    "Power": LayerFacts(
        family=NEURONS,
        fields=("power_param",),
        judge="Caffe",
        reads={"bottoms": ELSEWHERE & CURVED},
        same_shape=True,
        keeps_signs=FACTOR,
    ),
    "PReLU": LayerFacts(
        family=NEURONS,
        fields=("prelu_param",),
        judge="Caffe",
        params=(ParamFacts("slope", "scale", "prelu_param.filler"),),
        reads={"bottoms": ELSEWHERE, "params": ALWAYS},
        same_shape=True,
        per_value=_one,
    ),
    "ReLU": LayerFacts(
        family=NEURONS,
        fields=("relu_param",),
        op="relu",
        judge="Caffe",
        reads={"bottoms": ELSEWHERE, "signs": IN_PLACE & _rectifies("relu_param.negative_slope")},
        same_shape=True,
        keeps_signs=_rectifies("relu_param.negative_slope"),
    ),
    "ReLU6": LayerFacts(
        family=NEURONS,
        fields=("relu6_param",),
        reads={"bottoms": ELSEWHERE, "tops": IN_PLACE & _rectifies("relu6_param.negative_slope")},
        same_shape=True,
        keeps_signs=_rectifies("relu6_param.negative_slope"),
    ),
    "Sigmoid": LayerFacts(family=NEURONS, op="sigmoid", judge="Caffe", reads=TOPS, same_shape=True),
    "Swish": LayerFacts(
        family=NEURONS,
        fields=("swish_param",),
        judge="Caffe",
        reads=TOPS,
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "TanH": LayerFacts(
        family=NEURONS,
        op="tanh",
        judge="Caffe",
        reads=TOPS,
        same_shape=True,
        keeps_signs=ALWAYS,
    ),
    "Threshold": LayerFacts(
        family=NEURONS,
        fields=("threshold_param",),
        gradient="none",
        judge="Caffe",
        same_shape=True,
    ),
    # -- normalisation
    "BatchNorm": LayerFacts(
        family=NORMAL,
        fields=("batch_norm_param",),
        op="BatchNorm",
        judge="Caffe",
        params=BATCH_NORM,
        reads={"params": NV_SCALED},
        same_shape=True,
        per_value=_batch_norm,
    ),
    "BN": LayerFacts(
        family=NORMAL,
        fields=("bn_param",),
        params=BN,
        reads={"bottoms": ELSEWHERE & BN_UNIT, "params": ALWAYS},
        same_shape=True,
        per_value=_two,
    ),
    "LRN": LayerFacts(
        family=NORMAL,
        fields=("lrn_param",),
        op="LRN",
        judge="Caffe",
        reads=BOTH,
        same_shape=True,
        per_value=_lrn,
    ),
    "MVN": LayerFacts(
        family=NORMAL,
        fields=("mvn_param",),
        judge="Caffe",
        reads={"tops": _field("mvn_param.normalize_variance")},
        per_value=_two,
    ),
    "Normalize": LayerFacts(
        family=NORMAL,
        fields=("norm_param",),
        judge="OpenCV",
        params=(ParamFacts("scale", "scale", "norm_param.scale_filler"),),
        reads={"bottoms": ELSEWHERE, "params": ALWAYS},
        same_shape=True,
        per_value=_three,
    ),
    "Softmax": LayerFacts(
        family=NORMAL,
        fields=("softmax_param",),
        op="Softmax",
        judge="Caffe",
        reads=TOPS,
        same_shape=True,
    ),
    # -- products, sums and sequences
    "Axpy": LayerFacts(family=DENSE, reads=BOTTOMS, per_value=_one),
    "Bias": LayerFacts(
        family=DENSE,
        fields=("bias_param",),
        judge="Caffe",
        params=(ParamFacts("bias", "bias", "bias_param.filler", ONE_BOTTOM),),
        same_shape=True,
    ),
    "Eltwise": LayerFacts(
        family=DENSE,
        fields=("eltwise_param",),
        op="Eltwise",
        judge="Caffe",
        reads={"bottoms": PRODUCT, "tops": PRODUCT & unless(STABLE)},
        same_shape=True,
        per_value=_eltwise,
    ),
    "Embed": LayerFacts(
        family=DENSE,
        fields=("embed_param",),
        judge="Caffe",
        params=_product("embed_param"),
        reads=BOTTOMS,
        holds={0: "indices"},
        moves="part",
    ),
    "InnerProduct": LayerFacts(
        family=DENSE,
        fields=("inner_product_param",),
        op="InnerProduct",
        judge="Caffe",
        params=_product("inner_product_param"),
        reads=WEIGHED,
        num_output="inner_product_param.num_output",
    ),
    "LSTM": LayerFacts(
        family=DENSE,
        fields=("recurrent_param",),
        op="Recurrent",
        judge="Caffe",
        params=_recurrent(2),
        reads=WEIGHED,
        holds={1: "marks"},
    ),
    "LSTMUnit": LayerFacts(
        family=DENSE,
        judge="Caffe",
        reads={"bottoms": ALWAYS, "first top": ALWAYS},
        same_shape=True,
        holds={2: "marks"},
        per_value=_three,
    ),
    "Reduction": LayerFacts(
        family=DENSE, fields=("reduction_param",), judge="Caffe", reads={"bottoms": NOT_LINEAR}
    ),
    "RNN": LayerFacts(
        family=DENSE,
        fields=("recurrent_param",),
        op="Recurrent",
        judge="Caffe",
        params=_recurrent(1) + RNN_OUTPUT,
        reads=WEIGHED,
        holds={1: "marks"},
    ),
    "Scale": LayerFacts(
        family=DENSE,
        fields=("scale_param",),
        op="Scale",
        judge="Caffe",
        params=(
            ParamFacts("scale", "scale", "scale_param.filler", ONE_BOTTOM),
            ParamFacts("bias", "bias", "scale_param.bias_filler", _field("scale_param.bias_term")),
        ),
        reads={"bottoms": ELSEWHERE, "params": ONE_BOTTOM},
        same_shape=True,
        per_value=_one,
    ),
    # -- shapes and selections
    "BatchReindex": LayerFacts(
        family=SHAPES, judge="Caffe", reads=BOTTOMS, holds={1: "indices"}, moves="part"
    ),
    "Concat": LayerFacts(
        family=SHAPES, fields=("concat_param",), op="Concat", judge="Caffe", shares=ONE_BOTTOM
    ),
    "Crop": LayerFacts(family=SHAPES, fields=("crop_param",), judge="Caffe", moves="part"),
    "Filter": LayerFacts(family=SHAPES, judge="Caffe", holds={-1: "selector"}, moves="part"),
    "Flatten": LayerFacts(family=SHAPES, fields=("flatten_param",), judge="Caffe", shares=ALWAYS),
    "Permute": LayerFacts(family=SHAPES, fields=("permute_param",), judge="OpenCV"),
    "Reshape": LayerFacts(family=SHAPES, fields=("reshape_param",), judge="Caffe", shares=ALWAYS),
    "ShuffleChannel": LayerFacts(family=SHAPES, fields=("shuffle_channel_param",), same_shape=True),
    "Silence": LayerFacts(
        family=SHAPES, gradient="none", judge="Caffe", result=True, moves="nothing"
    ),
    "Slice": LayerFacts(family=SHAPES, fields=("slice_param",), judge="Caffe", shares=ONE_TOP),
    "Split": LayerFacts(family=SHAPES, op="Split", judge="Caffe", same_shape=True, shares=ALWAYS),
    "Tile": LayerFacts(family=SHAPES, fields=("tile_param",), judge="Caffe"),
    # -- losses
    "CenterLoss": LayerFacts(
        family=LOSSES,
        fields=("center_loss_param",),
        params=(ParamFacts("centres", "value", "center_loss_param.center_filler"),),
        reads=WEIGHED,
        better="smaller",
        holds={1: "indices"},
    ),
    "ContrastiveLoss": LayerFacts(
        family=LOSSES,
        fields=("contrastive_loss_param",),
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        holds={2: "marks"},
    ),
    "EuclideanLoss": LayerFacts(family=LOSSES, judge="Caffe", reads=BOTTOMS, better="smaller"),
    "FocalLoss": LayerFacts(
        family=LOSSES,
        fields=("focal_loss_param", "loss_param", "softmax_param"),
        reads=BOTTOMS,
        better="smaller",
        contains=("Softmax", "Sigmoid"),
        holds={1: "indices"},
    ),
    "HingeLoss": LayerFacts(
        family=LOSSES,
        fields=("hinge_loss_param",),
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        holds={1: "classes"},
    ),
    "InfogainLoss": LayerFacts(
        family=LOSSES,
        fields=("infogain_loss_param", "loss_param"),
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        contains=("Softmax",),
        holds={1: "classes"},
        source="infogain_loss_param.source",
    ),
    "MultinomialLogisticLoss": LayerFacts(
        family=LOSSES, judge="Caffe", reads=BOTTOMS, better="smaller", holds={1: "classes"}
    ),
    "SigmoidCrossEntropyLoss": LayerFacts(
        family=LOSSES,
        fields=("loss_param",),
        judge="Caffe",
        reads=BOTTOMS,
        better="smaller",
        contains=("Sigmoid",),
    ),
    "MultiBoxLoss": LayerFacts(
        family=LOSSES,
        fields=("multibox_loss_param", "loss_param"),
        reads=BOTTOMS,
        better="smaller",
        holds={2: "priors", 3: "objects"},
    ),
    "SmoothL1Loss": LayerFacts(
        family=LOSSES, fields=("smooth_l1_loss_param",), reads=BOTTOMS, better="smaller"
    ),
    "SmoothL1LossOHEM": LayerFacts(
        family=LOSSES,
        fields=("smooth_l1_loss_param", "loss_param"),
        reads=BOTTOMS,
        better="smaller",
    ),
    "SoftmaxWithLoss": LayerFacts(
        family=LOSSES,
        fields=("loss_param", "softmax_param"),
        op="SoftmaxLoss",
        judge="Caffe",
        reads={"bottoms": ALWAYS, "second top": SECOND_TOP},
        better="smaller",
        contains=("Softmax",),
        holds={1: "classes"},
    ),
    "SoftmaxWithLossOHEM": LayerFacts(
        family=LOSSES,
        fields=("loss_param", "softmax_param"),
        reads={"bottoms": ALWAYS, "second top": SECOND_TOP},
        better="smaller",
        contains=("Softmax",),
        holds={1: "classes"},
    ),
    "TripletLoss": LayerFacts(
        family=LOSSES, fields=("triplet_loss_param",), reads=BOTTOMS, better="smaller"
    ),
    # -- metrics
    "Accuracy": LayerFacts(
        family=METRICS,
        fields=("accuracy_param",),
        gradient="none",
        judge="Caffe",
        better="larger",
        result=True,
        holds={1: "classes"},
    ),
    "ArgMax": LayerFacts(
        family=METRICS, fields=("argmax_param",), gradient="none", judge="Caffe", result=True
    ),
    "SegAccuracy": LayerFacts(
        family=METRICS,
        fields=("seg_accuracy_param",),
        gradient="none",
        better="larger",
        result=True,
        holds={1: "classes"},
    ),
    # -- data, inputs and outputs
    "AnnotatedData": LayerFacts(
        family=DATA,
        fields=("annotated_data_param", "data_param", "transform_param"),
        gradient="source",
        host=True,
        source="data_param.source",
        records=True,
    ),
    "Data": LayerFacts(
        family=DATA,
        fields=("data_param", "transform_param"),
        gradient="source",
        judge="Caffe",
        host=True,
        source="data_param.source",
        records=True,
    ),
    "DummyData": LayerFacts(
        family=DATA, fields=("dummy_data_param",), gradient="source", host=True
    ),
    "HDF5Data": LayerFacts(
        family=DATA,
        fields=("hdf5_data_param", "data_param.prefetch"),
        gradient="source",
        judge="Caffe",
        host=True,
        source="hdf5_data_param.source",
        records=True,
    ),
    "HDF5Output": LayerFacts(
        family=DATA, fields=("hdf5_output_param",), gradient="none", host=True, result=True
    ),
    "ImageData": LayerFacts(
        family=DATA,
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        judge="Caffe",
        host=True,
        source="image_data_param.source",
        records=True,
    ),
    "DenseImageData": LayerFacts(
        family=DATA,
        fields=("dense_image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="dense_image_data_param.source",
        records=True,
    ),
    "ImageSegData": LayerFacts(
        family=DATA,
        fields=("image_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="image_data_param.source",
        records=True,
    ),
    "Input": LayerFacts(
        family=DATA, fields=("input_param",), gradient="source", judge="Caffe", moves="nothing"
    ),
    "MemoryData": LayerFacts(
        family=DATA,
        fields=("memory_data_param", "transform_param"),
        gradient="source",
        host=True,
        records=True,
    ),
    "Parameter": LayerFacts(
        family=DATA,
        fields=("parameter_param",),
        gradient="source",
        judge="Caffe",
        params=(ParamFacts("value", "value"),),
        moves="nothing",
    ),
    "Python": LayerFacts(
        family=DATA,
        fields=("python_param",),
        host=True,
        records=True,
        opaque=True,
        known=False,
    ),
    "WindowData": LayerFacts(
        family=DATA,
        fields=("window_data_param", "transform_param", "data_param.prefetch"),
        gradient="source",
        host=True,
        source="window_data_param.source",
        records=True,
    ),
    # -- detection
    "BoxAnnotatorOHEM": LayerFacts(
        family=DETECTION,
        fields=("box_annotator_ohem_param",),
        gradient="none",
        host=True,
        holds={0: "regions"},
    ),
    "DetectionEvaluate": LayerFacts(
        family=DETECTION,
        fields=("detection_evaluate_param",),
        gradient="none",
        host=True,
        better="larger",
        result=True,
        holds={1: "objects"},
    ),
    "DetectionOutput": LayerFacts(
        family=DETECTION,
        fields=("detection_output_param",),
        gradient="none",
        judge="OpenCV",
        host=True,
        result=True,
    ),
    "PriorBox": LayerFacts(
        family=DETECTION,
        fields=("prior_box_param",),
        gradient="none",
        judge="OpenCV",
        moves="tops",
    ),
    "Proposal": LayerFacts(
        family=DETECTION, fields=("proposal_param",), gradient="none", host=True
    ),
    "PSROIPooling": LayerFacts(
        family=DETECTION, fields=("psroi_pooling_param",), holds={1: "regions"}
    ),
    "ROIPooling": LayerFacts(
        family=DETECTION, fields=("roi_pooling_param",), reads=BOTTOMS, holds={1: "regions"}
    ),
}
"""First name of a layer class -> what is said about it."""

_FIRST = {alias: name for name, facts in FACTS.items() for alias in facts.aliases}
_described: dict[str, LayerFacts] = {}


def first_name(name: str) -> str:
    """Return the type of the catalogue under which ``name`` is described."""
    return _FIRST.get(name, name)


def facts_of(name: str) -> LayerFacts:
    """Return what is known of a layer type.

    Returns:
        Of a type that nobody has described, as good as nothing: that it may read records where it
        has no bottoms, and that it is a loss where its name says so, as all of Caffe's do.
    """
    found = FACTS.get(first_name(name)) or _described.get(name)
    if found is not None:
        return found
    return LayerFacts(better="smaller" if name.endswith("Loss") else "", records=True, known=False)


def describe(name: str, facts: LayerFacts) -> None:
    """Note the facts about a type of the user's."""
    _described[name] = facts


def forget(name: str) -> None:
    """Take back what :func:`describe` noted."""
    _described.pop(name, None)
