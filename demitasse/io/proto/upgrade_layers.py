"""Upgrades of layers in old formats: V0 (2013) to V1, and V1 to the current format.

V0 takes two steps: padding layers are folded into the convolution or pooling that reads them, then
the fields of each flat layer, ``layers { layer { ... } }``, move to the V1 message of its type.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeV0PaddingLayers,
UpgradeV0LayerParameter, UpgradeV0LayerType, UpgradeV1Net, UpgradeV1LayerParameter). V1 types of
forks: DeepLab's first release; C3D; FCN's first release (longjon/caffe, branch ``future``), whose
CROP computes its offset.
"""

from collections.abc import Iterable

from demitasse.core.text import suggestion
from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto.caffe_pb2 import LayerParameter, NetParameter, V1LayerParameter
from demitasse.io.proto.caffe_pb2 import V1LayerParameter as Old
from demitasse.io.proto.crop_offset import crop_offset

Lines = list[int | None]
"""Line of each layer, or None if unknown."""


class Problem(str):
    """A note about a dropped item."""

    __slots__ = ()


V0_TYPES = {
    "accuracy": Old.ACCURACY,
    "bnll": Old.BNLL,
    "concat": Old.CONCAT,
    "conv": Old.CONVOLUTION,
    "data": Old.DATA,
    "dropout": Old.DROPOUT,
    "euclidean_loss": Old.EUCLIDEAN_LOSS,
    "flatten": Old.FLATTEN,
    "hdf5_data": Old.HDF5_DATA,
    "hdf5_output": Old.HDF5_OUTPUT,
    "im2col": Old.IM2COL,
    "images": Old.IMAGE_DATA,
    "infogain_loss": Old.INFOGAIN_LOSS,
    "innerproduct": Old.INNER_PRODUCT,
    "lrn": Old.LRN,
    "multinomial_logistic_loss": Old.MULTINOMIAL_LOGISTIC_LOSS,
    "pool": Old.POOLING,
    "relu": Old.RELU,
    "sigmoid": Old.SIGMOID,
    "softmax": Old.SOFTMAX,
    "softmax_loss": Old.SOFTMAX_LOSS,
    "split": Old.SPLIT,
    "tanh": Old.TANH,
    "window_data": Old.WINDOW_DATA,
}

COMMON = frozenset({"blobs", "blobs_lr", "weight_decay"})

_SOURCES = ("data", "hdf5_data", "images", "window_data")
_PARAMS = {
    "conv": "convolution_param",
    "innerproduct": "inner_product_param",
    "pool": "pooling_param",
    "dropout": "dropout_param",
    "lrn": "lrn_param",
    "data": "data_param",
    "hdf5_data": "hdf5_data_param",
    "images": "image_data_param",
    "window_data": "window_data_param",
    "infogain_loss": "infogain_loss_param",
    "concat": "concat_param",
}


def _to(name: str, *types: str) -> dict[str, str]:
    return {kind: f"{_PARAMS[kind]}.{name}" for kind in types}


def _all(place: str) -> dict[str, str]:
    return dict.fromkeys([*V0_TYPES, "padding"], place)


# V0 field -> layer type -> V1 field; other types cannot have the field.
MOVES: dict[str, dict[str, str]] = {
    "num_output": _to("num_output", "conv", "innerproduct"),
    "biasterm": _to("bias_term", "conv", "innerproduct"),
    "weight_filler": _to("weight_filler", "conv", "innerproduct"),
    "bias_filler": _to("bias_filler", "conv", "innerproduct"),
    "pad": _to("pad", "conv", "pool"),
    "kernelsize": _to("kernel_size", "conv", "pool"),
    "group": _to("group", "conv"),
    "stride": _to("stride", "conv", "pool"),
    "pool": _to("pool", "pool"),
    "dropout_ratio": _to("dropout_ratio", "dropout"),
    "local_size": _to("local_size", "lrn"),
    "alpha": _to("alpha", "lrn"),
    "beta": _to("beta", "lrn"),
    "k": _to("k", "lrn"),
    "source": _to("source", *_SOURCES, "infogain_loss"),
    "batchsize": _to("batch_size", *_SOURCES),
    "rand_skip": _to("rand_skip", "data", "images"),
    "shuffle_images": _to("shuffle", "images"),
    "new_height": _to("new_height", "images"),
    "new_width": _to("new_width", "images"),
    "concat_dim": _to("concat_dim", "concat"),
    "det_fg_threshold": _to("fg_threshold", "window_data"),
    "det_bg_threshold": _to("bg_threshold", "window_data"),
    "det_fg_fraction": _to("fg_fraction", "window_data"),
    "det_context_pad": _to("context_pad", "window_data"),
    "det_crop_mode": _to("crop_mode", "window_data"),
    "hdf5_output_param": {"hdf5_output": "hdf5_output_param"},
    "scale": _all("transform_param.scale"),
    "meanfile": _all("transform_param.mean_file"),
    "cropsize": _all("transform_param.crop_size"),
    "mirror": _all("transform_param.mirror"),
}


