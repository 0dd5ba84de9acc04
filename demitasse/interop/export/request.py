"""What a net is reduced to before it is exported: what its users need, and no training."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.graph import filter_net, listed
from demitasse.interop.export.inputs import comes_in, input_layer, with_inputs
from demitasse.interop.export.known_python import as_known
from demitasse.io.proto import BlobShape, LayerParameter, NetParameter, Phase
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net
from demitasse.net.build import read_source

__all__ = ["KEPT", "Reason", "Reduced", "Shapes", "is_left_out", "reduce_net"]

Reason = Callable[[LayerParameter], str]
"""Says why a layer cannot be exported; "" where it can."""

Shapes = Mapping[str, Sequence[int]]

FOR_TRAINING = {"BoxAnnotatorOHEM", "HDF5Output"}
"""Types of layers that are for training or for tests, besides losses and metrics."""

KEPT = {"Input", "Silence", "Split"}
"""Types of layers that no format needs to know."""


@dataclass
class Reduced:
    """A net as it is exported.

    Attributes:
        message: Its message, of phase TEST; all that comes from outside comes by Input layers.
        notes: What was left out or assumed, in words.
        base_dir: Folder of its file.
    """

    message: NetParameter
    notes: list[str] = field(default_factory=list)
    base_dir: Path | None = None


def reduce_net(
    source: str | os.PathLike[str] | NetParameter | Net,
    reason: Reason,
    *,
    weights: Sequence[object] = (),
    outputs: Collection[str] = (),
    only: bool = False,
    shapes: Shapes | None = None,
    level: int = 0,
    stages: Sequence[str] = (),
) -> Reduced:
    """Read a net and reduce it.

    Args:
        source: A prototxt file, a message or a net.
        reason: Why a layer cannot be exported.
        weights: Files of weights, which may tell how many channels images have.
        outputs: Names of blobs that are wanted besides what the net ends with.
        only: Whether nothing else is wanted, and layers that do not lead there are left out.
        shapes: Shapes of inputs, in place of those that the net has for them; and of other blobs
            that are to come from outside, in place of the layers that compute them.
        level: Level of the net's state.
        stages: Stages added to the file's state.

    Raises:
        NetError: Some layers cannot be exported; all are named. Or there is no such blob.
        ConfigError: Nobody knows the shape of an input, or one is given for no blob.
    """
    message, base_dir, origins = _read(source, level, stages)
    result, given = Reduced(message, base_dir=base_dir), dict(shapes or {})
    layers = _with_known(zip(message.layer, origins, strict=True), result)
    layers = _cut(layers, given, result)
    _need_blobs(layers, outputs)
    kept = _leading_to(layers, outputs) if only else _without_training(layers, outputs, result)
    faults = [
        (
            layer.name,
            f"layer {layer.name!r} ({layer.type}): {why}{f'  [{origin}]' if origin else ''}",
        )
        for layer, origin in kept
        if not comes_in(layer) and layer.type not in KEPT
        if (why := reason(layer))
    ]
    if faults:
        names, texts = zip(*faults, strict=True)
        text = (
            f"{len(faults)} layer{'s' * (len(faults) > 1)} cannot be exported:\n{listed(texts)}\n"
            "To export what comes before them, name its blobs with --outputs and ask for --only "
            "those; to leave them out, say with --shape BLOB=SIZES what they would compute"
        )
        raise NetError(text, code=ErrorCode.UNSUPPORTED, layers=list(names))
    chosen = with_inputs(
        [layer for layer, _ in kept], given, weights, base_dir, result.notes, outputs
    )
    if given:
        text = f"nothing that is exported reads {', '.join(map(repr, given))}"
        raise ConfigError(text, code=ErrorCode.UNKNOWN, field="shapes", got=list(given))
    made = NetParameter()
    made.CopyFrom(message)
    del made.layer[:]
    made.layer.extend(chosen)
    result.message = made
    return result


def _read(
    source: str | os.PathLike[str] | NetParameter | Net, level: int, stages: Sequence[str]
) -> tuple[NetParameter, Path | None, list[str]]:
    """Return the net's message of phase TEST, its folder, and where each layer is written."""
    if isinstance(source, Net):
        message = _message_of(source)
        return message, source.base_dir, [""] * len(message.layer)
    read = read_source(source, lenient=False)
    read.message.state.phase = Phase.Value("TEST")
    read.message.state.level = level
    read.message.state.stage.extend(stages)
    filtered, numbers = filter_net(read.message)
    folder = Path(read.source).parent if read.source else None
    return filtered, folder, [read.origin(number) for number in numbers]


