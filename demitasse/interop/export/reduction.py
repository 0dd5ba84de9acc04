"""Reduction of a net to the layers that are exported: inputs, no training, no data layers."""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError
from demitasse.graph import filter_phase, listed
from demitasse.io.proto import BlobShape, LayerParameter, NetParameter, Phase, ReadNet
from demitasse.io.weights.formats import read_weights
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net
from demitasse.net.build import read_source

Reason = Callable[[LayerParameter], str]
"""Function that returns why a layer cannot be exported, or ""."""

Shapes = Mapping[str, Sequence[int]]
Located = list[tuple[LayerParameter, str]]
"""Layers, each with its file and line."""

TRAINING_ONLY = {"BoxAnnotatorOHEM", "HDF5Output"}
"""Layer types for training or tests, besides losses and metrics."""

IGNORED = {"Input", "Silence", "Split"}
"""Layer types that need no converter."""

BATCH_FIELDS = ("data_param", "image_data_param", "dense_image_data_param", "window_data_param",
                "hdf5_data_param", "memory_data_param")  # fmt: skip
"""Messages with a ``batch_size``."""

PYTHON_PROPOSAL = ("rpn.proposal_layer", "ProposalLayer")
"""Module and class of the proposal layer of Faster R-CNN (rbgirshick/py-faster-rcnn) and R-FCN."""


@dataclass
class ReducedNet:
    """The message of phase TEST with an Input layer for each input, and the file's folder.

    ``notes`` are removed layers and assumptions, in words.
    """

    message: NetParameter
    notes: list[str]
    base_dir: Path | None


def reduce_net(
    source: str | os.PathLike[str] | NetParameter | ReadNet | Net,
    reason: Reason,
    *,
    weights: Sequence[object] = (),
    outputs: Collection[str] = (),
    only: bool = False,
    shapes: Shapes | None = None,
    level: int = 0,
    stages: Sequence[str] = (),
) -> ReducedNet:
    """Read a net and reduce it.

    Args:
        source: A prototxt file, one that was read, a message or a net.
        reason: Function that returns why a layer cannot be exported.
        weights: Files of weights, read for the number of channels of images.
        outputs: Names of output blobs, in addition to the net's outputs.
        only: Keep the layers alone that ``outputs`` need.
        shapes: Shapes of inputs, in place of declared ones; a shape of another blob turns the blob
            into an input and removes the layers that compute it.
        level: Level of the net's state.
        stages: Stages added to the file's state.

    Raises:
        NetError: Some layers cannot be exported (names all), or an output does not exist.
        ConfigError: The shape of an input is unknown, or a shape names no blob.
    """
    message, base_dir, origins = _read(source, level, stages)
    given, notes = dict(shapes or {}), list[str]()
    layers = [_known(layer, notes) for layer in message.layer]
    located = _cut(list(zip(layers, origins, strict=True)), given, notes)
    known = {top for layer, _ in located for top in layer.top}
    missing = [name for name in outputs if name not in known]
    if missing:
        text = f"the net has no blob {', '.join(map(repr, missing))}; --outputs takes tops"
        raise NetError(text, code=ErrorCode.UNKNOWN, field="outputs", got=missing)
    kept = _needed_for(located, outputs) if only else _remove_training(located, outputs, notes)
    faults = [
        (layer.name, f"layer {layer.name!r} ({layer.type}): {why}{origin and f'  [{origin}]'}")
        for layer, origin in kept
        if not is_source(layer) and layer.type not in IGNORED and (why := reason(layer))
    ]
    if faults:
        names, texts = zip(*faults, strict=True)
        text = (
            f"{len(faults)} layer{'s' * (len(faults) > 1)} cannot be exported:\n{listed(texts)}\n"
            "Export the layers before them with --outputs BLOB --only, or give the shape of their "
            "tops with --shape BLOB=SIZES, which turns these blobs into inputs"
        )
        raise NetError(text, code=ErrorCode.UNSUPPORTED, layers=list(names))
    chosen = replace_sources([layer for layer, _ in kept], given, weights, base_dir, notes, outputs)
    if given:
        text = f"got a shape of {', '.join(map(repr, given))}, which no exported layer reads"
        raise ConfigError(text, code=ErrorCode.UNKNOWN, field="shapes", got=list(given))
    reduced = NetParameter()
    reduced.CopyFrom(message)
    del reduced.layer[:]
    reduced.layer.extend(chosen)
    return ReducedNet(reduced, notes, base_dir)


