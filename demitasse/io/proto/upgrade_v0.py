"""V0 to V1: the flat ``layers { layer { ... } }`` of 2013.

Two steps: padding layers are folded into the convolution or pooling that reads them, then the
fields of each flat layer move to the message that their type has in V1.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeV0PaddingLayers,
UpgradeV0LayerParameter).
"""

from demitasse.core.text import suggestion
from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto.caffe_pb2 import NetParameter, V1LayerParameter
from demitasse.io.proto.upgrade_notes import Lines, Problem
from demitasse.io.proto.upgrade_v0_fields import COMMON, MOVES, TYPES

__all__ = ["upgrade_v0"]


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
            notes += _upgrade_layer(layer)
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
                message = f"{_called(layer)} reads {blob!r}, which no earlier layer makes"
                raise PrototxtError(message, code=ErrorCode.UNKNOWN, blob=blob)
            source = maker[blob]
            if source in padding and i not in padding:
                _take_pad(layer, j, net.layers[source])
        maker.update(dict.fromkeys(layer.top, i))
    return padding


def _take_pad(layer: V1LayerParameter, bottom: int, padding: V1LayerParameter) -> None:
    if layer.layer.type not in {"conv", "pool"}:
        message = (
            f"{_called(layer)} reads the padding layer {padding.layer.name!r}; "
            "only 'conv' and 'pool' layers take padding"
        )
        raise PrototxtError(message, code=ErrorCode.UNSUPPORTED, field="pad")
    for one in (layer, padding):
        if len(one.bottom) != 1:
            message = f"{_called(one)} has {len(one.bottom)} bottoms, expected one"
            raise PrototxtError(message, code=ErrorCode.COUNT_MISMATCH, field="bottom")
    layer.layer.pad = padding.layer.pad
    layer.bottom[bottom] = padding.bottom[0]


def _upgrade_layer(layer: V1LayerParameter) -> list[str]:
    """Upgrade one entry to V1, in place; parameters are copied in blocks."""
    old = layer.layer
    notes: list[str] = []
    for field, _ in layer.ListFields():
        if field.name not in {"bottom", "top", "layer"}:
            notes.append(Problem(f"{_called(layer)}: {field.name} beside 'layer' was dropped"))
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
            notes.append(Problem(f"{_called(layer)}: a {old.type!r} layer has no {field.name}"))
        else:
            _move(layer, place, value)
    layer.ClearField("layer")
    return notes


def _type(layer: V1LayerParameter) -> int:
    name = layer.layer.type
    if name not in TYPES:
        message = f"{_called(layer)}: the V0 format has no type {name!r}{suggestion(name, TYPES)}"
        raise PrototxtError(message, code=ErrorCode.UNKNOWN, field="type", got=name)
    return TYPES[name]


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


def _called(layer: V1LayerParameter) -> str:
    name = layer.layer.name or layer.name
    return f"layer {name!r}" if name else "a layer without a name"
