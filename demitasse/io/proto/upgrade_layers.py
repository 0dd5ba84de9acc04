"""Upgrades of layers in old formats: V0 (2013) to V1, and V1 to the current format.

V0 takes two steps: padding layers are folded into the convolution or pooling that reads them, then
the fields of each flat layer, ``layers { layer { ... } }``, move to the V1 message of its type.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeV0PaddingLayers,
UpgradeV0LayerParameter, UpgradeV0LayerType, UpgradeV1Net, UpgradeV1LayerParameter). V1 types of
forks: DeepLab's first release; C3D; FCN's first release (longjon/caffe, branch ``future``), whose
CROP computes its offset: ``src/caffe/layers/crop_layer.cpp``, ``include/caffe/util/coords.hpp``.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from demitasse.core.text import suggestion
from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto.caffe_pb2 import (
    ConvolutionParameter,
    LayerParameter,
    NetParameter,
    PoolingParameter,
    V1LayerParameter,
)
from demitasse.io.proto.caffe_pb2 import V1LayerParameter as Old

Lines = list[int | None]  # line of each layer, or None if unknown


class Problem(str):
    """A note about a dropped item."""

    __slots__ = ()


V0_NAMES = """
    accuracy bnll concat data dropout euclidean_loss flatten hdf5_data hdf5_output im2col
    infogain_loss lrn multinomial_logistic_loss relu sigmoid softmax softmax_loss split tanh
    window_data
"""
V0_TYPES = {name: Old.LayerType.Value(name.upper()) for name in V0_NAMES.split()} | {
    "conv": Old.CONVOLUTION,
    "images": Old.IMAGE_DATA,
    "innerproduct": Old.INNER_PRODUCT,
    "pool": Old.POOLING,
}
"""V0 type -> V1 type: the same letters, with four exceptions."""

COMMON = frozenset({"blobs", "blobs_lr", "weight_decay"})

SOURCES = "data hdf5_data images window_data"
FIELDS = {
    "conv innerproduct": "num_output biasterm=bias_term weight_filler bias_filler",
    "conv pool": "pad kernelsize=kernel_size stride",
    "conv": "group",
    "pool": "pool",
    "dropout": "dropout_ratio",
    "lrn": "local_size alpha beta k",
    f"{SOURCES} infogain_loss": "source",
    SOURCES: "batchsize=batch_size",
    "data images": "rand_skip",
    "images": "shuffle_images=shuffle new_height new_width",
    "concat": "concat_dim",
    "window_data": "det_fg_threshold=fg_threshold det_bg_threshold=bg_threshold "
    "det_fg_fraction=fg_fraction det_context_pad=context_pad det_crop_mode=crop_mode",
}
"""V0 types -> V0 fields, and the V1 fields of their messages if these have other names."""

TRANSFORMS = {
    "scale": "scale",
    "meanfile": "mean_file",
    "cropsize": "crop_size",
    "mirror": "mirror",
}
"""V0 field of any layer -> field of ``transform_param``."""


def _moves() -> dict[str, dict[str, str]]:
    moves = {"hdf5_output_param": {"hdf5_output": "hdf5_output_param"}}
    for old, new in TRANSFORMS.items():
        moves[old] = dict.fromkeys([*V0_TYPES, "padding"], f"transform_param.{new}")
    for types, names in FIELDS.items():
        for kind, name in product(types.split(), names.split()):
            old, _, new = name.partition("=")
            message = f"{Old.LayerType.Name(V0_TYPES[kind]).lower()}_param"
            moves.setdefault(old, {})[kind] = f"{message}.{new or old}"
    return moves


MOVES = _moves()  # V0 field -> layer type -> V1 field; other types cannot have the field


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
            if value not in V0_TYPES:
                near = suggestion(value, V0_TYPES)
                message = f"{_label(layer)}: the V0 format has no type {value!r}{near}"
                raise PrototxtError(message, code=ErrorCode.UNKNOWN, field="type", got=value)
            layer.type = V0_TYPES[value]
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


TYPES = """
    AbsVal Accuracy AnnotatedData ArgMax Axpy BatchNorm BatchReindex Bias BN BNLL BoxAnnotatorOHEM
    BoxGroupOutput CenterLoss Clip Concat ContrastiveLoss Convolution ConvolutionDepthwise Crop Data
    DecodeBBox Deconvolution DenseImageData DepthwiseConvolution DetectionEvaluate DetectionOutput
    Dropout DummyData Eltwise ELU Embed EuclideanLoss Exp Filter Flatten FocalLoss GELU HardSwish
    HDF5Data HDF5Output HingeLoss Im2col ImageData ImageSegData InfogainLoss InnerProduct Input
    Interp Log LRN LSTM LSTMUnit MemoryData MultiBoxLoss MultinomialLogisticLoss MVN NdConvolution
    NdPooling Normalize Parameter Permute Pooling Power PReLU PriorBox Proposal PSROIPooling Python
    Reduction ReLU ReLU6 Reorg Reshape RNN ROIAlign ROIPooling Scale SegAccuracy ShuffleChannel
    Sigmoid SigmoidCrossEntropyLoss Silence Slice SmoothL1Loss SmoothL1LossOHEM Softmax
    SoftmaxWithLossOHEM Split SPP Squeeze Swish TanH Threshold Tile TripletLoss Upsample WindowData
    YoloDetectionOutput Yolov3DetectionOutput