def upgrade_v0(net: NetParameter, lines: Lines) -> list[str]:
    """Upgrade every V0 layer to V1, in place."""
    old = sum(layer.HasField("layer") for layer in net.layers)
    if not old:
        return []
    notes = [f"{old} V0 layers (layers {{ layer {{ type: 'conv' }} }}) were upgraded"]
    padding = _fold_padding(net)
    if padding:
        notes.append(f"{len(padding)} padding layers became the pad of the layers after them")
    for i in reversed(padding):
        del net.layers[i]
        del lines[i : i + 1]
    for layer in net.layers:
        if layer.HasField("layer"):
            notes += _upgrade_v0_layer(layer)
    for field in ("input_shape", "state", "debug_info"):  # newer than V0
        if field in (descriptor.name for descriptor, _ in net.ListFields()):
            net.ClearField(field)
            notes.append(Problem(f"{field} does not belong in a V0 net and was dropped"))
    return notes


def _fold_padding(net: NetParameter) -> list[int]:
    """Connect readers of padding layers to the inputs of these; return their indices."""
    padding = [i for i, layer in enumerate(net.layers) if layer.layer.type == "padding"]
    maker: dict[str, int | None] = dict.fromkeys(net.input)
    for i, layer in enumerate(net.layers):
        for j, blob in enumerate(layer.bottom):
            if blob not in maker:
                message = f"{_label(layer)} reads {blob!r}, which no earlier layer makes"
                raise PrototxtError(message, code=ErrorCode.UNKNOWN, blob=blob)
            source = maker[blob]
            if source in padding and i not in padding:
                _take_pad(layer, j, net.layers[source])
        maker.update(dict.fromkeys(layer.top, i))
    return padding


def _take_pad(layer: V1LayerParameter, bottom: int, padding: V1LayerParameter) -> None:
    if layer.layer.type not in {"conv", "pool"}:
        message = (
            f"{_label(layer)} reads the padding layer {padding.layer.name!r}; "
            "only 'conv' and 'pool' layers take padding"
        )
        raise PrototxtError(message, code=ErrorCode.UNSUPPORTED, field="pad")
    for one in (layer, padding):
        if len(one.bottom) != 1:
            message = f"{_label(one)} has {len(one.bottom)} bottoms, expected one"
            raise PrototxtError(message, code=ErrorCode.COUNT_MISMATCH, field="bottom")
    layer.layer.pad = padding.layer.pad
    layer.bottom[bottom] = padding.bottom[0]


def _upgrade_v0_layer(layer: V1LayerParameter) -> list[str]:
    """Upgrade one entry to V1, in place; parameters are copied in blocks."""
    old = layer.layer
    notes: list[str] = []
    for field, _ in layer.ListFields():
        if field.name not in {"bottom", "top", "layer"}:
            notes.append(Problem(f"{_label(layer)}: {field.name} beside 'layer' was dropped"))
            layer.ClearField(field.name)
    for field, value in old.ListFields():
        place = MOVES.get(field.name, {}).get(old.type)
        if field.name == "type":
            layer.type = _type(layer)
        elif field.name == "name":
            layer.name = old.name
        elif field.name in COMMON:  # repeated
            getattr(layer, field.name).MergeFrom(value)
        elif place is None:
            notes.append(Problem(f"{_label(layer)}: a {old.type!r} layer has no {field.name}"))
        else:
            _move(layer, place, value)
    layer.ClearField("layer")
    return notes


def _type(layer: V1LayerParameter) -> int:
    name = layer.layer.type
    if name not in V0_TYPES:
        message = f"{_label(layer)}: the V0 format has no type {name!r}{suggestion(name, V0_TYPES)}"
        raise PrototxtError(message, code=ErrorCode.UNKNOWN, field="type", got=name)
    return V0_TYPES[name]


def _move(layer: V1LayerParameter, place: str, value: object) -> None:
    """Assign a value to the field ``message.field``; a repeated field gets one element."""
    message, _, name = place.partition(".")
    target = getattr(layer, message)
    if not name:
        target.CopyFrom(value)
    elif target.DESCRIPTOR.fields_by_name[name].message_type is not None:
        getattr(target, name).CopyFrom(value)
    elif hasattr(getattr(target, name), "append"):
        getattr(target, name).append(value)
    else:
        setattr(target, name, value)


def _label(layer: V1LayerParameter) -> str:
    name = layer.layer.name or layer.name
    return f"layer {name!r}" if name else "a layer without a name"


