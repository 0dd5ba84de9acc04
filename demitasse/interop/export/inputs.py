"""What a net takes from outside: Input layers in place of all that reads data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from demitasse.interop.export.data_shapes import shapes_of_data
from demitasse.io.proto import BlobShape, LayerParameter
from demitasse.layers.metadata import layer_metadata

__all__ = ["comes_in", "input_layer", "with_inputs"]


def comes_in(layer: LayerParameter) -> bool:
    """Whether a layer's tops come from outside."""
    if layer.type == "Python":
        return not layer.bottom
    return layer_metadata(layer.type).gradient == "source" and layer.type != "Parameter"


def input_layer(name: str, blob: str, shape: Sequence[int]) -> LayerParameter:
    """Return an Input layer of one blob."""
    layer = LayerParameter(name=name, type="Input", top=[blob])
    layer.input_param.shape.append(BlobShape(dim=shape))
    return layer


def with_inputs(
    layers: Sequence[LayerParameter],
    shapes: dict[str, Sequence[int]],
    weights: Sequence[object],
    base_dir: Path | None,
    notes: list[str],
    keep: Collection[str],
) -> list[LayerParameter]:
    """Return the layers with an Input layer in place of each that reads data.

    What such a layer gives that no other reads, as labels where losses are gone, is left out.

    Args:
        layers: The layers.
        shapes: Shapes of inputs, in place of their own; those that were used are taken out.
        weights: Files of weights, which may tell how many channels images have.
        base_dir: Folder of the net's file.
        notes: Gets a line for each layer that is replaced.
        keep: Blobs that are wanted though nobody reads them.

    Raises:
        ConfigError: Nobody knows the shape of an input.
    """
    read = {blob for one in layers if one.type != "Silence" for blob in one.bottom} | set(keep)
    found: list[LayerParameter] = []
    for layer in layers:
        if not comes_in(layer):
            found.append(layer)
            continue
        is_input = layer.type == "Input"
        tops = [top for top in layer.top if top in read or is_input]
        unknown = [top for top in tops if top not in shapes]
        if is_input:
            known = {top: _declared(layer, i) for i, top in enumerate(layer.top)}
        else:
            known = shapes_of_data(layer, unknown, layers, weights, base_dir) if unknown else {}
            notes += _told(layer, tops)
        for top in tops:
            name = layer.name if len(tops) == 1 else top
            found.append(input_layer(name, top, shapes.pop(top) if top in shapes else known[top]))
    return _without_silenced(found)


def _told(layer: LayerParameter, tops: Iterable[str]) -> list[str]:
    """Return what is to be said of a layer that reads data."""
    names = " and ".join(map(repr, tops))
    if not names:
        return []
    text = f"layer {layer.name!r} ({layer.type}) reads data, which the file takes as input: {names}"
    p = layer.transform_param
    if p.mean_value or p.mean_file or p.scale != 1:
        text += "; the caller subtracts the mean and scales, unless --mean and --scale do"
    return [text]


def _declared(layer: LayerParameter, number: int) -> list[int]:
    """Return the shape of a top of an Input layer."""
    shapes = layer.input_param.shape
    return list(shapes[min(number, len(shapes) - 1)].dim) if shapes else []


def _without_silenced(layers: Sequence[LayerParameter]) -> list[LayerParameter]:
    """Return the layers; Silence layers silence only what there still is."""
    there = {top for layer in layers for top in layer.top}
    found = []
    for layer in layers:
        bottoms = [name for name in layer.bottom if name in there]
        if layer.type == "Silence" and len(bottoms) < len(layer.bottom):
            if not bottoms:
                continue
            layer = LayerParameter(name=layer.name, type="Silence", bottom=bottoms)  # noqa: PLW2901
        found.append(layer)
    return found