"""
LETTERS = {name.replace("_", ""): number for name, number in Old.LayerType.items()}
V1_TYPES = {LETTERS[name.upper()]: name for name in TYPES.split()} | {
    Old.NONE: "",
    Old.SOFTMAX_LOSS: "SoftmaxWithLoss",
    Old.CONVOLUTION3D: "Convolution",  # C3D
    Old.POOLING3D: "Pooling",  # C3D
}
"""V1 type -> type: the same letters, with four exceptions.

Types of forks, and types that only the current format has, are included.
"""

# Per-parameter fields of V1, and the ParamSpec fields that replaced them.
SPECS = {
    "param": "name",
    "blob_share_mode": "share_mode",
    "blobs_lr": "lr_mult",
    "weight_decay": "decay_mult",
}


def upgrade_v1(net: NetParameter) -> list[str]:
    """Replace ``layers`` by ``layer``, in place, or refuse a net that has both."""
    if not net.layers:
        return []
    if net.layer:
        got = f"{len(net.layers)} 'layers' entries (V1 format) beside {len(net.layer)} of 'layer'"
        message = f"got {got}, expected one kind; write all as 'layer', with types in quotes"
        raise PrototxtError(message, code=ErrorCode.CONFLICT, field="layers")
    notes = [f"{len(net.layers)} V1 layers (layers {{ type: CONVOLUTION }}) were upgraded"]
    for old in net.layers:
        _upgrade_v1_layer(old, net.layer.add())
    crops = [i for i, old in enumerate(net.layers) if old.type == V1LayerParameter.CROP]
    net.ClearField("layers")
    return notes + [note for i in crops for note in _align(net, i)]


def _upgrade_v1_layer(old: V1LayerParameter, new: LayerParameter) -> None:
    for field, value in old.ListFields():
        if field.name == "type":
            new.type = V1_TYPES[value]
        elif field.name in SPECS:  # parameter i has value i
            for i, one in enumerate(value):
                spec = new.param[i] if i < len(new.param) else new.param.add()
                setattr(spec, SPECS[field.name], one)
        elif isinstance(value, str):
            setattr(new, field.name, value)
        else:  # both formats share these messages and field names
            getattr(new, field.name).MergeFrom(value)


def _align(net: NetParameter, index: int) -> list[str]:
    """Set the offset of a CROP layer without one, as FCN's first release computes it."""
    crop = net.layer[index]
    if crop.HasField("crop_param") or len(crop.bottom) != 2:
        return []
    offset = _crop_offset(net, index)
    if offset is None:
        note = f"layer {crop.name!r}: the bottoms of CROP have no common coordinates, offset is 0"
        return [Problem(note)]
    if any(offset):
        crop.crop_param.offset.extend(offset)
    return [f"layer {crop.name!r}: CROP aligns its bottoms, offset {offset[0]}, {offset[1]}"]