V1_TYPES = {
    V1LayerParameter.NONE: "",
    V1LayerParameter.ABSVAL: "AbsVal",
    V1LayerParameter.ACCURACY: "Accuracy",
    V1LayerParameter.ARGMAX: "ArgMax",
    V1LayerParameter.BNLL: "BNLL",
    V1LayerParameter.CONCAT: "Concat",
    V1LayerParameter.CONTRASTIVE_LOSS: "ContrastiveLoss",
    V1LayerParameter.CONVOLUTION: "Convolution",
    V1LayerParameter.DATA: "Data",
    V1LayerParameter.DECONVOLUTION: "Deconvolution",
    V1LayerParameter.DROPOUT: "Dropout",
    V1LayerParameter.DUMMY_DATA: "DummyData",
    V1LayerParameter.ELTWISE: "Eltwise",
    V1LayerParameter.EUCLIDEAN_LOSS: "EuclideanLoss",
    V1LayerParameter.EXP: "Exp",
    V1LayerParameter.FLATTEN: "Flatten",
    V1LayerParameter.HDF5_DATA: "HDF5Data",
    V1LayerParameter.HDF5_OUTPUT: "HDF5Output",
    V1LayerParameter.HINGE_LOSS: "HingeLoss",
    V1LayerParameter.IM2COL: "Im2col",
    V1LayerParameter.IMAGE_DATA: "ImageData",
    V1LayerParameter.INFOGAIN_LOSS: "InfogainLoss",
    V1LayerParameter.INNER_PRODUCT: "InnerProduct",
    V1LayerParameter.LRN: "LRN",
    V1LayerParameter.MEMORY_DATA: "MemoryData",
    V1LayerParameter.MULTINOMIAL_LOGISTIC_LOSS: "MultinomialLogisticLoss",
    V1LayerParameter.MVN: "MVN",
    V1LayerParameter.POOLING: "Pooling",
    V1LayerParameter.POWER: "Power",
    V1LayerParameter.RELU: "ReLU",
    V1LayerParameter.SIGMOID: "Sigmoid",
    V1LayerParameter.SIGMOID_CROSS_ENTROPY_LOSS: "SigmoidCrossEntropyLoss",
    V1LayerParameter.SILENCE: "Silence",
    V1LayerParameter.SLICE: "Slice",
    V1LayerParameter.SOFTMAX: "Softmax",
    V1LayerParameter.SOFTMAX_LOSS: "SoftmaxWithLoss",
    V1LayerParameter.SPLIT: "Split",
    V1LayerParameter.TANH: "TanH",
    V1LayerParameter.THRESHOLD: "Threshold",
    V1LayerParameter.WINDOW_DATA: "WindowData",
    # of the forks, and of types that the current format has only
    V1LayerParameter.ANNOTATED_DATA: "AnnotatedData",
    V1LayerParameter.AXPY: "Axpy",
    V1LayerParameter.BATCH_NORM: "BatchNorm",
    V1LayerParameter.BATCH_REINDEX: "BatchReindex",
    V1LayerParameter.BIAS: "Bias",
    V1LayerParameter.BN: "BN",
    V1LayerParameter.BOX_ANNOTATOR_OHEM: "BoxAnnotatorOHEM",
    V1LayerParameter.BOX_GROUP_OUTPUT: "BoxGroupOutput",
    V1LayerParameter.CENTER_LOSS: "CenterLoss",
    V1LayerParameter.CLIP: "Clip",
    V1LayerParameter.CONVOLUTION_DEPTHWISE: "ConvolutionDepthwise",
    V1LayerParameter.CROP: "Crop",
    V1LayerParameter.DECODE_BBOX: "DecodeBBox",
    V1LayerParameter.DENSE_IMAGE_DATA: "DenseImageData",
    V1LayerParameter.DEPTHWISE_CONVOLUTION: "DepthwiseConvolution",
    V1LayerParameter.DETECTION_EVALUATE: "DetectionEvaluate",
    V1LayerParameter.DETECTION_OUTPUT: "DetectionOutput",
    V1LayerParameter.ELU: "ELU",
    V1LayerParameter.EMBED: "Embed",
    V1LayerParameter.FILTER: "Filter",
    V1LayerParameter.FOCAL_LOSS: "FocalLoss",
    V1LayerParameter.GELU: "GELU",
    V1LayerParameter.HARD_SWISH: "HardSwish",
    V1LayerParameter.IMAGE_SEG_DATA: "ImageSegData",
    V1LayerParameter.INPUT: "Input",
    V1LayerParameter.INTERP: "Interp",
    V1LayerParameter.LOG: "Log",
    V1LayerParameter.LSTM: "LSTM",
    V1LayerParameter.LSTM_UNIT: "LSTMUnit",
    V1LayerParameter.MULTI_BOX_LOSS: "MultiBoxLoss",
    V1LayerParameter.ND_CONVOLUTION: "NdConvolution",
    V1LayerParameter.ND_POOLING: "NdPooling",
    V1LayerParameter.NORMALIZE: "Normalize",
    V1LayerParameter.PARAMETER: "Parameter",
    V1LayerParameter.PERMUTE: "Permute",
    V1LayerParameter.PRELU: "PReLU",
    V1LayerParameter.PRIOR_BOX: "PriorBox",
    V1LayerParameter.PROPOSAL: "Proposal",
    V1LayerParameter.PSROI_POOLING: "PSROIPooling",
    V1LayerParameter.PYTHON: "Python",
    V1LayerParameter.REDUCTION: "Reduction",
    V1LayerParameter.RELU6: "ReLU6",
    V1LayerParameter.REORG: "Reorg",
    V1LayerParameter.RESHAPE: "Reshape",
    V1LayerParameter.RNN: "RNN",
    V1LayerParameter.ROI_ALIGN: "ROIAlign",
    V1LayerParameter.ROI_POOLING: "ROIPooling",
    V1LayerParameter.SCALE: "Scale",
    V1LayerParameter.SEG_ACCURACY: "SegAccuracy",
    V1LayerParameter.SHUFFLE_CHANNEL: "ShuffleChannel",
    V1LayerParameter.SMOOTH_L1_LOSS: "SmoothL1Loss",
    V1LayerParameter.SMOOTH_L1_LOSS_OHEM: "SmoothL1LossOHEM",
    V1LayerParameter.SOFTMAX_WITH_LOSS_OHEM: "SoftmaxWithLossOHEM",
    V1LayerParameter.SPP: "SPP",
    V1LayerParameter.SQUEEZE: "Squeeze",
    V1LayerParameter.SWISH: "Swish",
    V1LayerParameter.TILE: "Tile",
    V1LayerParameter.TRIPLET_LOSS: "TripletLoss",
    V1LayerParameter.UPSAMPLE: "Upsample",
    V1LayerParameter.YOLOV3_DETECTION_OUTPUT: "Yolov3DetectionOutput",
    V1LayerParameter.YOLO_DETECTION_OUTPUT: "YoloDetectionOutput",
    V1LayerParameter.CONVOLUTION3D: "Convolution",  # C3D
    V1LayerParameter.POOLING3D: "Pooling",  # C3D
}
# Per-parameter fields of V1, and the ParamSpec fields that replaced them.
SPECS = {
    "param": "name",
    "blob_share_mode": "share_mode",
    "blobs_lr": "lr_mult",
    "weight_decay": "decay_mult",
}