def _read(
    source: str | os.PathLike[str] | NetParameter | ReadNet | Net, level: int, stages: Sequence[str]
) -> tuple[NetParameter, Path | None, list[str]]:
    """Return the message of phase TEST, the folder, and file and line of each layer."""
    if isinstance(source, Net):
        message = _message_of(source)
        return message, source.base_dir, [""] * len(message.layer)
    if not isinstance(source, ReadNet):
        source = read_source(source, ignore_unknown_fields=False)
    filtered, numbers = filter_phase(source.message, "TEST", level, stages)
    folder = Path(source.source).parent if source.source else None
    return filtered, folder, [source.origin(number) for number in numbers]


def _message_of(net: Net) -> NetParameter:
    """Return the message of a net, without inserted splits and with the inputs' present shapes."""
    message = NetParameter()
    message.CopyFrom(net.structure.message)
    message.state.phase = Phase.Value("TEST")
    del message.layer[:]
    copies: dict[str, str] = {}
    for layer in net.structure.message.layer:
        bottoms = [copies.get(name, name) for name in layer.bottom]
        if layer.type == "Split" and layer.name.endswith("_split"):
            copies |= dict.fromkeys(layer.top, bottoms[0])
            continue
        one = message.layer.add()
        one.CopyFrom(layer)
        one.bottom[:] = bottoms
        for name in ("phase", "include", "exclude"):
            one.ClearField(name)
        if one.type == "Input":
            del one.input_param.shape[:]
            one.input_param.shape.extend(BlobShape(dim=net.blobs[top].shape) for top in one.top)
    return message


def _cut(layers: Located, shapes: Shapes, notes: list[str]) -> Located:
    """Turn blobs with a given shape into inputs, and remove the layers that compute them."""
    outside = {top for layer, _ in layers if is_source(layer) for top in layer.top}
    names = [name for name in shapes if name not in outside]
    known = {blob for layer, _ in layers for blob in (*layer.top, *layer.bottom)}
    missing = [name for name in names if name not in known]
    if missing:
        text = f"got a shape of {', '.join(map(repr, missing))}, which is not a blob of the net"
        raise ConfigError(text, code=ErrorCode.UNKNOWN, field="shapes", got=missing)
    removed = [layer for layer, _ in layers if not set(names).isdisjoint(layer.top)]
    notes += [
        f"left out: layer {layer.name!r} ({layer.type}), whose top is an input" for layer in removed
    ]
    inputs: Located = [(input_layer(name, name, shapes[name]), "") for name in names]
    return [*inputs, *(one for one in layers if one[0] not in removed)]


def _needed_for(layers: Located, outputs: Collection[str]) -> Located:
    """Return the layers that these blobs need."""
    if not outputs:
        message = "--only needs --outputs"
        raise ConfigError(message, code=ErrorCode.MISSING, field="outputs")
    wanted, kept = set(outputs), []
    for layer, origin in reversed(layers):
        if wanted.intersection(layer.top):
            kept.append((layer, origin))
            wanted.update(layer.bottom)
    return kept[::-1]


def is_training_only(kind: str) -> bool:
    """Return True for losses, metrics and other layer types that deployed nets do not need."""
    return bool(layer_metadata(kind).better) or kind in TRAINING_ONLY


def _remove_training(layers: Located, outputs: Collection[str], notes: list[str]) -> Located:
    """Remove training-only layers whose tops no other layer reads."""
    kept = layers
    while True:
        read = {blob for layer, _ in kept for blob in layer.bottom} | set(outputs)
        ends = [one for one in kept if is_training_only(one[0].type) and not read & {*one[0].top}]
        if not ends:
            return kept
        kept = [one for one in kept if one not in ends]
        notes += [
            f"left out: layer {layer.name!r} ({layer.type}), which reads "
            + ", ".join(map(repr, layer.bottom))
            for layer, _ in ends
        ]