Map = tuple[Fraction, Fraction]  # scale and shift along one axis

SIDES = ("h", "w")


def _crop_offset(net: NetParameter, index: int) -> list[int] | None:
    """Return where the second bottom of a Crop layer begins on the first: row and column.

    A convolution or pooling maps a pixel ``x`` of its top to ``scale * x + shift`` of its bottom.
    The bottoms are aligned through their nearest common ancestor along first bottoms. None without
    such an ancestor, if the scales differ, or if an offset is negative or not a whole number.
    """
    maps = dict(_ancestors(net, index, 0))
    for blob, reference in _ancestors(net, index, 1):
        if blob not in maps:
            continue
        offsets = []
        for (scale, shift), (other, start) in zip(maps[blob], reference, strict=True):
            offset = (start - shift) / scale
            if scale != other or offset < 0 or offset.denominator > 1:
                return None
            offsets.append(int(offset))
        return offsets
    return None


def _ancestors(
    net: NetParameter, index: int, bottom: int
) -> Iterator[tuple[tuple[int, str], list[Map]]]:
    """Yield a bottom and its ancestors, nearest first, and the maps of its pixels to theirs.

    A blob is named by the layer that writes it, -1 for an input, and by its name.
    """
    blob, maps = net.layer[index].bottom[bottom], [(Fraction(1), Fraction(0))] * len(SIDES)
    while True:
        index = next((i for i in reversed(range(index)) if blob in net.layer[i].top), -1)
        yield (index, blob), maps
        if index < 0 or not net.layer[index].bottom:
            return
        layer, axes = net.layer[index], range(len(SIDES))
        steps = [step for axis in axes if (step := _map_of(layer, axis)) is not None]
        if len(steps) < len(SIDES):
            return
        maps = [
            (by * scale, by * shift + start)
            for (by, start), (scale, shift) in zip(steps, maps, strict=True)
        ]
        blob = net.layer[index].bottom[0]


def _map_of(layer: LayerParameter, axis: int) -> Map | None:
    """Return the map from a layer's top to its first bottom; None if unknown."""
    if layer.type == "Crop":
        offsets = layer.crop_param.offset
        return Fraction(1), Fraction(offsets[axis % len(offsets)] if offsets else 0)
    p: ConvolutionParameter | PoolingParameter
    if layer.type in {"Convolution", "Deconvolution"}:
        p = layer.convolution_param
        dilation = _side(p, "dilation", axis, 1)
        extent = (_side(p, "kernel_size", axis, 0) - 1) * dilation + 1
    elif layer.type == "Pooling":
        p = layer.pooling_param
        extent = _side(p, "kernel_size", axis, 0)
    else:
        return Fraction(1), Fraction(0)
    stride, pad = _side(p, "stride", axis, 1), _side(p, "pad", axis, 0)
    if extent <= 0 or stride <= 0:
        return None
    start = Fraction(extent - 1, 2) - pad
    if layer.type == "Deconvolution":
        return Fraction(1, stride), -start / stride
    return Fraction(stride), start


def _side(p: ConvolutionParameter | PoolingParameter, name: str, axis: int, default: int) -> int:
    """Return a window's value along one axis."""
    side = f"{name.removesuffix('_size')}_{SIDES[axis]}"
    if p.HasField(side):
        return int(getattr(p, side))
    values = getattr(p, name)
    if isinstance(values, int):
        return values
    return int(values[axis % len(values)]) if values else default
