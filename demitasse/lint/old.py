"""What a net's file says in words of old."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from demitasse.io.proto import NetParameter
from demitasse.lint.finding import Finding

__all__ = ["old_fields"]

OLD = {
    "data_param": "rand_skip force_encoded_color scale mean_file crop_size mirror",
    "image_data_param": "rand_skip scale mean_file crop_size mirror",
    "window_data_param": "scale mean_file crop_size mirror",
    "dummy_data_param": "num channels height width",
    "concat_param": "concat_dim",
    "slice_param": "slice_dim",
    "loss_param": "normalize",
}
"""Fields of layers for which there are newer ones, or that do nothing any more."""


def old_fields(net: NetParameter, name: str) -> Iterator[Finding]:
    """Yield what an upgrade would change, and fields that have gone out of use.

    Args:
        net: The net as it is written, not upgraded.
        name: The file.
    """
    if net.layers:
        oldest = any(layer.HasField("layer") for layer in net.layers)
        age = "2013 (layers with a layer inside)" if oldest else "2014 (layers, types in capitals)"
        message = f"the format is that of {age}; `demitasse upgrade net` writes today's"
        yield Finding("warning", "old-format", message, name)
        if net.layer:
            message = f"beside 'layers' (old) the {len(net.layer)} 'layer' entries do not count"
            yield Finding("error", "old-format", message, name)
    if net.input:
        message = "inputs are given as fields of the net; an Input layer is today's way"
        yield Finding("note", "old-input", message, name)
    for layer in (*net.layer, *net.layers):
        yield from _of_layer(layer, name)


def _of_layer(layer: Any, name: str) -> Iterator[Finding]:
    if layer.type == "BatchNorm" and len(layer.param) == 3 and any(s.lr_mult for s in layer.param):
        message = (
            "its three blobs are averages, not learned: their lr_mult is read as 0; leave the "
            "param entries out"
        )
        yield Finding("note", "batch-norm-lr", message, f"{name}: layer {layer.name!r}")
    known = {field.name for field in layer.DESCRIPTOR.fields}
    for message_name, fields in OLD.items():
        if message_name not in known or not layer.HasField(message_name):
            continue
        param = getattr(layer, message_name)
        given = [
            field
            for field in fields.split()
            if any(field == set_field.name for set_field, _ in param.ListFields())
        ]
        if given:
            message = f"{message_name} has the old {' and '.join(given)}"
            yield Finding("note", "old-field", message, f"{name}: layer {layer.name!r}")
