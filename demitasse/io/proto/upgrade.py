"""Upgrade old formats to the current format, in Caffe's order and with Caffe's results.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeNetDataTransformation, UpgradeNetInput,
UpgradeNetBatchNorm, UpgradeSolverType). P3D, ``pooling3d_layer.cpp``; C3D v1.1,
``convolution3d_layer.cpp``.
"""

from typing import Any

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto.caffe_pb2 import (
    BlobShape,
    LayerParameter,
    NetParameter,
    SolverParameter,
    V1LayerParameter,
)
from demitasse.io.proto.upgrade_layers import Lines, Problem, upgrade_v0, upgrade_v1

TRANSFORM_OWNERS = {
    V1LayerParameter.DATA: "data_param",
    V1LayerParameter.IMAGE_DATA: "image_data_param",
    V1LayerParameter.WINDOW_DATA: "window_data_param",
}
TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")


def _upgrade_data_layers(net: NetParameter) -> list[str]:
    """Move scale, mean, crop and mirror of V1 data layers to ``transform_param``, in place."""
    layers = [layer for layer in net.layers if layer.type in TRANSFORM_OWNERS]
    owners: list[Any] = [getattr(layer, TRANSFORM_OWNERS[layer.type]) for layer in layers]
    if not any(data.HasField(name) for data in owners for name in TRANSFORM_FIELDS):
        return []
    for layer, data in zip(layers, owners, strict=True):
        transform = layer.transform_param
        data.SetInParent()  # as in Caffe, empty messages remain
        transform.SetInParent()
        for name in TRANSFORM_FIELDS:
            if data.HasField(name):
                setattr(transform, name, getattr(data, name))
                data.ClearField(name)
    return ["scale, mean_file, crop_size and mirror moved to transform_param"]


def _upgrade_inputs(net: NetParameter, lines: Lines) -> list[str]:
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


def _upgrade_batch_norm(net: NetParameter) -> list[str]:
    """Set lr_mult and decay_mult of BatchNorm layers with three ParamSpecs to 0, in place."""
    old = [layer for layer in net.layer if layer.type == "BatchNorm" and len(layer.param) == 3]
    for layer in old:
        for spec in layer.param:
            spec.lr_mult = spec.decay_mult = 0.0
    if not old:
        return []
    return [f"BatchNorm with three param entries: their lr_mult and decay_mult are 0 ({len(old)})"]


VOLUME_TYPES = {"Convolution3D": "Convolution", "Pooling3D": "Pooling"}
"""Layers of C3D and P3D, and the types that have their windows."""


def _upgrade_volumes(net: NetParameter) -> list[str]:
    """Replace types of C3D and P3D, in place; ``pad_l`` of P3D is of the first axis."""
    old = [layer for layer in net.layer if layer.type in VOLUME_TYPES]
    for layer in old:
        for param in (layer.convolution_param, layer.pooling_param):
            if param.HasField("pad_l"):
                param.temporal_pad = param.pad_l
                param.ClearField("pad_l")
        layer.type = VOLUME_TYPES[layer.type]
    note = f"Convolution3D and Pooling3D were read as Convolution and Pooling ({len(old)})"
    return [note] if old else []


def _upgrade_softmax_loss(net: NetParameter) -> list[str]:
    """Move the ignored label of DeepLab's first release to ``loss_param``, in place."""
    old = [
        layer
        for layer in net.layer
        if layer.type == "SoftmaxWithLoss" and layer.HasField("softmaxloss_param")
    ]
    for layer in old:
        labels = sorted(set(layer.softmaxloss_param.ignore_label))
        source = layer.softmaxloss_param.weight_source
        if source or len(labels) > 1:
            field, got = ("weight_source", source) if source else ("ignore_label", labels)
            message = (
                f"layer {layer.name!r}: got softmaxloss_param.{field} {got!r} of DeepLab, expected "
                "at most one ignore_label and no weight_source; use InfogainLoss for class weights"
            )
            raise PrototxtError(message, code=ErrorCode.UNSUPPORTED, field=field, layer=layer.name)
        if labels:
            layer.loss_param.ignore_label = labels[0]
        layer.ClearField("softmaxloss_param")
    return ["softmaxloss_param.ignore_label moved to loss_param"] if old else []


SOLVER_TYPES = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")
"""Types of solvers; ``solver_type`` has their names in capitals."""


def upgrade_solver(solver: SolverParameter) -> list[str]:
    """Upgrade a solver in place, and return a note per kind of change.

    ``solver_type`` becomes ``type``; both at once are a PrototxtError. Nets inside the solver
    are not changed, as in Caffe.
    """
    if not solver.HasField("solver_type"):
        return []
    old = SolverParameter.SolverType.Name(solver.solver_type)
    if solver.HasField("type"):
        message = (
            f"the solver has both solver_type: {old} and type: {solver.type!r}; "
            "solver_type is the old name: remove it"
        )
        raise PrototxtError(message, code=ErrorCode.CONFLICT, field="solver_type")
    solver.type = next(name for name in SOLVER_TYPES if name.upper() == old)
    solver.ClearField("solver_type")
    return [f"solver_type: {old} was read as type: {solver.type!r}"]


def upgrade_net(net: NetParameter, lines: Lines | None = None) -> list[str]:
    """Upgrade a net of any format in place, and return a note per kind of change.

    A note of a dropped item is a Problem. ``lines`` has the line of each entry of ``layers`` (or
    else ``layer``), and is updated to match ``net.layer``.

    Raises:
        PrototxtError: A V0 layer has an unknown type, or padding before a layer that takes none;
            the inputs have too few shapes; or there are entries of both ``layer`` and ``layers``.
    """
    lines = [] if lines is None else lines
    return [
        *upgrade_v0(net, lines),
        *_upgrade_data_layers(net),
        *upgrade_v1(net),
        *_upgrade_inputs(net, lines),
        *_upgrade_batch_norm(net),
        *_upgrade_softmax_loss(net),
        *_upgrade_volumes(net),
    ]