def _message_of(net: Net) -> NetParameter:
    """Return the message of a net, without the splits it was given, and with its inputs' shapes."""
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


Located = list[tuple[LayerParameter, str]]


def _with_known(layers: Iterable[tuple[LayerParameter, str]], result: Reduced) -> Located:
    """Return the layers, those Python layers that are known as layers of the catalogue."""
    found: Located = []
    for layer, origin in layers:
        known = as_known(layer)
        found.append((known or layer, origin))
        if known is not None:
            result.notes.append(
                f"layer {layer.name!r} is {layer.python_param.layer} of "
                f"{layer.python_param.module}, with the settings for tests that Faster R-CNN has"
            )
    return found


def _cut(layers: Located, shapes: Shapes, result: Reduced) -> Located:
    """Let blobs that have a shape given come from outside, and leave out what computes them.

    Raises:
        ConfigError: There is no such blob.
    """
    outside = {top for layer, _ in layers if comes_in(layer) for top in layer.top}
    names = [name for name in shapes if name not in outside]
    known = {blob for layer, _ in layers for blob in (*layer.top, *layer.bottom)}
    missing = [name for name in names if name not in known]
    if missing:
        text = f"there is no blob {', '.join(map(repr, missing))} to have a shape"
        raise ConfigError(text, code=ErrorCode.UNKNOWN, field="shapes", got=missing)
    gone = [layer for layer, _ in layers if not set(names).isdisjoint(layer.top)]
    result.notes += [
        f"left out: layer {layer.name!r} ({layer.type}), whose top is an input" for layer in gone
    ]
    inputs: Located = [(input_layer(name, name, shapes[name]), "") for name in names]
    return [*inputs, *(one for one in layers if one[0] not in gone)]


def _need_blobs(layers: Located, names: Iterable[str]) -> None:
    known = {top for layer, _ in layers for top in layer.top}
    missing = [name for name in names if name not in known]
    if missing:
        text = f"the net has no blob {', '.join(map(repr, missing))} that could be an output"
        raise NetError(text, code=ErrorCode.UNKNOWN, field="outputs", got=missing)


def _leading_to(layers: Located, outputs: Collection[str]) -> Located:
    """Return the layers that these blobs need.

    Raises:
        ConfigError: No blob is named.
    """
    if not outputs:
        message = "only what leads to some outputs is to be exported, but no output is named"
        raise ConfigError(message, code=ErrorCode.MISSING, field="outputs")
    wanted, kept = set(outputs), []
    for layer, origin in reversed(layers):
        if wanted.intersection(layer.top):
            kept.append((layer, origin))
            wanted.update(layer.bottom)
    return kept[::-1]


def is_left_out(kind: str) -> bool:
    """Whether layers of a type are left out where no layer reads what they compute."""
    return bool(layer_metadata(kind).better) or kind in FOR_TRAINING


def _without_training(layers: Located, outputs: Collection[str], result: Reduced) -> Located:
    """Leave out losses and the like that no other layer reads."""
    kept = layers
    while True:
        read = {blob for layer, _ in kept for blob in layer.bottom} | set(outputs)
        ends = [
            one for one in kept if is_left_out(one[0].type) and not read.intersection(one[0].top)
        ]
        if not ends:
            return kept
        kept = [one for one in kept if one not in ends]
        for layer, _ in ends:
            read_here = ", ".join(map(repr, layer.bottom))
            result.notes.append(
                f"left out: layer {layer.name!r} ({layer.type}), which reads {read_here}"
            )
