"""What a net is reduced to before it is exported: what its users need, and no training."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demitasse.errors import ConfigError, NetError
from demitasse.export.data_shapes import shapes_of_data
from demitasse.graph import filter_net, listed
from demitasse.layers.facts import facts_of
from demitasse.net import Net
from demitasse.net.given import read_source
from demitasse.proto import BlobShape, LayerParameter, NetParameter, Phase

__all__ = ["KEPT", "Reason", "Reduced", "Shapes", "comes_in", "is_left_out", "reduce_net"]

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
        shapes: Shapes of inputs, in place of those that the net has for them.
        level: Level of the net's state.
        stages: Stages added to the file's state.

    Raises:
        NetError: Some layers cannot be exported; all are named. Or there is no such blob.
        ConfigError: Nobody knows the shape of an input, or there is no such input.
    """
    message, base_dir, origins = _read(source, level, stages)
    result = Reduced(message, base_dir=base_dir)
    layers = [(layer, origin) for layer, origin in zip(message.layer, origins, strict=True)]
    _need_blobs(message, outputs)
    kept = _leading_to(layers, outputs) if only else _without_training(layers, outputs, result)
    faults = [
        f"layer {layer.name!r} ({layer.type}): {why}{f'  [{origin}]' if origin else ''}"
        for layer, origin in kept
        if not comes_in(layer) and layer.type not in KEPT
        if (why := reason(layer))
    ]
    if faults:
        message_text = (
            f"{len(faults)} layers cannot be exported:\n{listed(faults)}\n"
            "To export what comes before them, name its blobs and ask for them only"
        )
        raise NetError(message_text)
    given = dict(shapes or {})
    chosen = _with_inputs([layer for layer, _ in kept], result, given, weights, keep=outputs)
    if given:
        message_text = f"there is no input {', '.join(map(repr, given))} to have another shape"
        raise ConfigError(message_text)
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
        one.ClearField("phase")
        if one.type == "Input":
            del one.input_param.shape[:]
            one.input_param.shape.extend(BlobShape(dim=net.blobs[top].shape) for top in one.top)
    return message


def _need_blobs(message: NetParameter, names: Iterable[str]) -> None:
    known = {top for layer in message.layer for top in layer.top}
    missing = [name for name in names if name not in known]
    if missing:
        text = f"the net has no blob {', '.join(map(repr, missing))} that could be an output"
        raise NetError(text)


Located = list[tuple[LayerParameter, str]]


def _leading_to(layers: Located, outputs: Collection[str]) -> Located:
    """Return the layers that these blobs need.

    Raises:
        ConfigError: No blob is named.
    """
    if not outputs:
        message = "only what leads to some outputs is to be exported, but no output is named"
        raise ConfigError(message)
    wanted, kept = set(outputs), []
    for layer, origin in reversed(layers):
        if wanted.intersection(layer.top):
            kept.append((layer, origin))
            wanted.update(layer.bottom)
    return kept[::-1]


def is_left_out(kind: str) -> bool:
    """Whether layers of a type are left out where no layer reads what they compute."""
    return bool(facts_of(kind).better) or kind in FOR_TRAINING


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
            result.notes.append(f"left out: layer {layer.name!r} ({layer.type})")


def comes_in(layer: LayerParameter) -> bool:
    """Whether a layer's tops come from outside."""
    return facts_of(layer.type).gradient == "source" and layer.type != "Parameter"


def _with_inputs(
    layers: Sequence[LayerParameter],
    result: Reduced,
    shapes: dict[str, Sequence[int]],
    weights: Sequence[object],
    *,
    keep: Collection[str],
) -> list[LayerParameter]:
    """Return the layers with an Input layer in place of each that reads data.

    What only such layers of the data read that are silenced is left out, as labels are. Shapes that
    were used are taken out of ``shapes``.
    """
    read = {blob for one in layers if one.type != "Silence" for blob in one.bottom} | set(keep)
    gone: set[str] = set()
    found: list[LayerParameter] = []
    for layer in layers:
        if not comes_in(layer):
            one = LayerParameter()
            one.CopyFrom(layer)
            if layer.type == "Silence":
                one.bottom[:] = [name for name in layer.bottom if name not in gone]
                if not one.bottom:
                    continue
            found.append(one)
            continue
        tops = [top for top in layer.top if top in read or layer.type == "Input"]
        gone.update(top for top in layer.top if top not in tops)
        if layer.type == "Input":
            known = {top: _declared(layer, i) for i, top in enumerate(layer.top)}
        else:
            if tops:
                result.notes.append(
                    f"layer {layer.name!r} ({layer.type}) reads data, which the file takes as "
                    f"input: {' and '.join(map(repr, tops))}"
                )
            missing = [top for top in tops if top not in shapes]
            known = (
                shapes_of_data(layer, missing, layers, weights, result.base_dir) if missing else {}
            )
        for top in tops:
            one = LayerParameter(name=top if len(tops) > 1 else layer.name, type="Input", top=[top])
            shape = shapes.pop(top) if top in shapes else known[top]
            one.input_param.shape.append(BlobShape(dim=shape))
            found.append(one)
    return found


def _declared(layer: LayerParameter, number: int) -> list[int]:
    """Return the shape of a top of an Input layer."""
    shapes = layer.input_param.shape
    if not shapes:
        return []
    return list(shapes[min(number, len(shapes) - 1)].dim)