# -- inputs in place of data layers --------------------------------------------------------------


def is_source(layer: LayerParameter) -> bool:
    """Return True if the tops of a layer are inputs of an exported net."""
    if layer.type == "Python":
        return not layer.bottom
    return layer_metadata(layer.type).gradient == "source" and layer.type != "Parameter"


def input_layer(name: str, blob: str, shape: Sequence[int]) -> LayerParameter:
    """Return an Input layer of one blob."""
    layer = LayerParameter(name=name, type="Input", top=[blob])
    layer.input_param.shape.append(BlobShape(dim=shape))
    return layer


def replace_sources(
    layers: Sequence[LayerParameter],
    shapes: dict[str, Sequence[int]],
    weights: Sequence[object],
    base_dir: Path | None,
    notes: list[str],
    keep: Collection[str],
) -> list[LayerParameter]:
    """Return the layers with Input layers in place of data layers.

    Tops of data layers that no exported layer reads (e.g. labels) are removed, except those to
    ``keep``. Used entries of ``shapes`` are removed, and each replaced layer gets a note.
    """
    read = {blob for one in layers if one.type != "Silence" for blob in one.bottom} | set(keep)
    found: list[LayerParameter] = []
    for layer in layers:
        if not is_source(layer):
            found.append(layer)
            continue
        is_input = layer.type == "Input"
        tops = [top for top in layer.top if top in read or is_input]
        unknown = [top for top in tops if top not in shapes]
        known: dict[str, list[int]] = {}
        if is_input:
            declared = [list(shape.dim) for shape in layer.input_param.shape] or [[]]
            last = len(declared) - 1
            known = {top: declared[min(i, last)] for i, top in enumerate(layer.top)}
        elif unknown:
            known = _source_shapes(layer, unknown, layers, weights, base_dir)
        if tops and not is_input:
            names = " and ".join(map(repr, tops))
            note = f"layer {layer.name!r} ({layer.type}) reads data, which the file takes as input"
            p = layer.transform_param
            advice = "; the caller subtracts the mean and scales, unless --mean and --scale do"
            transformed = p.mean_value or p.mean_file or p.scale != 1
            notes.append(f"{note}: {names}{advice if transformed else ''}")
        for top in tops:
            name = layer.name if len(tops) == 1 else top
            found.append(input_layer(name, top, shapes.pop(top) if top in shapes else known[top]))
    return _without_silenced(found)


def _without_silenced(layers: Sequence[LayerParameter]) -> list[LayerParameter]:
    """Return the layers; bottoms of Silence layers that no longer exist are removed."""
    existing = {top for layer in layers for top in layer.top}
    found = []
    for layer in layers:
        bottoms = [name for name in layer.bottom if name in existing]
        if layer.type != "Silence" or len(bottoms) == len(layer.bottom):
            found.append(layer)
        elif bottoms:
            found.append(LayerParameter(name=layer.name, type="Silence", bottom=bottoms))
    return found


def _source_shapes(
    layer: LayerParameter,
    tops: Sequence[str],
    layers: Sequence[LayerParameter],
    weights: Sequence[object],
    base_dir: Path | None,
) -> dict[str, list[int]]:
    """Return the shapes of tops of a data layer, from the data or else from the layer's fields."""
    alone = NetParameter()
    alone.layer.add().CopyFrom(layer)
    for name in ("include", "exclude", "phase"):  # the layer takes part in the net's state
        alone.layer[0].ClearField(name)
    try:
        if layer.type == "Python":
            message = "exports do not run Python layers"
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED)
        with Net(alone, "TEST", base_dir=base_dir) as net:
            return {top: list(net.blobs[top].shape) for top in tops}
    except (DemitasseError, OSError) as error:
        shape = _crop_shape(layer, layers, weights)
        if shape and list(tops) == list(layer.top[:1]):
            return {tops[0]: shape}
        message = (
            f"the shape of {' and '.join(map(repr, tops))} is unknown: layer {layer.name!r} "
            f"({layer.type}) cannot read its data ({error}); give the shape, e.g. "
            f"--shape {tops[0]}=1,3,224,224"
        )
        raise ConfigError(message, code=ErrorCode.MISSING, layer=layer.name, blob=tops[0]) from None


