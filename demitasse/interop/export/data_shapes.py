"""The shapes of what layers read from data: from the data, else from their fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.io.proto import LayerParameter, NetParameter
from demitasse.io.weights.read import read_weights
from demitasse.net import Net

__all__ = ["shapes_of_data"]

BATCHES = ("data_param", "image_data_param", "dense_image_data_param", "window_data_param",
           "hdf5_data_param", "memory_data_param")  # fmt: skip


def shapes_of_data(
    layer: LayerParameter,
    tops: Sequence[str],
    layers: Sequence[LayerParameter],
    weights: Sequence[object],
    base_dir: Path | None,
) -> dict[str, list[int]]:
    """Return the shapes of some tops of a layer that reads data.

    Args:
        layer: The layer.
        tops: Names of the tops.
        layers: All layers of the net.
        weights: Files of weights.
        base_dir: Folder of the net's file.

    Raises:
        ConfigError: Neither the data nor the fields tell.
    """
    alone = NetParameter()
    alone.layer.add().CopyFrom(layer)
    try:
        if layer.type == "Python":
            message = "its code is not run for that"
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED)
        with Net(alone, "TEST", base_dir=base_dir) as net:
            return {top: list(net.blobs[top].shape) for top in tops}
    except (DemitasseError, OSError) as error:
        if list(tops) == list(layer.top[:1]):
            guessed = _from_fields(layer, layers, weights)
            if guessed:
                return {tops[0]: guessed}
        names = " and ".join(map(repr, tops))
        message = (
            f"layer {layer.name!r} ({layer.type}) reads data that is not there, so the shape of "
            f"{names} is not known; give it, e.g. --shape {tops[0]}=1,3,224,224 ({error})"
        )
        raise ConfigError(message, code=ErrorCode.MISSING, layer=layer.name, blob=tops[0]) from None


def _from_fields(
    layer: LayerParameter, layers: Sequence[LayerParameter], weights: Sequence[object]
) -> list[int]:
    """Return the shape of a batch of images that are cropped; nothing where they are not."""
    side = layer.transform_param.crop_size
    if layer.type == "WindowData":
        side = layer.window_data_param.crop_size or side
    if not side:
        return []
    batch = max(getattr(layer, name).batch_size for name in BATCHES)
    return [batch or 1, _channels(layer, layers, weights), side, side]


def _channels(
    layer: LayerParameter, layers: Sequence[LayerParameter], weights: Sequence[object]
) -> int:
    """Return how many channels the first convolution of the images has weights for; else 3."""
    image = layer.top[0]
    reader = next(
        (one for one in layers if one.type == "Convolution" and image in one.bottom), None
    )
    if reader is not None:
        for source in weights:
            stored = (
                read_weights(source).get(reader.name, {})
                if isinstance(source, (str, os.PathLike))
                else {}
            )
            if 0 in stored and stored[0].ndim == 4:
                return int(stored[0].shape[1]) * reader.convolution_param.group
    return 1 if layer.transform_param.force_gray else 3
