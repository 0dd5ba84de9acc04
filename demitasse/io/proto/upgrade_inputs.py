"""Inputs as fields of the net become an Input layer.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeNetInput).
"""

from demitasse.errors import PrototxtError
from demitasse.io.proto.caffe_pb2 import BlobShape, LayerParameter, NetParameter
from demitasse.io.proto.upgrade_notes import Lines, Problem

__all__ = ["upgrade_inputs"]


def upgrade_inputs(net: NetParameter, lines: Lines) -> list[str]:
    """Turn ``input``, ``input_shape`` and ``input_dim`` into a first layer, in place."""
    if not net.input:
        return []
    names = ", ".join(net.input)
    shapes = _shapes(net)
    if shapes:
        layer = LayerParameter(name="input", type="Input", top=net.input)
        layer.input_param.shape.extend(shapes)
        net.layer.insert(0, layer)
        lines.insert(0, None)
        note: str = f"input fields became an Input layer: {names}"
    else:  # weights saved long ago name their inputs and no more
        note = Problem(f"inputs without a shape were left out: {names}")
    for field in ("input", "input_shape", "input_dim"):
        net.ClearField(field)
    return [note]


def _shapes(net: NetParameter) -> list[BlobShape]:
    """One shape per input, or none at all where the file gives none."""
    inputs, dims = len(net.input), list(net.input_dim)
    if net.input_shape:
        if len(net.input_shape) < inputs:
            message = f"{inputs} inputs have {len(net.input_shape)} input_shape entries"
            raise PrototxtError(message)
        return list(net.input_shape[:inputs])
    if dims and len(dims) < 4 * inputs:
        message = f"{inputs} inputs have {len(dims)} input_dim entries, and need four each"
        raise PrototxtError(message)
    return [BlobShape(dim=dims[4 * i : 4 * i + 4]) for i in range(inputs)] if dims else []
