"""Inputs as fields of the net become an Input layer.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeNetInput).
"""

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto.caffe_pb2 import BlobShape, LayerParameter, NetParameter
from demitasse.io.proto.upgrade_notes import Lines, Problem

__all__ = ["upgrade_inputs"]


def upgrade_inputs(net: NetParameter, lines: Lines) -> list[str]:
    """Replace ``input``, ``input_shape`` and ``input_dim`` by an Input layer, in place."""
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
    else:  # old weights have inputs without shapes
        note = Problem(f"inputs without a shape were dropped: {names}")
    for field in ("input", "input_shape", "input_dim"):
        net.ClearField(field)
    return [note]


def _shapes(net: NetParameter) -> list[BlobShape]:
    """Return one shape per input, or an empty list for inputs without shapes."""
    inputs, dims = len(net.input), list(net.input_dim)
    if net.input_shape:
        if len(net.input_shape) < inputs:
            message = f"got {len(net.input_shape)} input_shape for {inputs} inputs"
            raise PrototxtError(message, code=ErrorCode.COUNT_MISMATCH, field="input_shape")
        return list(net.input_shape[:inputs])
    if dims and len(dims) < 4 * inputs:
        message = f"got {len(dims)} input_dim for {inputs} inputs, expected four each"
        raise PrototxtError(message, code=ErrorCode.COUNT_MISMATCH, field="input_dim")
    return [BlobShape(dim=dims[4 * i : 4 * i + 4]) for i in range(inputs)] if dims else []