def upgrade_v1(net: NetParameter) -> list[str]:
    """Replace ``layers`` by ``layer``, in place; floats of parameters are copied in blocks."""
    if not net.layers:
        return []
    notes = [f"{len(net.layers)} V1 layers (layers {{ type: CONVOLUTION }}) were upgraded"]
    if net.layer:
        notes.append(
            Problem(
                f"the file has both 'layers' (V1) and 'layer' entries; the {len(net.layer)} "
                "'layer' entries were dropped"
            )
        )
        net.ClearField("layer")
    for old in net.layers:
        _upgrade_v1_layer(old, net.layer.add())
    crops = [i for i, old in enumerate(net.layers) if old.type == V1LayerParameter.CROP]
    net.ClearField("layers")
    return notes + [note for i in crops for note in _align(net, i)]


def _upgrade_v1_layer(old: V1LayerParameter, new: LayerParameter) -> None:
    for field, value in old.ListFields():
        if field.name == "type":
            new.type = V1_TYPES[value]
        elif field.name in SPECS:
            _set_each(new, SPECS[field.name], value)
        elif isinstance(value, str):
            setattr(new, field.name, value)
        else:  # both formats share these messages and field names
            getattr(new, field.name).MergeFrom(value)


def _set_each(layer: LayerParameter, name: str, values: Iterable[str | float]) -> None:
    """Set a field of parameter i to value i, adding ParamSpecs as needed."""
    for i, value in enumerate(values):
        spec = layer.param[i] if i < len(layer.param) else layer.param.add()
        setattr(spec, name, value)


def _align(net: NetParameter, index: int) -> list[str]:
    """Set the offset of a CROP layer without one, as FCN's first release computes it."""
    crop = net.layer[index]
    if crop.HasField("crop_param") or len(crop.bottom) != 2:
        return []
    offset = crop_offset(net, index)
    if offset is None:
        note = f"layer {crop.name!r}: the bottoms of CROP have no common coordinates, offset is 0"
        return [Problem(note)]
    if any(offset):
        crop.crop_param.offset.extend(offset)
    return [f"layer {crop.name!r}: CROP aligns its bottoms, offset {offset[0]}, {offset[1]}"]