def _crop_shape(
    layer: LayerParameter, layers: Sequence[LayerParameter], weights: Sequence[object]
) -> list[int]:
    """Return the shape of a batch of cropped images; [] if the layer does not crop."""
    side = layer.transform_param.crop_size
    if layer.type == "WindowData":
        side = layer.window_data_param.crop_size or side
    if not side:
        return []
    batch = max(getattr(layer, name).batch_size for name in BATCH_FIELDS)
    channels = 1 if layer.transform_param.force_gray else 3
    first = next(
        (one for one in layers if one.type == "Convolution" and layer.top[0] in one.bottom), None
    )
    for source in weights:  # the channels that the first convolution has weights for
        if first is None or not isinstance(source, (str, os.PathLike)):
            continue
        stored = read_weights(source).get(first.name, {})
        if 0 in stored and stored[0].ndim == 4:
            channels = int(stored[0].shape[1]) * first.convolution_param.group
            break
    return [batch or 1, channels, side, side]


# -- known Python layers -------------------------------------------------------------------------


def _known(layer: LayerParameter, notes: list[str]) -> LayerParameter:
    """Return the layer, or the Proposal layer equal to Faster R-CNN's Python layer.

    The defaults of Proposal are Faster R-CNN's settings for tests: 6000 candidates, 300 regions, an
    IoU threshold of 0.7, and sides of at least 16 pixels.
    """
    p = layer.python_param
    if layer.type != "Python" or (p.module, p.layer) != PYTHON_PROPOSAL:
        return layer
    notes.append(
        f"layer {layer.name!r} is {p.layer} of {p.module}, with Faster R-CNN's settings for tests"
    )
    known = LayerParameter(
        name=layer.name, type="Proposal", bottom=layer.bottom[:3], top=layer.top[:2]
    )
    known.proposal_param.SetInParent()
    stride = re.search(r"feat_stride\W+(\d+)", p.param_str)
    if stride:
        known.proposal_param.feat_stride = int(stride[1])
    for name, target in (("scales", "scale"), ("ratios", "ratio")):
        values = re.search(rf"{name}\b[^\[(]*[\[(]([\d.,\s]+)[\])]", p.param_str)
        if values:
            numbers = [float(one) for one in values[1].split(",") if one.strip()]
            getattr(known.proposal_param, target).extend(numbers)
    return known


# -- unsupported layers --------------------------------------------------------------------------


@dataclass(frozen=True)
class SupportTable:
    """Layers that a format cannot express; callable as a ``Reason``.

    Attributes:
        known: Layer types with a converter.
        reasons: Layer type without a converter -> the reason.
        fields: Layer type -> the ``Reason`` of a layer's fields.
    """

    form: str
    known: Collection[str]
    reasons: Mapping[str, str]
    fields: Mapping[str, Reason]

    def __call__(self, param: LayerParameter) -> str:
        """Return why a layer cannot be exported; "" if it can."""
        if param.type in self.reasons:
            return self.reasons[param.type]
        if is_training_only(param.type):
            return "it serves training or tests, and another layer or --outputs needs its top"
        if param.type not in self.known:
            return f"no converter to {self.form} exists for this type"
        return self.fields[param.type](param) if param.type in self.fields else ""


def dropout_unsupported(param: LayerParameter) -> str:
    """Return why no format has a form for a Dropout, or ""."""
    p = param.dropout_param
    if p.sample_weights_test and p.dropout_ratio:
        return "dropout_param.sample_weights_test draws new random numbers in each run"
    return ""
